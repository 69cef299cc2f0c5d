// Differences between messages and filters by tags, judged by centrifuge-js's own decoder, in JSON and Protobuf.

import { WebSocket, assert, installed, range, scenario, until, watch } from "./dunlin.mjs";

const { Centrifuge } = installed("centrifuge/build/protobuf");
const FORMATS = {
  json: { options: {}, parsed: (data) => data },
  protobuf: { options: { sdk: Centrifuge, protocol: "protobuf" }, parsed: (data) => JSON.parse(new TextDecoder().decode(data)) },
};

// A document of about a kilobyte, of which each version changes some five per cent; with characters of two to four bytes,
// in the middle of which a difference must not begin.
function version(n) {
  const fields = Object.fromEntries(range(1, 24).map((field) => [`field ${field}`, `äöü☃😀 value ${field === n % 24 ? n * 7919 : field}`]));
  return { n, fields };
}

for (const [format, { options, parsed }] of Object.entries(FORMATS)) {
  await scenario(`delta, ${format}: every version arrives whole, in a fifth of the bytes, beside those who take none`, async (t) => {
    const server = await t.server({ config: "forms.toml" });
    const received = { delta: 0, plain: 0 };
    const counting = (name) =>
      class extends WebSocket {
        constructor(...of) {
          super(...of);
          this.on("message", (data) => (received[name] += data.length ?? data.byteLength));
        }
      };
    const of = (name) => ({ ...options, websocket: counting(name) });
    const doc = await watch(await t.client(server, "websocket", of("delta")), "doc", { delta: "fossil" });
    const plain = await watch(await t.client(server, "websocket", of("plain")), "doc");
    for (const n of range(1, 60)) await server.publish("doc", version(n));
    await Promise.all([doc.received(60), plain.received(60)]);
    assert.deepEqual(doc.publications.map(({ data }) => parsed(data)), range(1, 60).map(version));
    assert.deepEqual(plain.publications.map(({ data }) => parsed(data)), range(1, 60).map(version));
    assert(received.delta * 5 < received.plain, `${received.delta} of ${received.plain} bytes`);
    // Who comes later begins with a whole one.
    const late = await watch(await t.client(server, "websocket", options), "doc", { delta: "fossil" });
    for (const n of range(61, 65)) await server.publish("doc", version(n));
    await Promise.all([late.received(5), doc.received(65)]);
    assert.deepEqual(late.publications.map(({ data }) => parsed(data)), range(61, 65).map(version));
  });

  await scenario(`delta, ${format}: after a lost connection what was missed is recovered, and differences go on`, async (t) => {
    const server = await t.server({ config: "forms.toml" });
    const line = await t.line(server);
    const doc = await watch(await t.client(line, "websocket", options), "doc", { delta: "fossil" });
    for (const n of range(1, 3)) await server.publish("doc", version(n));
    await doc.received(3);
    line.fail();
    for (const n of range(4, 6)) await server.publish("doc", version(n));
    line.mend();
    await doc.subscribedTimes(2);
    for (const n of range(7, 9)) await server.publish("doc", version(n));
    await doc.received(9);
    assert.deepEqual(doc.publications.map(({ data }) => parsed(data)), range(1, 9).map(version));
    assert.deepEqual([doc.subscribed[1].wasRecovering, doc.subscribed[1].recovered], [true, true]);
  });

  await scenario(`tags filter, ${format}: only what passes arrives, recovered or live; who filters wrongly is notified`, async (t) => {
    const server = await t.server({ config: "forms.toml" });
    const line = await t.line(server);
    const tagsFilter = { op: "and", nodes: [{ key: "kind", cmp: "in", vals: ["goal", "card"] }, { op: "not", nodes: [{ key: "minute", cmp: "lt", val: "45.5" }] }] };
    const match = await watch(await t.client(line, "websocket", options), "match", { tagsFilter });
    const publish = (n, tags) => server.api("publish", { channel: "match", data: { n }, tags });
    await publish(1, { kind: "goal", minute: "12" });
    await publish(2, { kind: "goal", minute: "45.50" });
    await publish(3, {});
    await match.received(1);
    line.fail();
    await publish(4, { kind: "goal", minute: "9" });
    await publish(5, { kind: "card", minute: "100" });
    line.mend();
    await match.subscribedTimes(2);
    await publish(6, { kind: "throw-in", minute: "101" });
    await publish(7, { kind: "card", minute: "102" });
    await match.received(3);
    assert.deepEqual(match.publications.map(({ data }) => parsed(data).n), [2, 5, 7]);
    assert.equal(match.subscribed[1].recovered, true);

    const wrong = await watch(await t.client(server, "websocket", options), "match", { tagsFilter: { key: "kind", cmp: "like", val: "g" } });
    await until(() => wrong.unsubscribed.length > 0, "the refusal");
    assert.equal(wrong.unsubscribed[0].code, 107);
    assert.match(wrong.unsubscribed[0].reason, /comparison `like`/);
  });
}

await scenario("a channel whose namespace does not allow it: no differences, and filters are error 108 that names the setting", async (t) => {
  const server = await t.server();
  const doc = await watch(await t.client(server), "doc", { delta: "fossil" });
  await server.publish("doc", { n: 1 });
  await doc.received(1);
  assert.deepEqual(doc.publications[0].data, { n: 1 });
  const filtered = await watch(await t.client(server), "match", { tagsFilter: { key: "kind", cmp: "ex" } });
  await until(() => filtered.unsubscribed.length > 0, "the refusal");
  assert.equal(filtered.unsubscribed[0].code, 108);
  assert.match(filtered.unsubscribed[0].reason, /allow_tags_filter/);
});

await scenario("force_push_join_leave: who has not asked for joins and leaves gets them", async (t) => {
  const server = await t.server({ config: "forms.toml" });
  const ann = await watch(await t.client(server), "room");
  const bob = await t.client(server);
  await watch(bob, "room");
  await until(() => ann.joins.some(({ info }) => info.client === bob.id), "bob's join");
  bob.disconnect();
  await until(() => ann.leaves.some(({ info }) => info.client === bob.id), "bob's leave");
});
