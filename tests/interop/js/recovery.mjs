// Connections that drop, servers that go: what was missed is recovered, and what cannot be is reported.

import { assert, range, scenario, until, watch } from "./dunlin.mjs";

for (const transport of ["websocket", "http_stream", "sse"]) {
  await scenario(`${transport}: a dropped connection comes back and recovers exactly what it missed`, async (t) => {
    const server = await t.server();
    const line = await t.line(server);
    const news = await watch(await t.client(line, transport), "news");
    for (const n of range(1, 3)) await server.publish("news", { n });
    await news.received(3);
    line.fail();
    for (const n of range(4, 8)) await server.publish("news", { n });
    line.mend();
    await news.subscribedTimes(2);
    await server.publish("news", { n: 9 });
    await news.received(9);
    assert.deepEqual(news.publications.map(({ offset, data }) => [offset, data.n]), range(1, 9).map((n) => [n, n]));
    assert.deepEqual([news.subscribed[1].wasRecovering, news.subscribed[1].recovered], [true, true]);
  });

  await scenario(`${transport}: kill -9 of the server: back with recovered false and a new epoch, no silent hole`, async (t) => {
    const server = await t.server();
    const news = await watch(await t.client(server, transport), "news");
    for (const n of range(1, 3)) await server.publish("news", { n });
    await news.received(3);
    await server.kill();
    await server.start();
    await server.publish("news", { n: "after the crash" });
    await news.subscribedTimes(2);
    const [before, after] = news.subscribed;
    assert.deepEqual([after.wasRecovering, after.recovered], [true, false]);
    assert.notEqual(after.streamPosition.epoch, before.streamPosition.epoch);
    const { offset, epoch } = await server.publish("news", { n: "and on" });
    const last = await until(() => news.publications.find(({ data }) => data.n === "and on"), "the next message");
    assert.deepEqual([last.offset, after.streamPosition.epoch], [offset, epoch]);
  });

  await scenario(`${transport}: SIGTERM: asked to reconnect (3001, shutdown), and back when the server is`, async (t) => {
    const server = await t.server();
    const client = await t.client(server, transport);
    const news = await watch(client, "news");
    assert.deepEqual(await server.terminate(), { code: 0, signal: null });
    await until(() => client.state === "connecting", "the client to reconnect");
    assert.equal(client.disconnects[1].code, 3001);
    await server.start();
    await news.subscribedTimes(2);
    await server.publish("news", "back");
    await news.received(1);
    assert.equal(news.subscribed[1].recovered, false);
  });
}

await scenario("recovery: who missed more than the history holds is notified, and goes on from where the stream is", async (t) => {
  const server = await t.server();
  const line = await t.line(server);
  const news = await watch(await t.client(line), "news");
  await server.publish("news", { n: 1 });
  await news.received(1);
  line.fail();
  const commands = range(2, 151).map((n) => ({ publish: { channel: "news", data: { n } } }));
  await server.api("batch", { commands });
  line.mend();
  await news.subscribedTimes(2);
  assert.deepEqual([news.subscribed[1].wasRecovering, news.subscribed[1].recovered], [true, false]);
  assert.equal(news.subscribed[1].streamPosition.offset, 151);
  await server.publish("news", { n: 152 });
  await until(() => news.offsets().at(-1) === 152, "the next message");
});

await scenario("recovery: a removed history is no hole: position and epoch stay, what is gone is reported", async (t) => {
  const server = await t.server();
  const line = await t.line(server);
  const news = await watch(await t.client(line), "news");
  await server.publish("news", 1);
  await news.received(1);
  line.fail();
  await server.publish("news", 2);
  await server.api("history_remove", { channel: "news" });
  line.mend();
  await news.subscribedTimes(2);
  const [before, after] = news.subscribed;
  assert.equal(after.recovered, false);
  assert.deepEqual([after.streamPosition.epoch, after.streamPosition.offset], [before.streamPosition.epoch, 2]);
});

await scenario("SIGTERM: a thousand clients leave within the bound and are sent away spread out, none without a word", async (t) => {
  const server = await t.server();
  const sockets = await Promise.all(range(1, 1000).map(() => t.socket(server)));
  for (const socket of sockets) socket.say({ id: 1, connect: {} }, { id: 2, subscribe: { channel: "news" } });
  await Promise.all(sockets.map((socket) => socket.answer(2)));
  const exit = server.terminate();
  const codes = await Promise.all(sockets.map(async (socket) => (await socket.closed).code));
  assert.deepEqual([...new Set(codes)], [3001]);
  assert.deepEqual(await exit, { code: 0, signal: null });
});
