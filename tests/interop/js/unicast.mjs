// POST /api/send: messages for a session, a user or a device, of no channel.

import { createHmac } from "node:crypto";

import { assert, exchange, installed, scenario, until } from "./dunlin.mjs";

const { Centrifuge: ProtobufCentrifuge } = installed("centrifuge/build/protobuf");
const encoded = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
function token(claims) {
  const unsigned = `${encoded({ alg: "HS256", typ: "JWT" })}.${encoded(claims)}`;
  return `${unsigned}.${createHmac("sha256", "secret").update(unsigned).digest("base64url")}`;
}

async function member(t, server, transport, claims, options = {}) {
  const client = await t.client(server, transport, { ...options, ...(claims && { token: token(claims) }), connect: false });
  client.messages = [];
  client.on("message", ({ data }) => client.messages.push(data instanceof Uint8Array ? JSON.parse(new TextDecoder().decode(data)) : data));
  client.connect();
  await client.ready();
  return client;
}

await scenario("send: reaches a user's sessions on every transport and worker, in order, and nobody else's", async (t) => {
  const server = await t.server({ config: "centrifuge_js.toml", workers: 4 });
  const ways = [["websocket"], ["http_stream"], ["sse"], ["websocket", { sdk: ProtobufCentrifuge, protocol: "protobuf" }], ["websocket"], ["websocket"]];
  const anns = await Promise.all(ways.map(([transport, options]) => member(t, server, transport, { sub: "ann" }, options)));
  const [bob, stranger] = [await member(t, server, "websocket", { sub: "bob" }), await member(t, server, "websocket")];
  const uni = await t.eventSource(server, { token: token({ sub: "ann" }) });

  assert.deepEqual(await server.api("send", { user: "ann", data: { n: 1 } }), { num_clients: 7 });
  const { replies } = await server.api("batch", { commands: [2, 3, 4].map((n) => ({ send: { user: "ann", data: { n } } })) });
  assert.deepEqual(replies, Array(3).fill({ send: { num_clients: 7 } }));
  for (const ann of anns) {
    await until(() => ann.messages.length === 4, "ann's messages");
    assert.deepEqual(ann.messages, [1, 2, 3, 4].map((n) => ({ n })));
  }
  await until(() => uni.pushes.filter((push) => push.message).length === 4, "the stream's messages");
  assert.deepEqual(await server.api("send", { user: "", client: stranger.id, data: "you" }), { num_clients: 1 });
  assert.deepEqual(await server.api("send", { user: "bob", client: anns[0].id, data: "not his" }), { num_clients: 0 });
  assert.deepEqual(await server.api("send", { user: "nobody", data: 0 }), { num_clients: 0 });
  await until(() => stranger.messages.length === 1, "the stranger's message");
  await bob.rpc("nothing", {}).catch(() => {});
  assert.deepEqual([bob.messages, stranger.messages], [[], ["you"]]);

  for (const ann of anns) ann.disconnect();
  uni.close();
  await until(async () => (await server.api("send", { user: "ann", data: 5 })).num_clients === 0, "ann to be gone");
});

