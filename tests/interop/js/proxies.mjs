// A Node backend that is asked: every kind of question, every way in, and all that a backend can do wrong.

import { once } from "node:events";
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";

import { assert, exchange, installed, range, scenario, until, watch } from "./dunlin.mjs";

const { Centrifuge: ProtobufCentrifuge } = installed("centrifuge/build/protobuf");
const WAYS = [["websocket", {}], ["http_stream", {}], ["sse", {}], ["websocket", { sdk: ProtobufCentrifuge, protocol: "protobuf" }]];
const seconds = () => Math.floor(Date.now() / 1000);

/// A backend and a server that asks it. `answers`: by the question's path, a function of its body that gives the answer, or takes the response.
async function stage(t, answers, { proxy = "", room = "", rest = "" } = {}) {
  const asked = [];
  const backend = http.createServer(async (request, response) => {
    let text = "";
    for await (const chunk of request.setEncoding("utf8")) text += chunk;
    const question = { path: request.url.slice(1), body: JSON.parse(text), headers: request.headers };
    asked.push(question);
    const answer = await answers[question.path]?.(question.body, response, question);
    if (answer !== undefined) response.end(JSON.stringify(answer));
  });
  backend.listen(0, "127.0.0.1");
  await once(backend, "listening");
  t.after(() => (backend.closeAllConnections(), backend.close()));
  const kinds = ["connect", "refresh", "rpc", "users", "subscribe", "sub_refresh", "publish"];
  const proxies = kinds.map((kind) => `[proxies.${kind}]\nendpoint = "http://127.0.0.1:${backend.address().port}/${kind}"\n${proxy}\n`).join("\n");
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "dunlin-proxies-"));
  t.after(() => fs.rmSync(directory, { recursive: true }));
  const configFile = path.join(directory, "dunlin.toml");
  fs.writeFileSync(configFile, `${proxies}
[client.proxy]
${["connect", "refresh", "rpc"].filter((kind) => answers[kind]).map((kind) => `${kind} = "${kind}"`).join("\n")}
[rpc.namespaces.users]
proxy = "users"
[api]
without_key = true
[channel.namespaces.room]
history_size = 10
history_ttl_ms = 300000
recover = true
${["subscribe", "sub_refresh", "publish"].filter((kind) => answers[kind]).map((kind) => `${kind}_proxy = "${kind}"`).join("\n")}
${room}
${rest}
`);
  return { server: await t.server({ configFile }), asked, kinds: (kind) => asked.filter((question) => question.path === kind) };
}

const connect = () => ({ result: { user: "ann" } });

for (const [transport, options] of WAYS) {
  await scenario(`proxies, ${transport}, ${options.protocol ?? "json"}: a backend lets in, grants, publishes and computes`, async (t) => {
    const bytes = (value) => (options.protocol ? new TextEncoder().encode(JSON.stringify(value)) : value);
    const parsed = (data) => (options.protocol ? JSON.parse(new TextDecoder().decode(data)) : data);
    const { server, asked } = await stage(t, {
      connect: ({ data }) => (data?.key === "right" ? { result: { user: "ann", info: { name: "Ann" }, data: { hello: 1 } } } : { disconnect: { code: 4501, reason: "no" } }),
      rpc: ({ method, data }) => ({ result: { data: { method, twice: data.n * 2 } } }),
      users: ({ method, user }) => ({ result: { data: [method, user] } }),
      subscribe: ({ channel }) => (channel === "room:mine" ? { result: { info: { row: 1 } } } : { error: { code: 403, message: "not yours" } }),
      publish: ({ data }) => (data.text === "bad" ? { error: { code: 1000, message: "mind your words" } } : { result: { data: { ...data, checked: true } } }),
    });
    const client = await t.client(server, transport, { ...options, data: bytes({ key: "right" }) });
    assert.deepEqual(parsed((await client.rpc("double", bytes({ n: 21 }))).data), { method: "double", twice: 42 });
    assert.deepEqual(parsed((await client.rpc("users:list", bytes({}))).data), ["users:list", "ann"]);
    await assert.rejects(client.rpc("files:list", bytes({})), { code: 104 });
    const mine = await watch(client, "room:mine");
    await mine.subscription.publish(bytes({ text: "good" }));
    await mine.received(1);
    assert.deepEqual(parsed(mine.publications[0].data), { text: "good", checked: true });
    await assert.rejects(mine.subscription.publish(bytes({ text: "bad" })), { code: 1000, message: "mind your words" });
    const other = await watch(client, "room:other");
    assert.deepEqual([other.subscribed.length, other.unsubscribed[0].code], [0, 403]);
    assert(asked.every(({ body }) => body.protocol === (options.protocol ?? "json") && body.client === client.id));
    const stranger = await t.client(server, transport, { ...options, connect: false });
    stranger.connect();
    await until(() => stranger.state === "disconnected", "the stranger's end");
    assert.deepEqual([stranger.disconnects.at(-1).code, stranger.disconnects.at(-1).reason], [4501, "no"]);
  });
}

