"""Malformed HTTP over raw sockets: the standard's own answer, counted, and no other client disturbed."""

import contextlib

from dunlin import beside_a_witness, main, scenario, until

PUBLISH = "POST /api/publish HTTP/1.1\r\nHost: localhost\r\n"
BODY = '{"channel":"news","data":1}'

# What RFC 9112 (and 9110) makes of it: (what is wrong, the bytes, the statuses it may be answered with).
MALFORMED = [
    ("a bare LF ends a line", "GET / HTTP/1.1\nHost: localhost\n\n", {400}),
    ("a bare LF ends one header", "GET / HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n", {400}),
    ("a bare CR in a value", "GET / HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n", {400}),
    ("two different Content-Lengths", PUBLISH + "Content-Length: 27\r\nContent-Length: 28\r\n\r\n" + BODY, {400}),
    ("a list of different Content-Lengths", PUBLISH + "Content-Length: 27, 28\r\n\r\n" + BODY, {400}),
    ("Content-Length and Transfer-Encoding", PUBLISH + "Content-Length: 27\r\nTransfer-Encoding: chunked\r\n\r\n1b\r\n" + BODY + "\r\n0\r\n\r\n", {400}),
    ("a signed Content-Length", PUBLISH + "Content-Length: +27\r\n\r\n" + BODY, {400}),
    ("a negative Content-Length", PUBLISH + "Content-Length: -1\r\n\r\n", {400}),
    ("a Content-Length beyond 64 bits", PUBLISH + "Content-Length: 99999999999999999999\r\n\r\n", {400, 413}),
    ("a body longer than allowed", PUBLISH + "Content-Length: 100000000\r\n\r\n", {413}),
    ("an unknown transfer coding", PUBLISH + "Transfer-Encoding: zip\r\n\r\n", {400, 501}),
    ("chunked not last", PUBLISH + "Transfer-Encoding: chunked, gzip\r\n\r\n", {400, 501}),
    ("chunked twice", PUBLISH + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400, 501}),
    ("a transfer coding in disguise", PUBLISH + "Transfer-Encoding: xchunked\r\nContent-Length: 27\r\n\r\n" + BODY, {400, 501}),
    ("a chunk size that is no number", PUBLISH + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", {400}),
    ("a chunk size that overflows", PUBLISH + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", {400, 413}),
    ("a signed chunk size", PUBLISH + "Transfer-Encoding: chunked\r\n\r\n+1b\r\n" + BODY + "\r\n0\r\n\r\n", {400}),
    ("a chunk longer than its size", PUBLISH + "Transfer-Encoding: chunked\r\n\r\n5\r\n" + BODY + "\r\n0\r\n\r\n", {400}),
    ("a chunk line ended by a bare LF", PUBLISH + "Transfer-Encoding: chunked\r\n\r\n1b\n" + BODY + "\r\n0\r\n\r\n", {400}),
    ("chunks beyond the body's bound", PUBLISH + "Transfer-Encoding: chunked\r\n\r\n" + ("10000\r\n" + "x" * 65536 + "\r\n") * 40, {413}),
    ("a chunk extension without end", PUBLISH + "Transfer-Encoding: chunked\r\n\r\n1;" + "x" * 100_000, {400, 431}),
    ("a space before the colon", "GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", {400}),
    ("a folded header", "GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n", {400}),
    ("a header without a colon", "GET / HTTP/1.1\r\nHost: localhost\r\nnonsense\r\n\r\n", {400}),
    ("a header without a name", "GET / HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n", {400}),
    ("a NUL in a value", "GET / HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n", {400}),
    ("no Host", "GET / HTTP/1.1\r\n\r\n", {400}),
    ("two Hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", {400}),
    ("headers longer than allowed", "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + "x" * 20_000 + "\r\n\r\n", {431}),
    ("more headers than allowed", "GET / HTTP/1.1\r\nHost: localhost\r\n" + "X: y\r\n" * 200 + "\r\n", {431}),
    ("a target longer than allowed", "GET /" + "x" * 20_000 + " HTTP/1.1\r\nHost: localhost\r\n\r\n", {414, 431}),
    ("no version", "GET /\r\nHost: localhost\r\n\r\n", {400, 505}),
    ("a version to come", "GET / HTTP/4.0\r\nHost: localhost\r\n\r\n", {505}),
    ("HTTP/2 without being asked", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 501, 505}),
    ("a method of control characters", "G\x01T / HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 501}),
    ("TLS on the plain port", bytes.fromhex("16030100c8010000c40303") + bytes(range(190)), {400}),
    ("an expectation nobody knows", PUBLISH + "Expect: the-impossible\r\nContent-Length: 27\r\n\r\n" + BODY, {417}),
]


@scenario("bad HTTP: every malformed request has the standard's answer and ends its connection", config="impatient.toml")
@beside_a_witness
def malformed(server):
    wrong = []
    for what, request, expected in MALFORMED:
        with server.connect() as connection:
            connection.send(request)
            status, _, body = connection.response()
            if status not in expected:
                wrong.append(f"{what}: answered {status} instead of {sorted(expected)}")
            elif not body:
                wrong.append(f"{what}: status {status} without a sentence that says why")
            elif not connection.closed() or connection.buffer:
                wrong.append(f"{what}: more came after the answer: {connection.buffer[:100]!r}")
    assert not wrong, "\n".join(wrong)
    until(lambda: server.counted("dunlin_protocol_errors_total") >= len(MALFORMED), "each to be counted in /metrics")


@scenario("bad HTTP: no malformed request smuggles a second one in", config="impatient.toml")
@beside_a_witness
def smuggling(server):
    smuggled = "POST /api/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 35\r\n\r\n" + '{"channel":"smuggled","data":"here"}'[:35]
    for carrier in (
        PUBLISH + f"Content-Length: {len(smuggled) + 5}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
        PUBLISH + f"Content-Length: 0\r\nContent-Length: {len(smuggled)}\r\n\r\n" + smuggled,
        PUBLISH + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + smuggled,
        PUBLISH + "Transfer-Encoding:\x0bchunked\r\nContent-Length: 0\r\n\r\n" + smuggled,
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: y\n\nPOST /api/publish HTTP/1.1\r\n\r\n" + smuggled,
    ):
        with server.connect() as connection:
            connection.send(carrier)
            status, _, _ = connection.response()
            assert status in (400, 501), (status, carrier)
            assert connection.closed() and not connection.buffer, f"a second answer: {connection.buffer!r}"
    assert server.post("/api/history", {"channel": "smuggled", "limit": 1})[1]["result"].get("publications", []) == []


@scenario("bad HTTP: unknown paths and methods are 404 and 405, and the connection goes on", config="impatient.toml")
@beside_a_witness
def unknown(server):
    with server.connect() as connection:
        for request, expected in (
            ("GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
            ("GET /api/publish HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
            ("DELETE /connection/poll HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
            ("POST /api/nonsense HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 404),
            ("GET /connection/../api/publish HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
            ("GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
            (PUBLISH + f"Content-Length: {len(BODY)}\r\n\r\n{BODY}", 200),
        ):
            connection.send(request)
            status, head, _ = connection.response()
            assert status == expected, (request, status)
            assert status != 405 or "allow:" in head.lower(), head


@scenario("bad HTTP: a hundred pipelined requests are answered in order, also in pieces of one byte")
@beside_a_witness
def pipelining(server):
    requests = "".join(
        f"POST /api/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        for body in (f'{{"channel":"pipe","data":{n}}}' for n in range(100))
    )
    with server.connect() as connection:
        connection.send(requests)
        answers = [connection.response() for _ in range(100)]
        assert [status for status, _, _ in answers] == [200] * 100
    with server.connect() as connection:
        for byte in requests[: len(requests) // 20]:
            connection.send(byte)
        assert connection.response()[0] == 200
    kept = server.post("/api/history", {"channel": "pipe", "limit": 100})[1]["result"]["publications"]
    assert [p["data"] for p in kept][-90:-10] == sorted(p["data"] for p in kept)[10:90] or len(kept) == 100


@scenario("bad HTTP: half a request and silence ends with 408 or a closed line, in time, and costs next to nothing", config="impatient.toml")
@beside_a_witness
def silence(server):
    before = server.memory_bytes()
    with contextlib.ExitStack() as stack:
        halves = ["", "GET", "GET / HTTP/1.1\r\nHost: loc", PUBLISH + "Content-Length: 100\r\n\r\n{", PUBLISH + "Transfer-Encoding: chunked\r\n\r\n5\r\nab"]
        connections = [(half, stack.enter_context(server.connect())) for half in halves * 40]
        for half, connection in connections:
            connection.send(half)
        assert server.memory_bytes() - before < 4 << 20, "200 silent connections cost more than 4 MiB"
        for half, connection in connections:
            status, _, _ = connection.response()
            assert status in (None, 408), (half, status)
            connection.closed()
    until(lambda: server.counted("dunlin_connections_timed_out_total") >= len(halves) * 40, "each time-out to be counted in /metrics")


@scenario("bad HTTP: a head that trickles in, a byte at a time, does not outlive its time-out", config="impatient.toml")
@beside_a_witness
def trickle(server):
    with server.connect() as connection:
        connection.socket.settimeout(0.1)
        ended = False
        for byte in "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + "y" * 100:
            connection.send(byte)
            with contextlib.suppress(TimeoutError):
                if not connection.receive() or b"408" in connection.buffer:
                    ended = True
                    break
        assert ended, "ten seconds of trickling were accepted"


if __name__ == "__main__":
    main()
