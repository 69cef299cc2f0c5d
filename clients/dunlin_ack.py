"""Acknowledged delivery over an unmodified centrifuge-python, in a namespace with `ack`: see docs/acknowledgements.md.

    async def handle(publication):
        await store(publication.data)

    inbox = client.new_subscription("inbox:42", events=Acknowledged(client, "inbox:42", handle))
    await inbox.subscribe()
"""

import asyncio

import centrifuge

PAGE = 100


class Acknowledged(centrifuge.SubscriptionEventHandler):
    """Passes each message to `handle`, one after the other, and acknowledges it once that is done.

    A message comes again, after a reconnect, if `handle` was not done or its acknowledgement was lost; as long as this object
    lives, each offset is handled once. `on_state` is called with where the cursor stands: offset, top, unread, and where it
    applies trimmed_before, is_new, was_reset. After a failure of `handle` nothing is handled until that message comes again: with
    the next subscription, or after `ack_timeout_ms`.
    """

    def __init__(self, client, channel, handle, on_state=lambda state: None, on_error=lambda error: None):
        self.client, self.channel, self.handle = client, channel, handle
        self.on_state, self.on_error = on_state, on_error
        self.epoch, self.handled, self.acked, self.failed, self.last = "", 0, 0, 0, 0
        self.queue, self.worker = None, None

    async def on_subscribed(self, context):
        if self.worker:
            self.worker.cancel()
        self.failed = self.last = 0
        position = context.stream_position
        if position and position.epoch != self.epoch:
            self.epoch, self.handled, self.acked = position.epoch, 0, 0
        state = (context.data or {}).get("ack") if isinstance(context.data, dict) else None
        since = self.handled
        if state:
            self.acked = state["offset"]
            since = self.handled = max(self.handled, state["offset"])
            self.on_state(state)
        missing = state is not None and context.was_recovering and not context.recovered
        # Handlers run on the connection's own loop, which must go on reading meanwhile.
        self.queue = asyncio.Queue()
        top = state["top"] if state else 0
        self.worker = asyncio.create_task(self._work(self.queue, since, top if missing else since))

    async def on_publication(self, context):
        if self.queue:
            self.queue.put_nowait(context.pub)

    async def on_unsubscribed(self, context):
        if self.worker:
            self.worker.cancel()

    async def _work(self, queue, last, top):
        try:
            await self._acknowledge()
            # What one recovery does not hold is read page by page, before what comes later.
            while last < top:
                since = centrifuge.StreamPosition(offset=last, epoch=self.epoch)
                page = await self.client.get_subscription(self.channel).history(limit=PAGE, since=since)
                for publication in page.publications:
                    await self._take(publication)
                    last = publication.offset
                if not page.publications:
                    break
        except Exception as error:  # The next subscription begins at the cursor.
            self.failed = max(last, self.handled) + 1
            self.on_error(error)
        while True:
            publication = await queue.get()
            # What comes again begins with the first message that is not acknowledged: if that is a later one, the server has
            # given the other up (`ack_dead_letter`).
            if self.failed < publication.offset <= self.last:
                self.failed = 0
            self.last = publication.offset
            # What follows a message that was not handled waits for it.
            if 0 < self.failed < publication.offset:
                continue
            try:
                await self._take(publication)
                self.failed = 0
            except Exception as error:
                if self.handled < publication.offset:
                    self.failed = publication.offset
                self.on_error(error)

    async def _take(self, publication):
        if publication.offset > self.handled:
            await self.handle(publication)
            self.handled = publication.offset
        await self._acknowledge()

    async def _acknowledge(self):
        if self.handled <= self.acked:
            return
        offset = self.handled
        body = {"channel": self.channel, "offset": offset, "epoch": self.epoch}
        result = await self.client.rpc("dunlin.ack", body)
        self.acked = offset
        self.on_state(result.data)