await scenario("proxies: a connection and a subscription go on as long as the backend says, and it is asked at their end", async (t) => {
  let goesOn = true;
  const answers = {
    connect: () => ({ result: { user: "ann", expire_at: seconds() + 2 } }),
    refresh: () => ({ result: goesOn ? { expire_at: seconds() + 2, info: { again: true } } : { expired: true } }),
    subscribe: () => ({ result: { expire_at: seconds() + 2 } }),
    sub_refresh: ({ channel, user }) => ({ result: goesOn && user === "ann" && channel === "room:a" ? { expire_at: seconds() + 2 } : { expired: true } }),
  };
  const { server, kinds } = await stage(t, answers, { room: "presence = true" });
  const client = await t.client(server, "websocket");
  const room = await watch(client, "room:a");
  await until(() => kinds("refresh").length >= 2 && kinds("sub_refresh").length >= 2, "both to be asked twice", 30_000);
  assert.deepEqual([client.disconnects.length, room.unsubscribed.length, client.state], [1, 0, "connected"]);
  goesOn = false;
  // The subscription ends with 2501, after which the SDK subscribes again; the connection with 3005, after which it comes back.
  await until(() => client.disconnects.some(({ code }) => code === 3005), "the connection's end", 30_000);
  assert(kinds("connect").length >= 1);
  await until(() => client.state === "connected", "the client to be back");
});

await scenario("proxies: a client without a user cannot take the end from what a backend has granted", async (t) => {
  const rest = "[client]\nanonymous = true\n[client.token]\nrefresh_grace_ms = 0";
  const { server } = await stage(t, { connect: () => ({ result: { expire_at: seconds() + 3 } }) }, { rest });
  const socket = await t.socket(server);
  socket.say({ id: 1, connect: {} }, { id: 2, refresh: {} });
  assert.equal((await socket.answer(2)).error.code, 107);
  assert.equal((await socket.closed).code, 3005);
});

await scenario("proxies: what expires goes on while its backend is gone, and is not let go by it", async (t) => {
  const { server, kinds } = await stage(t, {
    connect: () => ({ result: { user: "ann", expire_at: seconds() + 2 } }),
    refresh: (_, response) => void response.writeHead(500).end("no"),
    subscribe: () => ({ result: { expire_at: seconds() + 2 } }),
    sub_refresh: (_, response) => void response.end("{garbage"),
  });
  const client = await t.client(server, "websocket");
  const room = await watch(client, "room:a");
  await until(() => kinds("refresh").length >= 1 && kinds("sub_refresh").length >= 1, "both to be asked", 30_000);
  await server.publish("room:a", 1);
  await room.received(1);
  assert.deepEqual([client.disconnects.length, room.unsubscribed.length], [1, 0]);
});

