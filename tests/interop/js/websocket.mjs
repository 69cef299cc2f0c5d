// centrifuge-js over WebSocket, and a bare WebSocket for what centrifuge-js would never send.

import { WebSocket, assert, range, scenario, until, watch } from "./dunlin.mjs";

await scenario("websocket: what the API publishes reaches a subscriber with the offset and epoch it was answered", async (t) => {
  const server = await t.server();
  const news = await watch(await t.client(server), "news");
  const answer = await server.publish("news", { text: "hello", nested: { list: [1, 2.5, null, "ü"] } });
  await news.received(1);
  assert.equal(answer.offset, 1);
  assert.deepEqual(news.publications[0].data, { text: "hello", nested: { list: [1, 2.5, null, "ü"] } });
  assert.equal(news.publications[0].offset, answer.offset);
  assert.equal(news.subscribed[0].streamPosition.epoch, answer.epoch);
  assert.equal(news.subscribed[0].recoverable, true);
});

await scenario("websocket: a client publishes and every subscriber has it, the publisher included", async (t) => {
  const server = await t.server();
  const [ann, bob] = [await t.client(server), await t.client(server)];
  const [atAnn, atBob] = [await watch(ann, "chat"), await watch(bob, "chat")];
  await ann.publish("chat", { from: "ann" });
  await atBob.subscription.publish({ from: "bob" });
  await Promise.all([atAnn.received(2), atBob.received(2)]);
  for (const { publications } of [atAnn, atBob]) {
    assert.deepEqual(publications.map(({ data }) => data.from), ["ann", "bob"]);
    assert.deepEqual(publications.map(({ offset }) => offset), [1, 2]);
  }
});

await scenario("websocket: history by limit, since a position, in reverse, or the position alone", async (t) => {
  const server = await t.server();
  const news = await watch(await t.client(server), "news");
  for (const n of range(1, 5)) await server.publish("news", { n });
  const numbers = (result) => result.publications.map(({ offset, data }) => (assert.equal(offset, data.n), offset));

  const position = await news.subscription.history({});
  assert.deepEqual([position.publications, position.offset], [[], 5]);
  const { epoch } = position;
  assert.deepEqual(numbers(await news.subscription.history({ limit: 3 })), [1, 2, 3]);
  assert.deepEqual(numbers(await news.subscription.history({ limit: -1 })), [1, 2, 3, 4, 5]);
  assert.deepEqual(numbers(await news.subscription.history({ limit: -1, since: { offset: 3, epoch } })), [4, 5]);
  assert.deepEqual(numbers(await news.subscription.history({ limit: 2, reverse: true })), [5, 4]);
  await assert.rejects(news.subscription.history({ limit: -1, since: { offset: 3, epoch: "another" } }), { code: 112 });
});

await scenario("websocket: presence, presence stats, join and leave", async (t) => {
  const server = await t.server({ config: "presence.toml" });
  const [ann, bob] = [await t.client(server), await t.client(server)];
  const atAnn = await watch(ann, "room", { joinLeave: true });
  await watch(bob, "room", { joinLeave: true });
  await until(() => atAnn.joins.length > 0, "bob's join");

  const { clients } = await atAnn.subscription.presence();
  assert.equal(Object.keys(clients).length, 2);
  for (const [id, info] of Object.entries(clients)) assert.equal(info.client, id);
  const stats = await atAnn.subscription.presenceStats();
  assert.deepEqual([stats.numClients, stats.numUsers], [2, 1]);

  const { client } = atAnn.joins.at(-1).info;
  bob.disconnect();
  await until(() => atAnn.leaves.some(({ info }) => info.client === client), "bob's leave");
  assert.deepEqual((await atAnn.subscription.presenceStats()).numClients, 1);
});

await scenario("websocket: presence is off until it is configured (error 108, not available)", async (t) => {
  const server = await t.server({ config: "delivery.toml" });
  const news = await watch(await t.client(server), "news");
  await assert.rejects(news.subscription.presence(), { code: 108 });
  await assert.rejects(news.subscription.presenceStats(), { code: 108 });
});

await scenario("websocket: send, which no server without a handler can take, is disconnected for good (3508, not available)", async (t) => {
  const server = await t.server();
  const client = await t.client(server);
  await client.send({ telemetry: [1, 2, 3] });
  await until(() => client.state === "disconnected", "the disconnect");
  assert.equal(client.disconnects.at(-1).code, 3508);
  assert.match(client.disconnects.at(-1).reason, /send/);
});

await scenario("websocket: after unsubscribe nothing arrives, and the channel can be subscribed anew", async (t) => {
  const server = await t.server();
  const client = await t.client(server);
  const news = await watch(client, "news");
  const other = await watch(client, "other");
  await server.publish("news", 1);
  await news.received(1);
  news.subscription.unsubscribe();
  await until(async () => !("news" in (await server.api("channels", {})).channels), "the channel to be without subscribers");
  await server.publish("news", 2);
  // The bystander has its message, so whatever else was under way has arrived too.
  await server.publish("other", "later");
  await other.received(1);
  assert.deepEqual(news.offsets(), [1]);

  client.removeSubscription(news.subscription);
  const again = await watch(client, "news");
  await server.publish("news", 3);
  await again.received(1);
  assert.deepEqual(again.offsets(), [3]);
});

