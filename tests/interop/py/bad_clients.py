"""Clients that speak the transports well and the protocol badly, many that say nothing, configs with mistakes."""

import contextlib
import json
import os
import pathlib
import resource
import socket
import subprocess
import tempfile

from dunlin import beside_a_witness, frame, main, scenario, until

SILENT_CLIENTS = 15_000


def connected_then(server, *messages):
    connection = server.websocket()
    connection.send(b"".join(frame(message if isinstance(message, (str, bytes)) else json.dumps(message)) for message in messages))
    return connection


@scenario("bad commands: JSON of the wrong type or none at all ends the connection (3501, bad request)", config="impatient.toml")
@beside_a_witness
def not_a_command(server):
    for message in ("nonsense", "[]", "1", '"connect"', '{"id": 2, "subscribe": ', '{"id": "2", "publish": {}}', '{"id": 2, "subscribe": 5}',
                    '{"id": -1, "subscribe": {"channel": "a"}}', '{"id": 2, "subscribe": {"channel": 5}}', '{"id": 2}', '{"id": 2, "connect": {}}',
                    "{" * 10_000, "[" * 30_000, '{"id": 2, "subscribe": {"channel": "a", "offset": "x"}}', b'{"id": 2, "publish": {"channel": "a", "data": \x01}}'):
        with connected_then(server, message) as connection:
            code, _ = connection.close_code()
            assert code == 3501, (message[:60], code)
    until(lambda: server.counted("dunlin_client_disconnects_total") >= 15, "each to be counted in /metrics")


@scenario("bad commands: unknown fields are ignored, unknown methods answered 104", config="impatient.toml")
@beside_a_witness
def unknown_fields(server):
    with connected_then(server, {"id": 2, "subscribe": {"channel": "a", "from_the_future": True}, "flag": 1}, {"id": 3, "teleport": {"to": "moon"}}) as connection:
        replies = {reply["id"]: reply for reply in (json.loads(line) for _ in range(2) for line in connection.frame()[1].splitlines())}
        assert "subscribe" in replies[2], replies
        assert replies[3]["error"]["code"] in (104, 107), replies


@scenario("bad commands: more subscriptions, longer names and more data than allowed are errors, not the end", config="impatient.toml")
@beside_a_witness
def limits(server):
    with server.websocket() as connection:
        def ask(id, **command):
            connection.send(frame(json.dumps({"id": id, **command})))
            while True:
                for line in connection.frame()[1].splitlines():
                    reply = json.loads(line)
                    if not reply:
                        connection.send(frame("{}"))
                    if reply.get("id") == id:
                        return reply.get("error", {}).get("code")

        for n in range(16):
            assert ask(10 + n, subscribe={"channel": f"c{n}"}) is None
        assert ask(30, subscribe={"channel": "one-too-many"}) == 106
        assert ask(31, publish={"channel": "x" * 65, "data": 1}) == 107
        assert ask(32, publish={"channel": "c1", "data": "x" * 33_000}) in (106, 107)
        assert ask(33, publish={"channel": "c1", "data": 1}) is None
    until(lambda: server.counted("dunlin_client_command_errors_total") >= 3, "the refusals to be counted in /metrics")


@scenario("bad API calls: each has an error that names what is wrong, none ends the server", config="impatient.toml")
@beside_a_witness
def api(server):
    for path, body, word in (
        ("/api/publish", b"nonsense", "JSON"),
        ("/api/publish", b"", "JSON"),
        ("/api/publish", b"[1, 2]", ""),
        ("/api/publish", b'{"channel": "a"}', "data"),
        ("/api/publish", b'{"data": 1}', "channel"),
        ("/api/publish", b'{"channel": 5, "data": 1}', "channel"),
        ("/api/broadcast", b'{"channels": "a", "data": 1}', "channels"),
        ("/api/broadcast", b'{"channels": [], "data": 1}', "channels"),
        ("/api/history", b'{"channel": "a", "limit": "all"}', "limit"),
        ("/api/history", b'{"channel": "a", "since": 5}', "since"),
        ("/api/batch", b'{"commands": {"publish": {}}}', "commands"),
        ("/api/publish", b"[" * 100_000, ""),
        ("/api/publish", b'{"channel": "\xff\xfe", "data": 1}', ""),
    ):
        status, answer = server.post(path, body)
        text = json.dumps(answer)
        assert status in (200, 400) and "error" in text, (path, body[:60], status, answer)
        assert word.lower() in text.lower(), f"{path} {body[:60]!r}: {text} does not name {word!r}"
    status, answer = server.post("/api/batch", {"commands": [{"publish": {"channel": "a", "data": 1}}, {"teleport": {}}, {"publish": {"channel": "a", "data": 2}}]})
    good, bad, again = answer["replies"]
    assert (good["publish"]["offset"], again["publish"]["offset"]) == (1, 2) and bad["error"]["code"] in (104, 107), answer