const HUNDRED_MB = Buffer.alloc(1 << 20, " ");
for (const [what, wrong] of [
  ["answers 500", (_, response) => void response.writeHead(500).end("{}")],
  ["answers garbage", (_, response) => void response.end("\u0000{]")],
  ["answers another type", () => ({ result: [] })],
  ["has no opinion on who may subscribe", ({ channel }) => (channel || true) && {}],
  ["answers a hundred megabytes", (_, response) => {
    for (const _ of range(1, 100)) response.write(HUNDRED_MB);
    response.end("{}");
  }],
  ["never answers", () => undefined],
  ["hangs up", (_, response) => void response.destroy()],
]) {
  await scenario(`proxies: a backend that ${what} permits nothing, and delays nobody who does not need it`, async (t) => {
    const { server } = await stage(t, { connect, subscribe: wrong, publish: wrong, rpc: wrong }, { proxy: "timeout_ms = 700\nbreaker_failures_max = 0", rest: "[channel.namespaces.news]\nallow_subscribe_for_client = true" });
    const client = await t.client(server, "websocket");
    const news = await watch(client, "news:a");
    const tries = Promise.all([client.publish("room:a", 1), ...(what.includes("opinion") ? [] : [client.rpc("any", {})])].map((tried) => assert.rejects(tried, { code: 100 })));
    const room = client.newSubscription("room:a");
    const refused = new Promise((resolve) => room.once("error", resolve));
    room.subscribe();
    await server.publish("news:a", { while: "asking" });
    await news.received(1);
    await tries;
    assert.equal((await refused).error.code, 100);
    assert.deepEqual([room.state, client.disconnects.length], ["subscribing", 1]);
    room.unsubscribe();
    await server.publish("news:a", "on");
    await news.received(2);
  });
}

await scenario("proxies: what a backend refuses is refused on every way in", async (t) => {
  let mayEnter = true;
  const { server, kinds } = await stage(t, { connect, subscribe: () => (mayEnter ? { result: {} } : { error: { code: 403, message: "no" } }) });
  const line = await t.line(server);
  const client = await t.client(line, "websocket");
  const room = await watch(client, "room:a");
  await server.publish("room:a", "before");
  await room.received(1);
  mayEnter = false;
  line.fail();
  await server.publish("room:a", "a secret");
  line.mend();
  // It comes back with its position, and is asked about again.
  await until(() => room.unsubscribed.length === 1, "the refusal");
  assert.deepEqual([room.unsubscribed[0].code, room.publications.length], [403, 1]);
  assert.equal(kinds("subscribe").length, 2);
  for (const transport of ["http_stream", "sse"]) {
    const other = await watch(await t.client(server, transport), "room:a", { since: { offset: 0, epoch: "" } });
    assert.deepEqual([other.subscribed.length, other.publications.length], [0, 0], transport);
  }
  const uni = await t.eventSource(server, { subs: { "room:a": { recover: true, offset: 0, epoch: "" } } });
  const { status, text } = await exchange(server.clientPort, "GET", "/connection/poll?channel=room:a&timeout=100");
  assert(status === 401 || status === 403 || !text.includes("secret"), text);
  await server.publish("room:a", "another secret");
  await client.rpc("nothing", {}).catch(() => {});
  assert(!JSON.stringify(uni.pushes).includes("secret"));
});

await scenario("proxies: a channel of nobody's namespace in a connect's answer lets nobody in", async (t) => {
  const { server } = await stage(t, { connect: () => ({ result: { user: "ann", channels: ["nowhere:1"] } }) });
  const client = await t.client(server, "websocket", { connect: false });
  client.connect();
  await until(() => client.state === "disconnected", "the client's end");
  assert.equal(client.disconnects.at(-1).code, 102);
});

await scenario("proxies: an answer is used again for as long as it says, for its user and channel alone", async (t) => {
  let user = 0;
  const { server, kinds } = await stage(t, {
    connect: () => ({ result: { user: user < 20 ? "ann" : "bob" } }),
    subscribe: ({ user }) => (user === "ann" ? { result: {}, cache_ttl: 600 } : { error: { code: 403, message: "no" }, cache_ttl: 600 }),
  });
  for (; user < 20; user++) assert.equal((await watch(await t.client(server), "room:a")).subscribed.length, 1);
  // One a worker.
  const asked = kinds("subscribe").length;
  assert(asked >= 1 && asked <= 2, `${asked}`);
  const bob = await t.client(server);
  assert.equal((await watch(bob, "room:a")).subscribed.length, 0);
  assert.equal(kinds("subscribe").length, asked + 1);
  const ann = await (user = 0, t.client(server));
  await watch(ann, "room:b");
  await watch(ann, "room:c", { data: { with: "data" } });
  assert.equal(kinds("subscribe").length, asked + 3);
});