await scenario("websocket: several commands in one frame are each answered", async (t) => {
  const server = await t.server();
  const socket = await t.socket(server);
  socket.say(
    { id: 1, connect: {} },
    { id: 2, subscribe: { channel: "a" } },
    { id: 3, subscribe: { channel: "b" } },
    { id: 4, publish: { channel: "a", data: { n: 1 } } },
    { id: 5, history: { channel: "a", limit: 10 } },
    { id: 6, unsubscribe: { channel: "b" } },
  );
  for (const id of range(1, 6)) assert(!(await socket.answer(id)).error);
  const [connect, history] = [await socket.answer(1), await socket.answer(5)];
  assert.match(connect.connect.client, /./);
  assert.deepEqual(history.history.publications.map(({ data }) => data), [{ n: 1 }]);
  const push = await until(() => socket.lines.find((line) => line.push), "the publication");
  assert.deepEqual([push.push.channel, push.push.pub.data, push.push.pub.offset], ["a", { n: 1 }, 1]);
});

await scenario("websocket: subscriptions that end in the frame that began them are answered all the same", async (t) => {
  const server = await t.server({ workers: 4 });
  const socket = await t.socket(server);
  socket.say({ id: 1, connect: {} });
  await socket.answer(1);
  const channels = range(1, 20);
  socket.say(...channels.flatMap((n) => [{ id: 100 + n, subscribe: { channel: `c${n}` } }, { id: 200 + n, unsubscribe: { channel: `c${n}` } }]));
  for (const n of channels) await Promise.all([socket.answer(100 + n), socket.answer(200 + n)]);
  assert.deepEqual((await server.api("channels", {})).channels, {});
});

await scenario("websocket: errors carry the code the protocol gives them", async (t) => {
  const server = await t.server({ config: "delivery.toml" });
  const socket = await t.socket(server);
  socket.say({ id: 1, connect: {} }, { id: 2, subscribe: { channel: "a" } });
  await socket.answer(2);
  socket.say(
    { id: 3, subscribe: { channel: "a" } },
    { id: 4, subscribe: { channel: "no-such-namespace:a" } },
    { id: 5, subscribe: { channel: "x".repeat(300) } },
    { id: 6, rpc: { method: "anything", data: {} } },
    { id: 7, presence: { channel: "a" } },
  );
  const code = async (id) => (await socket.answer(id)).error?.code;
  assert.equal(await code(3), 105, "already subscribed");
  assert.equal(await code(4), 102, "unknown channel");
  assert.equal(await code(5), 107, "bad request");
  assert.equal(await code(6), 108, "not available: no handler of remote procedures");
  assert.equal(await code(7), 108, "not available");
});

await scenario("websocket: a first command other than connect ends the connection for good (3501, bad request)", async (t) => {
  const server = await t.server();
  const socket = await t.socket(server);
  socket.say({ id: 1, subscribe: { channel: "a" } });
  assert.equal((await socket.closed).code, 3501);
});

await scenario("websocket: who answers pings stays, who does not is disconnected (3012, no pong)", async (t) => {
  const server = await t.server({ config: "presence.toml" });
  const client = await t.client(server);
  const socket = await t.socket(server);
  socket.say({ id: 1, connect: {} });
  const { connect } = await socket.answer(1);
  assert.deepEqual([connect.ping, connect.pong], [1, true]);
  assert.equal((await socket.closed).code, 3012);
  assert(socket.lines.some((line) => Object.keys(line).length === 0), "no ping came");
  const news = await watch(client, "news");
  await server.publish("news", {});
  await news.received(1);
  assert.deepEqual(client.disconnects.map(({ code }) => code), [0], "the client that answers was disconnected");
});

await scenario("websocket: the API subscribes and unsubscribes a client by its id", async (t) => {
  const server = await t.server();
  const client = await t.client(server);
  const heard = [];
  for (const event of ["subscribed", "publication", "unsubscribed"]) client.on(event, (context) => heard.push({ event, ...context }));
  await server.api("subscribe", { user: "", client: client.id, channel: "given" });
  await until(() => heard.length === 1, "the subscription");
  await server.publish("given", { n: 1 });
  await until(() => heard.length === 2, "the publication");
  await server.api("unsubscribe", { user: "", client: client.id, channel: "given" });
  await until(() => heard.length === 3, "the end of the subscription");
  assert.deepEqual(heard.map(({ event, channel }) => `${event} ${channel}`), ["subscribed given", "publication given", "unsubscribed given"]);
});

await scenario("websocket: compression, where configured, carries large messages both ways", async (t) => {
  const server = await t.server({ config: "impatient.toml" });
  const socket = await t.socket(server);
  assert.match(socket.extensions, /permessage-deflate/);
  const data = { text: "all work and no play ".repeat(1400) };
  socket.say({ id: 1, connect: {} }, { id: 2, subscribe: { channel: "news" } }, { id: 3, publish: { channel: "news", data } });
  const { push } = await until(() => socket.lines.find((line) => line.push), "the publication");
  assert.deepEqual(push.pub.data, data);
  const plain = await watch(await t.client(server, "websocket", { websocket: class extends WebSocket { constructor(url) { super(url, { perMessageDeflate: false }); } } }), "news");
  await server.publish("news", data);
  await plain.received(1);
  await until(() => socket.lines.filter((line) => line.push).length === 2, "the second publication");
});
