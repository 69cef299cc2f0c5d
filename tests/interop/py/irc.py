"""miniirc, an IRC client, against the IRC server in Luau among the examples, loaded while the server runs."""

import asyncio
import json
import pathlib
import urllib.request

import miniirc

from dunlin import eventually, free_port, main, scenario
from members import member

SOURCE = (pathlib.Path(__file__).resolve().parents[3] / "crates/program/examples/irc.luau").read_text()


def put(server, path, value):
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.admin_port}/config/{path}", json.dumps(value).encode(), {"Content-Type": "application/json", **server.admin_headers}, method="PUT"
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status in (200, 201), answer.status


def program(server, source):
    put(server, "programs/irc", {"source": source, "on_error": "deny", "websocket_path": "/irc"})


class Chatter:
    """An IRC client that keeps what it hears, as (command, nick, arguments)."""

    def __init__(self, port, nick, room):
        self.heard = []
        self.client = miniirc.IRC(
            "127.0.0.1", port, nick, [room], ssl=False, auto_connect=False, ns_identity=None, connect_modes=None, quit_message="bye", persist=False, ping_interval=60
        )
        for command in ("PRIVMSG", "JOIN", "PART", "353"):
            self.client.Handler(command, colon=False)(self._keep(command))
        self.client.connect()

    def _keep(self, command):
        return lambda client, who, arguments: self.heard.append((command, who[0], list(arguments)))

    def all(self, command):
        return [(nick, arguments) for of, nick, arguments in self.heard if of == command]


@scenario("miniirc and centrifuge-python: both sides of a room, and its program is replaced under them", config="irc.toml")
async def room(server):
    program(server, SOURCE)
    port = free_port()
    put(server, "listeners/irc", {"addr": f"127.0.0.1:{port}", "program": "irc"})
    bob = await asyncio.to_thread(Chatter, port, "bob", "#room")
    try:
        await eventually(lambda: any("bob" in arguments[-1] for _, arguments in bob.all("353")), "bob in the list of names")
        async with member(server) as ann:
            room = await ann.join("irc:room", join_leave=True)
            bob.client.msg("#room", "hello from IRC")
            await eventually(lambda: room.all("publication"), "bob's message")
            publication = room.all("publication")[0].pub
            assert (publication.data, publication.info.user) == ({"text": "hello from IRC"}, "bob")
            server.publish("irc:room", {"text": "news:\r\nQUIT"})
            await eventually(lambda: ("dunlin", ["#room", "news:  QUIT"]) in bob.all("PRIVMSG"), "the backend's message")
            # Other code takes the connections over.
            program(server, SOURCE.replace("return irc", "function irc.upgrade(state)\n\tstate.moved = true\n\treturn state\nend\n\nreturn irc"))
            carol = await asyncio.to_thread(Chatter, port, "carol", "#room")
            await eventually(lambda: ("carol", ["#room"]) in bob.all("JOIN"), "carol's join, at bob")
            carol.client.msg("#room", "hello, bob")
            await eventually(lambda: ("carol", ["#room", "hello, bob"]) in bob.all("PRIVMSG"), "carol's message")
            bob.client.msg("carol", "just you")
            await eventually(lambda: ("bob", ["carol", "just you"]) in carol.all("PRIVMSG"), "bob's message to carol alone")
            await asyncio.to_thread(carol.client.disconnect)
            await eventually(lambda: ("carol", ["#room"]) in bob.all("PART"), "carol's part, at bob")
            await eventually(lambda: any(c.info.user == "carol" for c in room.all("leave")), "carol's leave, at ann")
    finally:
        await asyncio.to_thread(bob.client.disconnect)
    assert server.counted("dunlin_program_errors_total") == 0


if __name__ == "__main__":
    main()
