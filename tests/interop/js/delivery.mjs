// No loss, no duplicate, no reordering: several workers, publishers, and clients whose lines keep breaking count every offset.

import { assert, range, scenario, until, watch } from "./dunlin.mjs";

const CHANNELS = range(1, 6).map((n) => `flock-${n}`);
const PUBLISHERS = 4;
const MESSAGES_PER_PUBLISHER = 750;
const CLIENTS_PER_TRANSPORT = { websocket: 8, http_stream: 3, sse: 3 };
const CUTS = 25;

await scenario("delivery: every offset once and in order, over breaking lines, four workers, four publishers", async (t) => {
  const server = await t.server({ config: "delivery.toml", workers: 4 });
  const lines = await Promise.all(range(1, 4).map(() => t.line(server)));
  const records = [];
  for (const [transport, clients] of Object.entries(CLIENTS_PER_TRANSPORT)) {
    for (const n of range(1, clients)) {
      const client = await t.client(lines[n % lines.length], transport);
      for (const channel of CHANNELS) records.push({ channel, name: `${transport} ${n}`, ...(await watch(client, channel)) });
    }
  }

  // What was published, by the server's own answer: channel -> offset -> data.
  const published = new Map(CHANNELS.map((channel) => [channel, new Map()]));
  const publishing = Promise.all(
    range(1, PUBLISHERS).map(async (publisher) => {
      for (let n = 0; n < MESSAGES_PER_PUBLISHER; ) {
        // Alone and in batches, so that messages of several publishers meet in one channel and in one loop turn.
        const batch = range(n, Math.min(n + (n % 7), MESSAGES_PER_PUBLISHER - 1)).map((n) => ({ channel: CHANNELS[(publisher + n) % CHANNELS.length], data: { publisher, n } }));
        const { replies } = await server.api("batch", { commands: batch.map((publish) => ({ publish })) });
        replies.forEach(({ publish, error }, index) => {
          assert(publish, `not published: ${JSON.stringify(error)}`);
          const { channel, data } = batch[index];
          assert(!published.get(channel).has(publish.offset), `offset ${publish.offset} of ${channel} was given twice`);
          published.get(channel).set(publish.offset, data);
        });
        n += batch.length;
      }
    }),
  ).finally(() => (publishing.over = true));

  let cuts = 0;
  const breaking = (async () => {
    while (!publishing.over || cuts < CUTS) {
      const line = lines[cuts++ % lines.length];
      line.fail();
      await new Promise((resume) => setTimeout(resume, 20));
      line.mend();
      await new Promise((resume) => setTimeout(resume, 60));
    }
  })();
  await Promise.all([publishing, breaking]);

  const total = [...published.values()].reduce((sum, offsets) => sum + offsets.size, 0);
  assert.equal(total, PUBLISHERS * MESSAGES_PER_PUBLISHER);
  for (const { channel, name, publications, subscribed, received } of records) {
    const expected = published.get(channel);
    await received(expected.size);
    assert.deepEqual(publications.map(({ offset }) => offset), range(1, expected.size), `${name}: the offsets of ${channel}`);
    for (const { offset, data } of publications) assert.deepEqual(data, expected.get(offset), `${name}: ${channel} at offset ${offset}`);
    for (const { wasRecovering, recovered } of subscribed.slice(1)) assert(wasRecovering && recovered, `${name}: ${channel} was not recovered`);
  }
  const reconnects = records.reduce((sum, { subscribed }) => sum + subscribed.length - 1, 0);
  assert(reconnects > records.length, `only ${reconnects} resubscriptions: the lines did not break often enough to prove anything`);

  // Each publisher's own order is kept within a channel.
  for (const offsets of published.values()) {
    const last = new Map();
    for (const offset of range(1, offsets.size)) {
      const { publisher, n } = offsets.get(offset);
      assert(n > (last.get(publisher) ?? -1), "a publisher's messages changed their order");
      last.set(publisher, n);
    }
  }
});

await scenario("delivery: a server restarted in the middle gives a new epoch, and within each epoch nothing is missing", async (t) => {
  const server = await t.server({ config: "delivery.toml", workers: 4 });
  const records = [];
  for (const transport of ["websocket", "websocket", "http_stream", "sse"]) records.push(await watch(await t.client(server, transport), "news"));
  for (const n of range(1, 50)) await server.publish("news", { life: 1, n });
  await Promise.all(records.map((record) => record.received(50)));
  await server.terminate();
  await server.start();
  await Promise.all(records.map((record) => record.subscribedTimes(2)));
  for (const n of range(1, 50)) await server.publish("news", { life: 2, n });
  await Promise.all(records.map((record) => record.received(100)));
  for (const { publications, subscribed } of records) {
    assert.deepEqual(publications.map(({ offset, data }) => [data.life, offset, data.n]), [...range(1, 50).map((n) => [1, n, n]), ...range(1, 50).map((n) => [2, n, n])]);
    assert.equal(subscribed[1].recovered, false);
    assert.notEqual(subscribed[0].streamPosition.epoch, subscribed[1].streamPosition.epoch);
  }
});