await scenario("connections: pages of who is connected, by user, channel, address and info, and each once", async (t) => {
  const server = await t.server({ config: "centrifuge_js.toml", workers: 3 });
  const anns = await Promise.all(Array.from({ length: 5 }, () => member(t, server, "websocket", { sub: "ann", info: { tenant: "acme" } })));
  const bob = await member(t, server, "sse", { sub: "bob" });
  const room = bob.newSubscription("room");
  room.subscribe();
  await room.ready();
  const { connections: all } = await server.api("connections", {});
  assert.deepEqual(Object.keys(all).sort(), [...anns, bob].map(({ id }) => id).sort());
  const { age, memory_bytes, outbox_bytes, ...rest } = all[bob.id];
  assert.deepEqual(rest, { user: "bob", address: "127.0.0.1", transport: "sse", protocol: "json", channels: { room: {} } });
  assert(age >= 0 && memory_bytes > 0 && outbox_bytes === 0);
  const ids = async (filter) => Object.keys((await server.api("connections", filter)).connections).sort();
  assert.deepEqual(await ids({ user: "ann" }), anns.map(({ id }) => id).sort());
  assert.deepEqual(await ids({ info: { tenant: "acme" } }), anns.map(({ id }) => id).sort());
  assert.deepEqual([await ids({ channel: "room" }), await ids({ client: bob.id }), await ids({ client: bob.id, user: "ann" })], [[bob.id], [bob.id], []]);
  assert.deepEqual([await ids({ address: "10.0.0.1" }), await ids({ user: "nobody" }), await ids({ client: "no id" })], [[], [], []]);
  for (const filter of [{}, { user: "ann" }, { address: "127.0.0.1" }]) {
    const seen = [];
    let cursor = "";
    do {
      const page = await server.api("connections", { ...filter, limit: 2, cursor });
      assert(Object.keys(page.connections).length <= 2);
      seen.push(...Object.keys(page.connections));
      cursor = page.cursor ?? "";
    } while (cursor);
    assert.deepEqual(seen.sort(), await ids(filter));
  }
  for (const wrong of [{ address: "here" }, { info: [1] }, { cursor: "x" }]) await assert.rejects(server.api("connections", wrong), { code: 107 });
  assert.deepEqual(await server.api("connections", { cursor: "200.7" }), { connections: {} });
});

await scenario("refresh and subscribe by the API: what goes on until a time ends then, and clients are notified of it", async (t) => {
  const server = await t.server({ config: "centrifuge_js.toml" });
  const line = await t.socket(server);
  line.say({ id: 1, connect: { token: token({ sub: "ann", exp: Math.floor(Date.now() / 1000) + 3600 }) } });
  const { connect } = await line.answer(1);
  assert.equal(connect.expires, true);
  const in_s = (s) => Math.floor(Date.now() / 1000) + s;
  await server.api("refresh", { user: "ann" });
  await until(() => line.lines.some(({ push }) => push?.refresh && !push.refresh.expires), "the push that it never ends");
  await server.api("subscribe", { user: "ann", channel: "news", expire_at: in_s(600) });
  await server.api("refresh", { user: "ann", expire_at: in_s(600), info: { again: 1 } });
  const pushed = await until(() => line.lines.find(({ push }) => push?.refresh?.expires), "the push of its end");
  assert(pushed.push.refresh.ttl > 500 && pushed.push.refresh.ttl <= 600);
  assert.deepEqual((await server.api("connections", { user: "ann" })).connections[connect.client].info, { again: 1 });
  for (const wrong of [{ expire_at: 1 }, { expire_at: -1 }, { label_filter: { op: "", key: "a", cmp: "like" } }, { user: "", all_users: false }]) {
    const { text } = await exchange(server.clientPort, "POST", "/api/subscribe", JSON.stringify({ user: "ann", channel: "other", ...wrong }));
    assert.equal(JSON.parse(text).error.code, 107, text);
  }
  assert.deepEqual(Object.keys((await server.api("connections", { user: "ann" })).connections[connect.client].channels), ["news"]);
  await server.api("refresh", { user: "ann", expire_at: 1 });
  assert.equal((await line.closed).code, 3005);
});

await scenario("send: to a device by the connection's info; who names nobody, or too much, is refused", async (t) => {
  const server = await t.server({ config: "centrifuge_js.toml" });
  const phone = await member(t, server, "websocket", { sub: "ann", info: { device: "phone" } });
  const page = await member(t, server, "websocket", { sub: "ann", info: { name: "Ann" } });
  assert.deepEqual(await server.api("send", { user: "ann", device: "phone", data: { ring: true } }), { num_clients: 1 });
  assert.deepEqual(await server.api("send", { user: "ann", device: "tablet", data: {} }), { num_clients: 0 });
  await server.api("send", { user: "ann", data: "all" });
  await until(() => phone.messages.length === 2 && page.messages.length === 1, "the messages");
  assert.deepEqual([phone.messages, page.messages], [[{ ring: true }, "all"], ["all"]]);
  await assert.rejects(server.api("send", { data: 1 }), { code: 107 });
  await assert.rejects(server.api("send", { user: "ann" }), { code: 107 });
  await assert.rejects(server.api("send", { user: "ann", data: "x".repeat(600_000) }), { code: 106 });
});