@scenario("bad transports: connect requests that are invalid are rejected on every HTTP transport", config="impatient.toml")
@beside_a_witness
def bad_connects(server):
    for connect in ("nonsense", "[]", '{"subs": 5}', '{"subs": {"a": {"recover": 5}}}'):
        for path in ("/connection/uni_http_stream", "/connection/http_stream"):
            with server.connect() as connection:
                connection.send(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(connect)}\r\n\r\n{connect}")
                connection.closed()
                assert b'"disconnect":{"code":3501,"reason":"bad request: ' in connection.buffer, (path, connect, connection.buffer)
    for body in (b"nonsense", b"{}", b'{"session": 5, "node": "", "data": "{}"}', b'{"session": "18446744073709551616", "node": "", "data": "{}"}', b'{"session": "7", "node": "", "data": "{}"}'):
        status, _ = server.post("/emulation", body)
        assert status in (204, 400, 404), (body, status)


@scenario(f"many clients: {SILENT_CLIENTS} connects without a byte are bounded in memory, timed out, counted")
@beside_a_witness
def many_silent_clients(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(SILENT_CLIENTS, hard - 500)
    before = server.memory_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.socket())
            # Not from where the witness comes: who shares an address shares its room.
            connection.bind(("127.0.0.9", 0))
            connection.connect(("127.0.0.1", server.client_port))
        # One address has room for so many that have not said who they are: limits.unauthenticated_per_address_max. The rest is
        # turned away, unless some of the first were timed out before the last came: limits.head_timeout_ms, 10 s in development mode.
        room = min(count, 8_192)
        refused = lambda: server.counted(r'dunlin_connections_refused_total\{reason="limits.unauthenticated_per_address_max"')
        timed_out = lambda: server.counted("dunlin_connections_timed_out_total")
        until(lambda: timed_out() + refused() >= count - room, "all but an address's share to be turned away or timed out", timeout_s=30)
        cost = server.memory_bytes() - before
        assert cost < count * 400, f"{count} silent connections cost {cost} bytes"
        # They keep silent until the server hangs up.
        until(lambda: timed_out() + refused() >= count, "the rest to be timed out", timeout_s=30)
        assert timed_out() >= room, f"an address has room for {room}, {timed_out()} of it were let in"
        cost = server.memory_bytes() - before
        assert cost < count * 400, f"once they are gone, {count} silent connections cost {cost} bytes"


@scenario("many clients: limits on connections, per address and in all, turn away at the door, and let in again", config="narrow.toml")
def door(server):
    with contextlib.ExitStack() as stack:
        knock = lambda source: sum(enters(server, source, stack) for _ in range(30))
        assert knock("127.0.0.1") == 20, "connections_per_address_max is 20"
        assert knock("127.0.0.2") == 20, "another address has room of its own"
        assert knock("127.0.0.3") == 10, "connections_max is 50"
        until(lambda: server.counted(r'dunlin_connections_refused_total\{reason="limits.connections_per_address_max"') == 20, "the refusals by address in /metrics")
        until(lambda: server.counted(r'dunlin_connections_refused_total\{reason="limits.connections_max"') == 20, "the refusals in all in /metrics")
        until(lambda: server.counted(r"dunlin_connections\{") == 50, "fifty open connections in /metrics")
    until(lambda: server.exchange("GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")[0] == 404, "the door to open again")


def enters(server, source, stack):
    """Whether a connection from that address is kept: it is answered."""
    try:
        connection = stack.enter_context(server.connect(source=source))
        connection.send("GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.response()[0] == 404
    except ConnectionError:
        return False


@scenario("bad configs: an unknown key, a wrong type, a value out of bounds: refused with the key's name and the fix")
def configs(server):
    binary = os.environ["DUNLIN_BIN"]
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "dunlin.toml")
        for text, words in (
            ("[limits]\nconections_max = 5\n", ("limits.conections_max", "connections_max")),
            ("[nonsense]\n", ("nonsense",)),
            ('[server]\nworkers = "two"\n', ("server.workers",)),
            ("[server]\nworkers = 1000\n", ("server.workers", "124")),
            ("[client]\nping_interval_ms = 0\n", ("client.ping_interval_ms",)),
            ("this is not TOML\n", ("dunlin.toml:1",)),
            ('[server]\nclient_addr = "0.0.0.0:0"\n', ("api.keys", "hmac_secret")),
        ):
            path.write_text(text)
            for command in (["config", "check", path], ["serve", "--config", path]):
                done = subprocess.run([binary, *command], capture_output=True, text=True, timeout=10)
                said = done.stdout + done.stderr
                assert done.returncode != 0, (command, text, said)
                for word in words:
                    assert word in said, f"{command[0]}: {text!r} is refused without naming {word!r}:\n{said}"


@scenario("bad start: an address in use and a public address without a key are refused with the fix")
def bad_start(server):
    binary = os.environ["DUNLIN_BIN"]
    for flags, words in (
        (["--client", f"127.0.0.1:{server.client_port}", "--admin", "127.0.0.1:0"], ("in use", "--client")),
        (["--client", "127.0.0.1:0", "--admin", f"127.0.0.1:{server.admin_port}"], ("in use", "--admin")),
        (["--client", "0.0.0.0:0", "--admin", "127.0.0.1:0"], ("api.keys", "client.token.hmac_secret")),
    ):
        done = subprocess.run([binary, "serve", *flags], capture_output=True, text=True, timeout=10)
        said = done.stdout + done.stderr
        assert done.returncode != 0 and all(word in said for word in words), (flags, said)


if __name__ == "__main__":
    main()
