"""Connection tokens, made with PyJWT as a backend would, presented by centrifuge-python and on the HTTP transports."""

import json
import time
import urllib.parse

import jwt

from dunlin import API_KEY, eventually, main, scenario
from members import Member, member, token

KEY = {"X-API-Key": API_KEY}


def in_seconds(seconds):
    return int(time.time()) + seconds


@scenario("tokens: a signed token lets its user in, whichever HMAC signs it", config="tokens.toml")
async def welcome(server):
    for algorithm in ("HS256", "HS384", "HS512"):
        async with member(server, "news", token=token(algorithm=algorithm, exp=in_seconds(60))) as ann:
            present = server.post("/api/presence", {"channel": "news"}, KEY)[1]["result"]["presence"]
            assert [info["user"] for info in present.values()] == ["ann"]
            server.publish("news", algorithm, KEY)
            await eventually(lambda: ann.rooms["news"].heard("publication"), "the message")


@scenario("tokens: the channels of a token are subscribed by the server", config="tokens.toml")
async def channels(server):
    async with member(server, token=token(exp=in_seconds(60), channels=["private:ann", "news"])) as ann:
        await eventually(lambda: {c.channel for c in ann.all("subscribed")} == {"private:ann", "news"}, "both subscriptions")
        server.publish("private:ann", {"for": "ann"}, KEY)
        await eventually(lambda: ann.heard("publication"), "the message")
        assert (ann.heard("publication").channel, ann.heard("publication").pub.data) == ("private:ann", {"for": "ann"})
        # What the token does not open stays closed.
        refused = await ann.join("private:bob")
        assert refused.heard("unsubscribed").code == 103


@scenario("tokens: none, a forged, a broken and an unsigned one are refused for good", config="tokens.toml")
async def refused(server):
    unsigned = jwt.encode({"sub": "ann"}, "", "none")
    for wrong in ("", "nonsense", token(secret="another-secret-that-nobody-knows"), token()[:-3], unsigned, token(nbf=in_seconds(600))):
        intruder = Member(f"ws://127.0.0.1:{server.client_port}/connection/websocket", token=wrong)
        await intruder.client.connect()
        await eventually(lambda: intruder.heard("disconnected"), f"the refusal of {wrong!r}")
        assert intruder.heard("disconnected").code in (101, 3500, 3507), intruder.heard("disconnected")
        assert not intruder.heard("connected")
        await intruder.client.disconnect()


@scenario("tokens: an expired token is error 109, and a fresh one from get_token gets in", config="tokens.toml")
async def expired(server):
    asked = []

    async def get_token():
        asked.append(True)
        return token(exp=in_seconds(60))

    async with member(server, token=token(exp=in_seconds(-60)), get_token=get_token) as ann:
        assert asked and ann.heard("connected")


@scenario("tokens: a connection is kept by refresh beyond the life of its first token", config="tokens.toml")
async def refresh(server):
    asked = []

    async def get_token():
        asked.append(time.monotonic())
        return token(exp=in_seconds(2 if len(asked) < 3 else 60))

    async with member(server, "news", get_token=get_token) as ann:
        await eventually(lambda: len(asked) >= 3, "two refreshes")
        server.publish("news", 1, KEY)
        await eventually(lambda: ann.rooms["news"].heard("publication"), "the message")
        assert len(ann.all("connected")) == 1, "the client had to reconnect"


@scenario("tokens: the HTTP transports ask for the same token", config="tokens.toml")
def streams(server):
    for connect, welcome in (({"token": token(exp=in_seconds(60))}, True), ({"token": "nonsense"}, False), ({}, False)):
        connect["subs"] = {"news": {}}
        query = urllib.parse.quote(json.dumps(connect))
        body = json.dumps(connect).encode()
        for request in (
            f"GET /connection/uni_sse?cf_connect={query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
            b"POST /connection/uni_http_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body,
        ):
            with server.connect() as connection:
                connection.send(request)
                while b'"connect"' not in connection.buffer and b'"disconnect"' not in connection.buffer and b"HTTP/1.1 4" not in connection.buffer:
                    assert connection.receive(), connection.buffer
                assert (b'"connect":' in connection.buffer) == welcome, connection.buffer


@scenario("tokens: a long-poll shows its token as a bearer, or is answered 401", config="tokens.toml")
def long_poll(server):
    poll = "GET /connection/poll?channel=news&timeout=0 HTTP/1.1\r\nHost: localhost\r\n{}\r\n"
    status, _, body = server.exchange(poll.format(f"Authorization: Bearer {token(exp=in_seconds(60))}\r\n"))
    assert status == 200 and "cursor" in json.loads(body), (status, body)
    for header in ("", "Authorization: Bearer nonsense\r\n", f"Authorization: Bearer {token(exp=in_seconds(-60))}\r\n"):
        status, _, body = server.exchange(poll.format(header))
        assert status == 401, (header, status, body)


if __name__ == "__main__":
    main()
