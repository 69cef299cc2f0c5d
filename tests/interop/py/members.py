"""centrifuge-python, Centrifugal's own client, as a member of a channel that remembers all it hears."""

import contextlib

import centrifuge
import jwt

from dunlin import TOKEN_SECRET, eventually

EVENTS = ("connecting", "connected", "disconnected", "subscribing", "subscribed", "unsubscribed", "publication", "join", "leave", "error")


def token(user="ann", secret=TOKEN_SECRET, algorithm="HS256", **claims):
    """A connection token as a backend makes it."""
    return jwt.encode({"sub": user, **claims}, secret, algorithm)


class Ear:
    """The event handler of a client or of a subscription: keeps (event, context)."""

    def __init__(self):
        self.events = []

    def __getattr__(self, name):
        event = name.removeprefix("on_")
        if event not in EVENTS:
            raise AttributeError(name)

        async def handler(context):
            self.events.append((event, context))

        return handler

    def all(self, event):
        return [context for name, context in self.events if name == event]

    def heard(self, event):
        """The last context of that event, None if it never came."""
        return (self.all(event) or [None])[-1]


class Member(Ear):
    """A client; `rooms` has an Ear for each channel it joined."""

    def __init__(self, address, **options):
        super().__init__()
        self.client = centrifuge.Client(address, events=self, min_reconnect_delay=0.02, max_reconnect_delay=0.3, proxy=None, **options)
        self.rooms = {}

    @property
    def id(self):
        return self.heard("connected").client

    async def join(self, channel, **options):
        ear = self.rooms[channel] = Ear()
        subscription = self.client.new_subscription(channel, events=ear, min_resubscribe_delay=0.02, max_resubscribe_delay=0.3, **options)
        ear.subscription = subscription
        await subscription.subscribe()
        await eventually(lambda: ear.heard("subscribed") or ear.heard("unsubscribed"), f"the subscription to {channel}")
        return ear


@contextlib.asynccontextmanager
async def member(server, *channels, **options):
    """A connected member of the given channels, disconnected at the end. `server`: or a Line to one."""
    it = Member(f"ws://127.0.0.1:{getattr(server, 'client_port', None) or server.port}/connection/websocket", **options)
    try:
        await it.client.connect()
        await eventually(lambda: it.heard("connected"), "the connection")
        for channel in channels:
            await it.join(channel)
        yield it
    finally:
        await it.client.disconnect()
