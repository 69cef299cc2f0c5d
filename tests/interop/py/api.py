"""The server API through cent, Centrifugal's own Python library, unmodified."""

import contextlib

import cent

from dunlin import API_KEY, eventually, main, scenario, until
from members import member, token


def client(server, key=API_KEY):
    return cent.Client(f"{server.origin}/api", key)


def history(api, channel, **options):
    return api.history(cent.HistoryRequest(channel=channel, limit=-1, **options))


@scenario("cent: publish answers with offset and epoch, history has the message")
def publish(server):
    with client(server) as api:
        first = api.publish(cent.PublishRequest(channel="news", data={"text": "hello"}, tags={"kind": "greeting"}))
        second = api.publish(cent.PublishRequest(channel="news", data=[1, 2]))
        assert (first.offset, second.offset) == (1, 2)
        assert first.epoch and first.epoch == second.epoch
        kept = history(api, "news")
        assert (kept.offset, kept.epoch) == (2, first.epoch)
        assert [(p.offset, p.data, p.tags) for p in kept.publications] == [(1, {"text": "hello"}, {"kind": "greeting"}), (2, [1, 2], None)]
        skipped = api.publish(cent.PublishRequest(channel="news", data="passing", skip_history=True))
        assert skipped.offset == 0 or skipped.offset == 2
        assert len(history(api, "news").publications) == 2


@scenario("cent: broadcast publishes to every channel and answers for each", config="delivery.toml", workers=4)
def broadcast(server):
    with client(server) as api:
        channels = [f"user-{n}" for n in range(20)]
        api.publish(cent.PublishRequest(channel=channels[3], data="earlier"))
        result = api.broadcast(cent.BroadcastRequest(channels=[*channels, "no-such-namespace:x"], data={"to": "all"}))
        assert [r.result.offset for r in result.responses[:-1]] == [2 if n == 3 else 1 for n in range(20)]
        assert result.responses[-1].error.code == 102
        for channel in channels:
            assert history(api, channel).publications[-1].data == {"to": "all"}


@scenario("cent: idempotency_key makes a repeated publish the same publish, per channel")
def idempotency(server):
    with client(server) as api:
        request = cent.PublishRequest(channel="orders", data={"order": 1}, idempotency_key="order-1")
        first, again = api.publish(request), api.publish(request)
        assert (first.offset, first.epoch) == (again.offset, again.epoch) == (1, first.epoch)
        assert api.publish(cent.PublishRequest(channel="orders", data={"order": 2}, idempotency_key="order-2")).offset == 2
        assert api.publish(cent.PublishRequest(channel="others", data={}, idempotency_key="order-1")).offset == 1
        everywhere = cent.BroadcastRequest(channels=["a", "b"], data={}, idempotency_key="once")
        for _ in range(2):
            assert [r.result.offset for r in api.broadcast(everywhere).responses] == [1, 1]
        assert len(history(api, "orders").publications) == 2


@scenario("cent: history by limit, since, reverse; history_remove keeps the position")
def histories(server):
    with client(server) as api:
        for n in range(1, 6):
            epoch = api.publish(cent.PublishRequest(channel="news", data=n)).epoch
        position = api.history(cent.HistoryRequest(channel="news"))
        assert (position.publications, position.offset, position.epoch) == ([], 5, epoch)
        offsets = lambda **options: [p.offset for p in api.history(cent.HistoryRequest(channel="news", **options)).publications]
        assert offsets(limit=2) == [1, 2]
        assert offsets(limit=2, since=cent.StreamPosition(offset=2, epoch=epoch)) == [3, 4]
        assert offsets(limit=2, since=cent.StreamPosition(offset=4, epoch=epoch), reverse=True) == [3, 2]
        assert offsets(limit=3, reverse=True) == [5, 4, 3]
        try:
            offsets(limit=2, since=cent.StreamPosition(offset=2, epoch="another"))
            raise AssertionError("an unknown epoch was answered")
        except cent.CentApiResponseError as error:
            assert error.code == 112
        api.history_remove(cent.HistoryRemoveRequest(channel="news"))
        removed = history(api, "news")
        assert (removed.publications, removed.offset, removed.epoch) == ([], 5, epoch)
        assert api.publish(cent.PublishRequest(channel="news", data=6)).offset == 6


