"""What the stories in this directory share: a server of their own, raw sockets, figures of /metrics and of memory."""

import asyncio
import contextlib
import functools
import inspect
import itertools
import json
import os
import pathlib
import random
import re
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = HERE.parent / "config"
API_KEY = "the-api-key-of-the-interop-tests"
TOKEN_SECRET = "the-secret-of-the-interop-tests-0123456789"
TIMEOUT_S = 10.0
LOG_LINES_SHOWN = 60

_stories = []


def scenario(name, config=None, workers=2):
    """Registers a story: a function, plain or async, that is given a server of its own."""

    def register(story):
        _stories.append((name, config, workers, story))
        return story

    return register


def main():
    """Runs all stories of a file, a line of outcome each; a failure shows the server's log."""
    failed = 0
    for name, config, workers, story in _stories:
        began = time.monotonic()
        server = Server(config, workers)
        try:
            server.start()
            outcome = story(server)
            if inspect.isawaitable(outcome):
                asyncio.run(asyncio.wait_for(outcome, 60))
            server.assert_whole()
            print(f"ok     {name} ({time.monotonic() - began:.1f} s)", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {name} ({time.monotonic() - began:.1f} s)")
            print(indent(traceback.format_exc()))
            print(indent(f"--- log of {server.origin}\n{server.last_lines()}"), flush=True)
        finally:
            server.kill()
    raise SystemExit(1 if failed else 0)


# Where the config has it, requests to the admin port carry it.
ADMIN_TOKEN = "the-admin-token-of-the-interop-tests"


class Server:
    """A `dunlin serve` on ports of its own, which it keeps over a restart. `config`: a file of ../config."""

    def __init__(self, config=None, workers=2):
        self.config = config
        self.workers = workers
        self.client_port = free_port()
        self.admin_port = free_port()
        self.admin_headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"} if config in ("admin.toml", "irc.toml", "pusher.toml") else {}
        self.origin = f"http://127.0.0.1:{self.client_port}"
        self.process = None
        self.log = tempfile.TemporaryFile(mode="w+")

    def start(self):
        binary = os.environ.get("DUNLIN_BIN")
        assert binary, "DUNLIN_BIN is not set; it names the dunlin to test"
        flags = ["--client", f"127.0.0.1:{self.client_port}", "--admin", f"127.0.0.1:{self.admin_port}", "--workers", str(self.workers)]
        if self.config:
            flags += ["--config", CONFIG / self.config]
        self.process = subprocess.Popen([binary, "serve", *flags], stdout=self.log, stderr=subprocess.STDOUT)
        until(lambda: self.process.poll() is not None or self._healthy(), "the server to answer /health")
        self.assert_alive()

    def _healthy(self):
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/health", timeout=1) as answer:
                return answer.status == 200

    def assert_alive(self):
        status = self.process.poll()
        assert status is None, f"the server ended by itself with status {status}"

    def assert_whole(self):
        """Alive, and no worker had to begin anew."""
        self.assert_alive()
        assert self.counted("dunlin_worker_restarts_total") == 0, "a worker panicked"

    def terminate(self):
        """SIGTERM; answers with the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_S)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def post(self, path, body, headers=()):
        """(status, parsed answer or text) of a POST to the client port."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.origin + path, data, {"Content-Type": "application/json", **dict(headers)})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def publish(self, channel, data, headers=()):
        status, answer = self.post("/api/publish", {"channel": channel, "data": data}, headers)
        assert status == 200 and "result" in answer, (status, answer)
        return answer["result"]

    def metrics(self):
        """Every sample of /metrics by its name with labels."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin_port}/metrics", headers=self.admin_headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))}

    def counted(self, pattern):
        """The sum of all metrics whose name with labels matches."""
        return sum(value for name, value in self.metrics().items() if re.search(pattern, name))

    def memory_bytes(self):
        """The server's own memory, as the kernel accounts it; not the pages of its program, which others may share."""
        rollup = pathlib.Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return int(re.search(r"^Pss_Anon:\s+(\d+) kB", rollup, re.MULTILINE)[1]) * 1024

    def connect(self, receive_buffer=None, source="127.0.0.1"):
        return RawConnection(self.client_port, receive_buffer, source)

    def exchange(self, request):
        """Sends bytes, reads until the server closes or answers fully; gives (status, head, body)."""
        with self.connect() as connection:
            connection.send(request)
            return connection.response()

    def websocket(self, headers="", path="/connection/websocket", connect=True):
        """A raw WebSocket, its connect command answered unless asked otherwise."""
        connection = self.connect()
        connection.send(handshake(path, headers))
        status, head, _ = connection.response()
        assert status == 101, (status, head)
        if connect:
            connection.send(frame(json.dumps({"id": 1, "connect": {}})))
            reply = json.loads(connection.frame()[1])
            assert "connect" in reply, reply
        return connection

    def last_lines(self):
        self.log.seek(0)
        return "".join(self.log.readlines()[-LOG_LINES_SHOWN:])


class Line:
    """A TCP line to a port that can be cut, as a network does it."""

    def __init__(self, target):
        self._target = target
        self._ends = []
        self._refuses = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._refuses:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def _carry(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def fail(self):
        """Cuts every connection and lets none through until `mend`."""
        self._refuses = True
        ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self):
        self._refuses = False

    def close(self):
        self.fail()
        self._listener.close()


class RawConnection:
    """A TCP connection on which a story may say anything."""

    def __init__(self, port, receive_buffer=None, source="127.0.0.1"):
        self.socket = socket.socket()
        self.socket.bind((source, 0))
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(("127.0.0.1", port))
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, data):
        """Sends all; a server that has hung up already will have said why."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data.encode() if isinstance(data, str) else data)

    def receive(self):
        """Whether more bytes came; False at the end of the stream."""
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            data = b""
        self.buffer += data
        return bool(data)

    def take(self, n):
        while len(self.buffer) < n:
            if not self.receive():
                raise EOFError(f"the connection ended, {self.buffer[:200]!r} left")
        taken, self.buffer = self.buffer[:n], self.buffer[n:]
        return taken

    def response(self):
        """One HTTP response: (status, head, body). A connection closed without one gives (None, '', b'')."""
        while b"\r\n\r\n" not in self.buffer:
            if not self.receive():
                assert not self.buffer, f"half a response: {self.buffer!r}"
                return None, "", b""
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        head = head.decode("latin-1")
        status = int(head.split(" ", 2)[1])
        length = re.search(r"^content-length:\s*(\d+)\s*$", head, re.IGNORECASE | re.MULTILINE)
        body = self.take(int(length[1])) if length else b""
        return status, head, body

    def frame(self):
        """One unmasked WebSocket frame: (opcode, payload)."""
        first, second = self.take(2)
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", self.take(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self.take(8))
        return first & 0x0F, self.take(length)

    def close_code(self):
        """Reads frames up to the close frame; its code and reason. None when the line ended without one."""
        with contextlib.suppress(EOFError):
            while True:
                opcode, payload = self.frame()
                if opcode == 8:
                    return struct.unpack("!H", payload[:2])[0], payload[2:].decode()
        return None, ""

    def closed(self):
        """Reads until the server closes this connection; what it said is in `buffer`."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.receive():
            assert time.monotonic() < deadline, f"the server keeps the connection: {self.buffer[:200]!r}"
        return True


