"""Acknowledgements by centrifuge-python and the helper."""

import pathlib
import sys

import centrifuge
import jwt

from dunlin import eventually, main, scenario

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "clients"))
from dunlin_ack import Acknowledged  # noqa: E402


async def device(server, name, channel, handle):
    token = jwt.encode({"sub": "ann", "info": {"device": name}}, "secret", algorithm="HS256")
    client = centrifuge.Client(f"ws://127.0.0.1:{server.client_port}/connection/websocket", token=token)
    events = Acknowledged(client, channel, handle)
    subscription = client.new_subscription(channel, events=events)
    await client.connect()
    await subscription.subscribe()
    return client


@scenario("centrifuge-python: what is not acknowledged comes again, page by page, and what is does not", config="acks.toml")
async def acknowledgements(server):
    def unread():
        body = {"user": "ann", "channel": "inbox:ann", "device": "phone"}
        return server.post("/api/unread", body)[1]["result"]["unread"]

    for number in range(120):
        server.publish("inbox:ann", {"number": number})
    first, second = [], []

    async def until_fifty(publication):
        if publication.offset > 50:
            raise RuntimeError("the application fails")
        first.append(publication.offset)

    async def all_of_them(publication):
        second.append(publication.offset)

    client = await device(server, "phone", "inbox:ann", until_fifty)
    await eventually(lambda: unread() == 70, "fifty acknowledgements")
    await client.disconnect()
    client = await device(server, "phone", "inbox:ann", all_of_them)
    await eventually(lambda: unread() == 0, "the rest")
    server.publish("inbox:ann", {"number": 120})
    await eventually(lambda: len(second) == 71 and unread() == 0, "one that comes now")
    assert (first, second) == (list(range(1, 51)), list(range(51, 122)))
    await client.disconnect()


if __name__ == "__main__":
    main()
