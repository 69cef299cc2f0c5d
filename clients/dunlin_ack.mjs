// Acknowledged delivery over an unmodified centrifuge-js, in a namespace with `ack`: see docs/acknowledgements.md.
//
//   const inbox = client.newSubscription("inbox:42");
//   acknowledged(client, inbox, async ({ data, offset }) => { await store(data); });
//   inbox.subscribe();

/// Passes each message to `handle`, one after the other, and acknowledges it once that is done. A message comes again, after a
/// reconnect, if `handle` was not done or its acknowledgement was lost; within one page load each offset is handled once.
///
/// `onState({ offset, top, unread, trimmed_before, is_new, was_reset })` is called with each subscription, acknowledgement and
/// acknowledgement of another device. `onError(error)` is called if `handle` or an acknowledgement fails; after a failure of
/// `handle` nothing is handled until that message comes again: with the next subscription, or after `ack_timeout_ms`. `protobuf`: the client is one of `centrifuge/build/protobuf`.
export function acknowledged(client, subscription, handle, { onState = () => {}, onError = () => {}, protobuf = false } = {}) {
  const channel = subscription.channel;
  let epoch = "", handled = 0, acked = 0, failed = 0, last = 0;
  let work = Promise.resolve(), life = 0, acking = false;

  const text = (data) => (data instanceof Uint8Array ? JSON.parse(new TextDecoder().decode(data)) : data);

  async function acknowledge() {
    // One at a time: acknowledgements are cumulative, so that the next one stands for all that were handled meanwhile.
    if (acking || handled <= acked) return;
    acking = true;
    try {
      while (handled > acked) {
        const position = { channel, offset: handled, epoch };
        const sent = protobuf ? new TextEncoder().encode(JSON.stringify(position)) : position;
        const { data } = await client.rpc("dunlin.ack", sent);
        acked = Math.max(acked, position.offset);
        onState(text(data));
      }
    } catch (error) {
      // The next message, or the next subscription, tries again.
      onError(error);
    } finally {
      acking = false;
    }
  }

  function enqueue(publication, of = life) {
    work = work.then(async () => {
      if (of !== life) return;
      // It comes again because its acknowledgement was lost.
      if (publication.offset <= handled) return acknowledge();
      // What comes again begins with the first message that is not acknowledged: if that is a later one, the server has given the
      // other up (`ack_dead_letter`).
      if (publication.offset <= last && publication.offset > failed) failed = 0;
      last = publication.offset;
      // What follows a message that was not handled waits for it.
      if (failed > 0 && publication.offset > failed) return;
      try {
        await handle(publication);
        [handled, failed] = [publication.offset, 0];
      } catch (error) {
        failed = publication.offset;
        return onError(error);
      }
      acknowledge();
    });
  }

  function read(offset, of) {
    work = work.then(() => {
      if (of !== life || failed > 0) return;
      handled = Math.max(handled, offset);
      acknowledge();
    });
  }

  /// What one recovery does not hold is read page by page, before what comes later.
  function page(since, top, of) {
    work = work.then(async () => {
      let last = since;
      while (of === life && last < top) {
        const { publications } = await subscription.history({ since: { offset: last, epoch }, limit: 100 });
        if (publications.length === 0) return;
        for (const publication of publications) {
          if (of !== life) return;
          if (publication.offset > handled) await handle(publication);
          last = publication.offset;
          handled = Math.max(handled, last);
          acknowledge();
        }
      }
    }).catch((error) => { failed = Math.max(handled, since) + 1; onError(error); });
  }

  subscription.on("subscribed", (context) => {
    life += 1;
    failed = last = 0;
    const state = text(context.data)?.ack;
    const position = context.streamPosition;
    if (position && position.epoch !== epoch) [epoch, handled, acked] = [position.epoch, 0, 0];
    if (!state) return;
    handled = Math.max(handled, state.offset);
    acked = state.offset;
    onState(state);
    acknowledge();
    if (context.wasRecovering && !context.recovered) page(handled, position?.offset ?? state.top, life);
    // In an inbox what was replaced or has expired is left out of a recovery: it is read with what is there.
    else if (context.recovered && position) queueMicrotask(() => read(position.offset, life));
  });
  subscription.on("publication", (publication) => enqueue(publication));
  client.on("message", ({ data }) => {
    const state = text(data)?.ack;
    if (state?.channel !== channel) return;
    // Another device has read these: what is not handled yet is not handled any more.
    handled = Math.max(handled, state.offset);
    acked = Math.max(acked, state.offset);
    onState(state);
  });
}

/// Returns where the cursor stands: `{ offset, epoch, top, unread, ... }`.
export async function unread(client, channel) {
  return (await client.rpc("dunlin.unread", { channel })).data;
}