@scenario("cent: presence, presence_stats, channels with a pattern, info", config="presence.toml", workers=4)
async def insight(server):
    with client(server) as api:
        async with member(server, "room-1") as ann, member(server, "room-1"), member(server, "hall"):
            present = api.presence(cent.PresenceRequest(channel="room-1")).presence
            assert len(present) == 2 and present[ann.id].client == ann.id
            stats = api.presence_stats(cent.PresenceStatsRequest(channel="room-1"))
            assert (stats.num_clients, stats.num_users) == (2, 1)
            everything = api.channels(cent.ChannelsRequest()).channels
            assert {name: info.num_clients for name, info in everything.items()} == {"room-1": 2, "hall": 1}
            assert set(api.channels(cent.ChannelsRequest(pattern="room-*")).channels) == {"room-1"}
            (node,) = api.info(cent.InfoRequest()).nodes
            assert (node.num_clients, node.num_subs, node.num_channels) == (3, 3, 2)
            assert node.uid and node.name and node.version
        await eventually(lambda: api.channels(cent.ChannelsRequest()).channels == {}, "the channels to be empty")


@scenario("cent: subscribe, unsubscribe and disconnect reach a user's clients on every worker, and nobody else's", config="tokens.toml", workers=4)
async def control(server):
    async with contextlib.AsyncExitStack() as stack:
        enter = lambda user: stack.enter_async_context(member(server, token=token(user)))
        devices = [await enter("ann") for _ in range(8)]
        bob = await enter("bob")
        api = stack.enter_context(client(server))
        api.subscribe(cent.SubscribeRequest(user="ann", channel="given", data={"welcome": True}))
        await eventually(lambda: all(device.heard("subscribed") for device in devices), "ann's devices to be subscribed")
        assert devices[0].heard("subscribed").data == {"welcome": True}
        api.publish(cent.PublishRequest(channel="given", data=1))
        await eventually(lambda: all(device.heard("publication") for device in devices), "the publication")

        first, *others = devices
        api.unsubscribe(cent.UnsubscribeRequest(user="ann", channel="given", client=first.id))
        await eventually(lambda: first.heard("unsubscribed"), "one device to be unsubscribed")
        assert not any(device.heard("unsubscribed") for device in others)

        api.disconnect(cent.DisconnectRequest(user="ann", whitelist=[first.id], disconnect=cent.Disconnect(code=4501, reason="enough")))
        await eventually(lambda: all(device.heard("disconnected") for device in others), "the other devices to be disconnected")
        assert {(device.heard("disconnected").code, device.heard("disconnected").reason) for device in others} == {(4501, "enough")}
        assert not first.heard("disconnected")
        assert [event for event, _ in bob.events] == ["connecting", "connected"]


@scenario("cent: batch answers every command in order, in sequence or in parallel", workers=4)
def batch(server):
    with client(server) as api:
        requests = [cent.PublishRequest(channel=f"c{n % 3}", data=n) for n in range(30)]
        requests += [cent.BroadcastRequest(channels=["c0", "c1"], data="all"), cent.HistoryRequest(channel="c0", limit=1)]
        *published, broadcasted, kept = api.batch(cent.BatchRequest(requests=requests)).replies
        for n in range(3):
            assert [reply.offset for reply in published[n::3]] == list(range(1, 11))
            assert [p.data for p in history(api, f"c{n}").publications][:10] == list(range(n, 30, 3))
        assert [response.result.offset for response in broadcasted.responses] == [11, 11]
        assert [p.data for p in kept.publications] == [0]

        *published, broadcasted, kept = api.batch(cent.BatchRequest(requests=requests, parallel=True)).replies
        assert sorted(reply.offset for reply in published[::3] + [broadcasted.responses[0].result]) == list(range(12, 23))


@scenario("cent: an unknown namespace is error 102; presence that is off is error 108", config="delivery.toml")
def refusals(server):
    with client(server) as api:
        for code, call in (
            (102, lambda: api.publish(cent.PublishRequest(channel="no-such-namespace:x", data=1))),
            (108, lambda: api.presence(cent.PresenceRequest(channel="news"))),
            (108, lambda: api.presence_stats(cent.PresenceStatsRequest(channel="news"))),
            (107, lambda: api.publish(cent.PublishRequest(channel="", data=1))),
            (107, lambda: api.publish(cent.PublishRequest(channel="x" * 1000, data=1))),
        ):
            try:
                call()
                raise AssertionError(f"answered instead of error {code}")
            except cent.CentApiResponseError as error:
                assert error.code == code, (error.code, code)


@scenario("cent: without the right key nothing is answered but 401", config="tokens.toml")
def keys(server):
    with client(server) as api:
        assert api.publish(cent.PublishRequest(channel="news", data=1)).offset == 1
    for wrong in ("", "wrong", API_KEY[:-1]):
        with client(server, wrong) as api:
            try:
                api.publish(cent.PublishRequest(channel="news", data=2))
                raise AssertionError("published with a wrong key")
            except cent.CentUnauthorizedError:
                pass
    status, answer = server.post("/api/publish", {"channel": "news", "data": 3})
    assert status == 401 and "X-API-Key" in str(answer), (status, answer)
    until(lambda: server.counted("dunlin_http_request_errors_total") >= 4, "the refusals in /metrics")


if __name__ == "__main__":
    main()
