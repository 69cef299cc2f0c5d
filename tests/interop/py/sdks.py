"""Centrifugal's SDKs for Go (JSON and Protobuf) and Java (Protobuf), unmodified: programs of ../go and ../java that take what to
do line by line."""

import asyncio
import contextlib
import pathlib

from dunlin import Line, eventually, main, scenario

CACHE = pathlib.Path(__file__).resolve().parents[3] / ".cache" / "interop"
GO = [str(CACHE / "go-member")]
JAVA = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{CACHE / 'java'}:{CACHE / 'java'}/*", "Member"]
PROGRAMS = {
    "centrifuge-go, Protobuf": ([*GO, "protobuf"], "?cf_protocol=protobuf"),
    "centrifuge-go, JSON": ([*GO, "json"], ""),
    "centrifuge-java": (JAVA, ""),
}


class Program:
    """A program that takes a line of what to do and says what it hears in lines."""

    def __init__(self, process):
        self.process = process
        self.lines = []
        self.task = asyncio.create_task(self._read())

    async def _read(self):
        async for line in self.process.stdout:
            self.lines.append(line.decode().strip())

    def tell(self, order):
        self.process.stdin.write(f"{order}\n".encode())

    async def says(self, begin, times=1):
        """The last line that begins so, once there are so many of them."""

        def said():
            assert not any(line.startswith("failed") for line in self.lines), self.lines
            return [line for line in self.lines if line.startswith(begin)]

        await eventually(lambda: len(said()) >= times, f"{begin!r} number {times}; it said {self.lines}")
        return said()[times - 1]


@contextlib.asynccontextmanager
async def program(command, url, channel):
    process = await asyncio.create_subprocess_exec(*command, url, channel, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    it = Program(process)
    try:
        yield it
    finally:
        it.task.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def hexed(text):
    return text.encode().hex()


for sdk, (command, query) in PROGRAMS.items():

    @scenario(f"{sdk}: publishes, receives, reads history and presence, recovers what it missed, is notified why it is disconnected", config="sdks.toml")
    async def life(server, command=command, query=query, binary="JSON" not in sdk):
        line = Line(server.client_port)
        async with program(command, f"ws://127.0.0.1:{line.port}/connection/websocket{query}", "news") as ann:
            assert await ann.says("subscribed") == "subscribed false false"
            ann.tell("publish")
            await ann.says("published")
            assert await ann.says("publication") == "publication 1 " + hexed('{"from":"sdk"}')
            assert server.publish("news", {"from": "api"})["offset"] == 2
            assert await ann.says("publication", 2) == "publication 2 " + hexed('{"from": "api"}')
            ann.tell("history")
            assert await ann.says("history") == "history 2 2"
            ann.tell("presence")
            assert await ann.says("presence") == "presence 1 1 1"
            ann.tell("rpc")
            await ann.says("rpc")

            line.fail()
            for n in (3, 4, 5):
                server.publish("news", n)
            line.mend()
            assert await ann.says("subscribed", 2) == "subscribed true true"
            for n in (3, 4, 5):
                assert await ann.says("publication", n) == f"publication {n} {hexed(str(n))}"

            if binary:
                ann.tell("publish-binary")
                assert await ann.says("publication", 6) == "publication 6 0001ff"
            # Two pings at least, answered in time, or it would have been disconnected.
            await asyncio.sleep(2.5)
            me = (await ann.says("connected", 2)).split()[1]
            assert not any(heard.startswith("connecting 3") for heard in ann.lines), ann.lines
            server.post("/api/disconnect", {"user": "", "client": me})
            assert (await ann.says("disconnected")).startswith("disconnected 3503"), ann.lines
        line.close()


if __name__ == "__main__":
    main()
