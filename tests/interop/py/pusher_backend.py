"""The HTTP API of the Pusher protocol through pusher, Pusher's own Python library, unmodified."""

import contextlib
import json

import pusher
from pusher.errors import PusherBadAuth, PusherBadRequest

from dunlin import frame, main, scenario, until


def backend(server, secret="the shop's own secret"):
    return pusher.Pusher(app_id="3", key="shop-key", secret=secret, host="127.0.0.1", port=server.client_port, ssl=False)


class Client:
    """A client that the backend signs for."""

    def __init__(self, server, signer):
        self.connection = server.websocket(path="/app/shop-key?protocol=7&client=py&version=1", connect=False)
        self.signer = signer
        self.socket_id = json.loads(self.next("pusher:connection_established")["data"])["socket_id"]

    def next(self, event):
        _, payload = self.connection.frame()
        message = json.loads(payload)
        assert message["event"] == event, message
        return message

    def subscribe(self, channel, user=None):
        data = {"channel": channel, **self.signer.authenticate(channel, self.socket_id, user)} if "-" in channel else {"channel": channel}
        self.connection.send(frame_of({"event": "pusher:subscribe", "data": data}))
        return json.loads(self.next("pusher_internal:subscription_succeeded")["data"])


def frame_of(message):
    return frame(json.dumps(message).encode())


@scenario("pusher (PyPI): events, batches, channels and users", config="pusher.toml")
def calls(server):
    signer = backend(server)
    ada = Client(server, signer)
    assert ada.subscribe("presence-room", {"user_id": "ada", "user_info": {"name": "Ada"}})["presence"]["ids"] == ["ada"]
    bob = Client(server, signer)
    assert bob.subscribe("presence-room", {"user_id": "bob"})["presence"]["count"] == 2
    added = json.loads(ada.next("pusher_internal:member_added")["data"])
    assert added["user_id"] == "bob", added
    for client in (ada, bob):
        client.subscribe("news")
    assert signer.trigger(["news", "presence-room"], "made", {"ü": "\u2028"}, socket_id=ada.socket_id) == {}
    assert sorted(bob.next("made")["channel"] for _ in range(2)) == ["news", "presence-room"]
    assert signer.trigger_batch([{"channel": "news", "name": "last", "data": {"n": 1}}]) == {}
    # Those before it have left her out.
    assert json.loads(ada.next("last")["data"]) == {"n": 1}
    assert signer.channels_info("presence-", ["user_count"]) == {"channels": {"presence-room": {"user_count": 2}}}
    assert signer.channel_info("presence-room", ["user_count", "subscription_count"]) == {"occupied": True, "user_count": 2, "subscription_count": 2}
    assert signer.channel_info("empty") == {"occupied": False}
    assert signer.users_info("presence-room") == {"users": [{"id": "ada"}, {"id": "bob"}]}


@scenario("pusher (PyPI): what is not signed, or is too much, is its exception", config="pusher.toml")
def refusals(server):
    for secret, data, refusal in [("a guess of the secret", "x", PusherBadAuth), ("the shop's own secret", "x" * 10_241, Exception)]:
        try:
            backend(server, secret).trigger("news", "made", data)
        except refusal:
            continue
        raise AssertionError(f"{refusal} is not raised")
    with contextlib.suppress(PusherBadRequest):
        backend(server).channels_info(None, ["user_count"])
        raise AssertionError("a user_count of all channels")
    assert until(lambda: backend(server).channels_info() == {"channels": {}}, "an empty list")


if __name__ == "__main__":
    main()
