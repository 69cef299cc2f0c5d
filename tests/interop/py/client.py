"""centrifuge-python, unmodified, over WebSocket."""

import json

import centrifuge

from dunlin import Line, eventually, main, scenario
from members import member


@scenario("centrifuge-python: subscribe, publish, history, unsubscribe")
async def channel_life(server):
    async with member(server) as ann, member(server, "chat") as bob:
        chat = await ann.join("chat")
        await chat.subscription.publish({"from": "ann"})
        answer = server.publish("chat", {"from": "the backend"})
        await eventually(lambda: len(bob.rooms["chat"].all("publication")) == 2, "both messages at bob")
        assert [(c.pub.offset, c.pub.data["from"]) for c in bob.rooms["chat"].all("publication")] == [(1, "ann"), (2, "the backend")]
        history = await chat.subscription.history(limit=-1)
        assert (history.offset, history.epoch) == (answer["offset"], answer["epoch"])
        assert [p.data["from"] for p in history.publications] == ["ann", "the backend"]
        backwards = await chat.subscription.history(limit=1, reverse=True)
        assert [p.offset for p in backwards.publications] == [2]
        await chat.subscription.unsubscribe()
        server.publish("chat", {"from": "the void"})
        await eventually(lambda: len(bob.rooms["chat"].all("publication")) == 3, "the third message at bob")
        assert len(chat.all("publication")) == 2


@scenario("centrifuge-python: presence, presence stats, join and leave", config="presence.toml")
async def who_is_there(server):
    async with member(server) as ann:
        room = await ann.join("room", join_leave=True)
        async with member(server, "room") as bob:
            await eventually(lambda: any(c.info.client == bob.id for c in room.all("join")), "bob's join")
            presence = await room.subscription.presence()
            assert set(presence.clients) == {ann.id, bob.id}
            stats = await room.subscription.presence_stats()
            assert (stats.num_clients, stats.num_users) == (2, 1)
            bob_id = bob.id
        await eventually(lambda: any(c.info.client == bob_id for c in room.all("leave")), "bob's leave")


@scenario("centrifuge-python, Protobuf: publishes bytes, reads history and presence, recovers what it missed, is notified why it is disconnected", config="presence.toml")
async def protobuf(server):
    line = Line(server.client_port)
    async with member(line, use_protobuf=True) as ann, member(server, "news") as bob:
        news = await ann.join("news", recoverable=True, positioned=True, join_leave=True)
        await news.subscription.publish(b'{"from":"ann"}')
        server.publish("news", {"from": "the backend"})
        await eventually(lambda: len(news.all("publication")) == 2, "both messages")
        assert [(c.pub.offset, json.loads(c.pub.data)["from"]) for c in news.all("publication")] == [(1, "ann"), (2, "the backend")]
        await eventually(lambda: len(bob.rooms["news"].all("publication")) == 2, "both messages at the JSON client")
        assert bob.rooms["news"].all("publication")[0].pub.data == {"from": "ann"}
        history = await news.subscription.history(limit=-1)
        assert [p.offset for p in history.publications] == [1, 2]
        assert set((await news.subscription.presence()).clients) == {ann.id, bob.id}
        line.fail()
        for n in (3, 4):
            server.publish("news", n)
        line.mend()
        await eventually(lambda: len(news.all("subscribed")) == 2 and len(news.all("publication")) == 4, "what was missed")
        assert (news.all("subscribed")[1].was_recovering, news.all("subscribed")[1].recovered) == (True, True)
        assert [c.pub.data for c in news.all("publication")[2:]] == [b"3", b"4"]
        server.post("/api/disconnect", {"user": "", "client": ann.id})
        await eventually(lambda: ann.heard("disconnected"), "the disconnect")
        assert ann.heard("disconnected").code == 3503
    line.close()


@scenario("centrifuge-python: stays through pings and recovers over a restart of the server", config="presence.toml")
async def restart(server):
    async with member(server, "news") as ann:
        news = ann.rooms["news"]
        server.publish("news", 1)
        await eventually(lambda: news.heard("publication"), "the first message")
        assert server.terminate() == 0
        server.start()
        await eventually(lambda: len(news.all("subscribed")) == 2, "the subscription to come back")
        first, second = news.all("subscribed")
        assert (second.was_recovering, second.recovered) == (True, False)
        assert first.stream_position.epoch != second.stream_position.epoch
        assert [c.code for c in ann.all("connecting")][1:2] == [3001]
        server.publish("news", 2)
        await eventually(lambda: len(news.all("publication")) == 2, "the message after the restart")


@scenario("centrifuge-python: an unknown namespace refuses the subscription with error 102", config="delivery.toml")
async def refusal(server):
    async with member(server) as ann:
        elsewhere = await ann.join("no-such-namespace:x")
        assert elsewhere.heard("unsubscribed").code == 102
        try:
            await ann.client.rpc("anything", {})
            raise AssertionError("an unknown method was answered")
        except centrifuge.CentrifugeError as error:
            assert error.code == 108, error


if __name__ == "__main__":
    main()