def handshake(path="/connection/websocket", headers="", key="dGhlIHNhbXBsZSBub25jZQ==", version="13", host="localhost"):
    return (
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: {version}\r\n{headers}\r\n"
    )


def frame(payload, opcode=1, fin=True, reserved=0, masked=True, length=None):
    """A WebSocket frame as a client sends it, or deliberately not: `length` may lie."""
    payload = payload.encode() if isinstance(payload, str) else payload
    length = len(payload) if length is None else length
    head = bytes([(fin << 7) | (reserved << 4) | opcode])
    if length < 126:
        head += bytes([(masked << 7) | length])
    elif length < 65536:
        head += bytes([(masked << 7) | 126]) + struct.pack("!H", length)
    else:
        head += bytes([(masked << 7) | 127]) + struct.pack("!Q", length)
    if not masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ key for byte, key in zip(payload, itertools.cycle(mask)))


class Witness:
    """A healthy client beside the harm: subscribed, sent a message every few milliseconds, which it must get at once and
    in order; its line must never break. `assert_undisturbed` ends it."""

    CHANNEL = "witness"
    LAST = "the last message"

    def __init__(self, server):
        self.server = server
        self.connection = server.websocket()
        self.connection.send(frame(json.dumps({"id": 2, "subscribe": {"channel": self.CHANNEL}})))
        self.connection.frame()
        self.stop = threading.Event()
        self.sent = 0
        self.offsets = []
        self.failure = None
        self.threads = [threading.Thread(target=self._guard, args=(work,), daemon=True) for work in (self._publish, self._read)]
        for thread in self.threads:
            thread.start()

    def _guard(self, work):
        try:
            work()
        except Exception as error:
            self.failure = self.failure or repr(error)

    def _publish(self):
        while not self.stop.wait(0.02):
            self.server.publish(self.CHANNEL, self.sent + 1)
            self.sent += 1

    def _read(self):
        data = None
        while data != self.LAST:
            opcode, payload = self.connection.frame()
            assert opcode == 1, (opcode, payload)
            for line in payload.splitlines():
                reply = json.loads(line)
                if not reply:
                    self.connection.send(frame("{}"))
                elif "push" in reply:
                    publication = reply["push"]["pub"]
                    data = publication["data"]
                    self.offsets.append(publication["offset"])

    def assert_undisturbed(self):
        publisher, reader = self.threads
        self.stop.set()
        publisher.join(TIMEOUT_S)
        self.server.publish(self.CHANNEL, self.LAST)
        self.sent += 1
        reader.join(TIMEOUT_S)
        assert self.failure is None, f"the witness was disturbed: {self.failure}"
        assert self.offsets == list(range(1, self.sent + 1)), f"the witness was sent {self.sent} messages and got {self.offsets}"
        self.connection.close()


def beside_a_witness(story):
    """Runs a story while a healthy client looks on, which must notice nothing."""

    @functools.wraps(story)
    def reported(server):
        witness = Witness(server)
        story(server)
        witness.assert_undisturbed()

    return reported


def until(condition, what, timeout_s=TIMEOUT_S):
    """Waits until `condition` yields something; fails with what it waited for."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s in vain for {what}"
        time.sleep(0.01)


async def eventually(condition, what, timeout_s=TIMEOUT_S):
    """`until` for an async story."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s in vain for {what}"
        await asyncio.sleep(0.005)


given = set()


def free_port():
    """A port below the kernel's ephemeral range, so that no outgoing connection of the tests takes it meanwhile."""
    while True:
        port = random.randrange(20_000, 32_000)
        # One that was given before may not be taken yet.
        if port in given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            given.add(port)
            return port


def indent(text):
    return "\n".join("       " + line for line in text.splitlines())
