"""Bad WebSocket handshakes and frames over raw sockets: RFC 6455's own answer, counted, and no other client disturbed."""

import contextlib
import json
import zlib

from dunlin import beside_a_witness, frame, handshake, main, scenario, until

# (what is wrong, the request, the statuses it may be answered with)
HANDSHAKES = [
    ("no key", handshake().replace("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""), {400}),
    ("a key of the wrong length", handshake(key="c2hvcnQ="), {400}),
    ("a key that is not base64", handshake(key="!!!!!!!!!!!!!!!!!!!!!!=="), {400}),
    ("two keys", handshake(headers="Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), {400}),
    ("a version of 2010", handshake(version="8"), {426}),
    ("no version", handshake().replace("Sec-WebSocket-Version: 13\r\n", ""), {400, 426}),
    ("no Upgrade", handshake().replace("Upgrade: websocket\r\n", ""), {400, 426}),
    ("another Upgrade", handshake().replace("Upgrade: websocket", "Upgrade: h2c"), {400, 426}),
    ("no Connection", handshake().replace("Connection: Upgrade\r\n", ""), {400, 426}),
    ("a POST", handshake().replace("GET", "POST", 1), {400, 405}),
    ("HTTP/1.0", handshake().replace("HTTP/1.1", "HTTP/1.0"), {400, 426, 505}),
    ("a page of another host", handshake(headers="Origin: https://evil.example\r\n"), {403}),
    ("an extension that is not one", handshake(headers="Sec-WebSocket-Extensions: ;;=,\r\n"), {400}),
]

LONG_REASON = b"\x03\xe8" + b"x" * 124

# (what is wrong, the bytes after connect, the close code)
FRAMES = [
    ("an unmasked frame", frame("{}", masked=False), 1002),
    ("a reserved bit without extension", frame("{}", reserved=0b001), 1002),
    ("RSV1 without deflate", frame("{}", reserved=0b100), 1002),
    ("a reserved data opcode", frame("{}", opcode=3), 1002),
    ("a reserved control opcode", frame("", opcode=11), 1002),
    ("a fragmented ping", frame("x", opcode=9, fin=False), 1002),
    ("a ping of 126 bytes", frame("x" * 126, opcode=9), 1002),
    ("a continuation of nothing", frame("x", opcode=0), 1002),
    ("a message inside a message", frame("{", fin=False) + frame("{}"), 1002),
    ("a frame longer than allowed", frame("x", length=65537), 1009),
    ("a frame of 2^63 bytes", frame("x", length=1 << 63), {1002, 1009}),
    ("a message longer than allowed, in fragments", frame("x" * 60_000, fin=False) + frame("x" * 60_000, opcode=0), 1009),
    ("invalid UTF-8", frame(b'{"id": 2, "x": "\xc3\x28"}'), 1007),
    ("invalid UTF-8 across fragments", frame(b'{"\xe2\x82', fin=False) + frame(b"\x28", opcode=0), 1007),
    ("UTF-8 cut at the end", frame(b"\xe2\x82"), 1007),
    ("a surrogate", frame(b"\xed\xa0\x80"), 1007),
    ("a close with one byte", frame(b"\x03", opcode=8), 1002),
    ("a close with a code nobody may send", frame(b"\x03\xed", opcode=8), 1002),
    ("a close with an invalid reason", frame(b"\x03\xe8\xff\xff", opcode=8), 1007),
    ("a close longer than control frames are", frame(LONG_REASON, opcode=8), 1002),
    ("a length not in its shortest form", b"\x81\xfe\x00\x02\x00\x00\x00\x00{}", {1002, None}),
]


@scenario("bad WebSocket: every bad handshake has its status and a sentence", config="impatient.toml")
@beside_a_witness
def handshakes(server):
    wrong = []
    for what, request, expected in HANDSHAKES:
        status, head, body = server.exchange(request)
        if status not in expected:
            wrong.append(f"{what}: answered {status} instead of {sorted(expected)}")
        elif not body:
            wrong.append(f"{what}: status {status} without a sentence that says why")
        elif status == 426 and "sec-websocket-version: 13" not in head.lower():
            wrong.append(f"{what}: 426 does not name version 13 (RFC 6455 §4.4)")
    assert not wrong, "\n".join(wrong)
    until(lambda: server.counted("dunlin_http_request_errors_total") >= len(HANDSHAKES), "each to be counted in /metrics")


@scenario("bad WebSocket: every bad frame ends its connection with the code for it", config="impatient.toml")
@beside_a_witness
def frames(server):
    wrong = []
    for what, data, expected in FRAMES:
        with server.websocket() as connection:
            connection.send(data)
            code, _ = connection.close_code()
            expected = expected if isinstance(expected, set) else {expected}
            if code not in expected:
                wrong.append(f"{what}: closed with {code} instead of {expected}")
            connection.closed()
    assert not wrong, "\n".join(wrong)
    until(lambda: server.counted("dunlin_protocol_errors_total") >= len(FRAMES) - 1, "each to be counted in /metrics")


@scenario("bad WebSocket: a compressed bomb is refused by its inflated size (1009)", config="impatient.toml")
@beside_a_witness
def bomb(server):
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = compressor.compress(b" " * (64 << 20)) + compressor.flush(zlib.Z_SYNC_FLUSH)
    packed = packed.removesuffix(b"\0\0\xff\xff")
    assert len(packed) < 66_000
    before = server.memory_bytes()
    with server.websocket(headers="Sec-WebSocket-Extensions: permessage-deflate\r\n") as connection:
        connection.send(frame(packed[:60_000], reserved=0b100))
        code, _ = connection.close_code()
        assert code == 1009, code
    with server.websocket(headers="Sec-WebSocket-Extensions: permessage-deflate\r\n") as connection:
        connection.send(frame(b"\xff\xff\xff\xff", reserved=0b100))
        code, _ = connection.close_code()
        assert code in (1002, 1007), code
    assert server.memory_bytes() - before < 4 << 20


@scenario("bad WebSocket: half a frame and silence costs its bytes and ends with the missing pong", config="impatient.toml")
@beside_a_witness
def half_a_frame(server):
    before = server.memory_bytes()
    whole = frame(json.dumps({"id": 5, "publish": {"channel": "news", "data": "x" * 30_000}}))
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(server.websocket()) for _ in range(100)]
        for n, connection in enumerate(connections):
            connection.send(whole[: (1, 3, 7, 100)[n % 4]])
        cost = server.memory_bytes() - before
        assert cost < 4 << 20, f"100 halves of a frame cost {cost} bytes"
        for connection in connections:
            code, reason = connection.close_code()
            assert code == 3012, (code, reason)


@scenario("bad WebSocket: a socket that never sends connect is closed in time (3502, stale)", config="impatient.toml")
@beside_a_witness
def stale(server):
    with server.websocket(connect=False) as connection:
        code, reason = connection.close_code()
        assert (code, reason) == (3502, "stale")


@scenario("bad WebSocket: a slow reader costs its outbox at most, is disconnected (3008, slow) and counted", config="small_outbox.toml")
@beside_a_witness
def slow_reader(server):
    SLOW = 20
    with contextlib.ExitStack() as stack:
        readers = []
        for _ in range(SLOW):
            connection = server.connect(receive_buffer=4096)
            stack.enter_context(connection)
            connection.send(handshake())
            assert connection.response()[0] == 101
            connection.send(frame('{"id":1,"connect":{}}') + frame('{"id":2,"subscribe":{"channel":"flood"}}'))
            connection.frame(), connection.frame()
            readers.append(connection)
        before, peak = server.memory_bytes(), 0
        data = "x" * 30_000
        # Enough to fill what the kernel holds for a connection (4 MiB at most) and the outbox beyond it.
        for n in range(400):
            server.publish("flood", data)
            peak = max(peak, server.memory_bytes())
        # The history of 100 × 30 KB is there anyway; each reader may have 128 KiB, shared frames counted once.
        allowed = 100 * 30_000 + SLOW * 131_072 + (8 << 20)
        assert peak - before < allowed, f"the flood cost {peak - before} bytes, allowed are {allowed}"
        until(lambda: server.counted("dunlin_slow_client_disconnects_total") >= SLOW, "the slow readers to be counted in /metrics")
        code, reason = readers[0].close_code()
        assert code in (3008, None), (code, reason)


if __name__ == "__main__":
    main()
