// The Pusher protocol: pusher-js and Laravel Echo as clients, npm's `pusher` as the backend that signs and publishes.

import { once } from "node:events";
import { readFile } from "node:fs/promises";
import http from "node:http";
import path from "node:path";

import { browser } from "./chromium.mjs";
import { assert, CACHE, installed, scenario, until, watch } from "./dunlin.mjs";

const Backend = installed("pusher");
const Pusher = installed("pusher-js");
// Its CommonJS is not loaded where its package says that it is a module.
const { default: Echo } = await import(path.join(CACHE, "node_modules/laravel-echo/dist/echo.js"));

const SHOP = { appId: "3", key: "shop-key", secret: "the shop's own secret" };

const serverOf = (t) => t.server({ config: "pusher.toml" });

function backend(server, app = SHOP) {
  return new Backend({ ...app, host: "127.0.0.1", port: String(server.clientPort), useTLS: false });
}

/// A pusher-js that has connected, and whose channels and user `signer` signs for.
async function client(t, to, signer, { user, key = SHOP.key, connect = true, ...options } = {}) {
  const pusher = new Pusher(key, {
    cluster: "mt1",
    wsHost: "127.0.0.1",
    wsPort: to.clientPort ?? to.port,
    forceTLS: false,
    enabledTransports: ["ws"],
    channelAuthorization: {
      customHandler: ({ socketId, channelName }, done) => {
        const data = channelName.startsWith("presence-") ? { user_id: user.id, user_info: user.info } : undefined;
        done(null, signer.authorizeChannel(socketId, channelName, data));
      },
    },
    userAuthentication: { customHandler: ({ socketId }, done) => done(null, signer.authenticateUser(socketId, user)) },
    ...options,
  });
  t.after(() => pusher.disconnect());
  pusher.errors = [];
  pusher.connection.bind("error", (error) => pusher.errors.push(error));
  if (connect) await until(() => pusher.connection.state === "connected", () => `a connection; it is ${pusher.connection.state}`);
  return pusher;
}

/// Subscribes, and records the events.
async function subscribe(pusher, name) {
  const channel = pusher.subscribe(name);
  channel.events = [];
  channel.bind_global((event, data) => channel.events.push({ event, data }));
  channel.of = (event) => channel.events.filter((each) => each.event === event);
  await until(() => channel.subscribed || channel.of("pusher:subscription_error").length > 0, `the subscription to ${name}`);
  return channel;
}

await scenario("pusher-js: public, private and encrypted channels, beside centrifuge-js in the same ones", async (t) => {
  const server = await serverOf(t);
  const signer = new Backend({ ...SHOP, host: "127.0.0.1", port: String(server.clientPort), useTLS: false, encryptionMasterKeyBase64: Buffer.alloc(32, 7).toString("base64") });
  const pusher = await client(t, server, signer);
  const names = ["news", "private-orders", "private-encrypted-secrets"];
  const channels = [];
  for (const name of names) channels.push(await subscribe(pusher, name));
  const other = await watch(await t.client(server), "shop:news");
  for (const name of names) {
    const answer = await signer.trigger(name, "made", { name, text: "ä€ \u2028" });
    assert.equal(answer.status, 200);
  }
  for (const [at, channel] of channels.entries()) {
    await until(() => channel.of("made").length === 1, `the event of ${names[at]}`);
    assert.deepEqual(channel.of("made")[0].data, { name: names[at], text: "ä€ \u2028" });
  }
  await other.received(1);
  assert.deepEqual(other.publications[0].data, { name: "news", text: "ä€ \u2028" });
  assert.deepEqual(other.publications[0].tags, { event: "made" });
  // A text that is no JSON, JSON that is a text, and what the other API publishes.
  await signer.trigger("news", "text", "plain");
  await signer.trigger("news", "text", '"quoted"');
  await server.api("publish", { channel: "shop:news", data: { n: 1 }, tags: { event: "text" } });
  await until(() => channels[0].of("text").length === 3, "three texts");
  assert.deepEqual(channels[0].of("text").map(({ data }) => data), ["plain", "quoted", { n: 1 }]);
  pusher.unsubscribe("news");
  await until(async () => (await (await signer.get({ path: "/channels/news" })).json()).occupied === false || (await server.api("channels", { pattern: "shop:news" })).channels["shop:news"]?.num_clients === 1, "the unsubscription");
});

await scenario("pusher-js: three users in a presence channel, one of them with two connections", async (t) => {
  const server = await serverOf(t);
  const signer = backend(server);
  const join = async (id) => {
    const pusher = await client(t, server, signer, { user: { id, info: { name: id.toUpperCase() } } });
    return [pusher, await subscribe(pusher, "presence-room")];
  };
  const [, ada] = await join("ada");
  assert.deepEqual([ada.members.count, ada.members.me.id, ada.members.me.info], [1, "ada", { name: "ADA" }]);
  const [bobsFirst] = await join("bob");
  const [bobsSecond, bobsSecondChannel] = await join("bob");
  assert.equal(bobsSecondChannel.members.count, 2);
  const [cem] = await join("cem");
  await until(() => ada.members.count === 3, "three members");
  const added = () => ada.of("pusher:member_added").map(({ data }) => [data.id, data.info.name]);
  assert.deepEqual(added(), [["bob", "BOB"], ["cem", "CEM"]]);
  assert.deepEqual((await (await signer.get({ path: "/channels/presence-room/users" })).json()).users.map(({ id }) => id), ["ada", "bob", "cem"]);
  const facts = await (await signer.get({ path: "/channels/presence-room", params: { info: "user_count,subscription_count" } })).json();
  assert.deepEqual(facts, { occupied: true, user_count: 3, subscription_count: 4 });
  const listed = await (await signer.get({ path: "/channels", params: { filter_by_prefix: "presence-", info: "user_count" } })).json();
  assert.deepEqual(listed, { channels: { "presence-room": { user_count: 3 } } });
  bobsFirst.disconnect();
  cem.disconnect();
  await until(() => ada.members.count === 2, "one who has left");
  bobsSecond.disconnect();
  await until(() => ada.members.count === 1, "the other who has left");
  assert.deepEqual(ada.of("pusher:member_removed").map(({ data }) => data.id), ["cem", "bob"]);
});

await scenario("pusher-js: client events, batches, and events that leave their cause out", async (t) => {
  const server = await serverOf(t);
  const signer = backend(server);
  const pushers = [];
  const rooms = [];
  for (const id of ["ada", "bob"]) {
    const pusher = await client(t, server, signer, { user: { id, info: {} } });
    pushers.push(pusher);
    rooms.push(await subscribe(pusher, "presence-room"));
    await subscribe(pusher, "a");
    await subscribe(pusher, "b");
  }
  const [ada, bob] = pushers;
  const moved = [];
  rooms[1].bind("client-moved", (data, { user_id }) => moved.push([data, user_id]));
  assert(rooms[0].trigger("client-moved", { x: 1 }));
  await until(() => moved.length === 1, "the client event");
  assert.deepEqual(moved[0], [{ x: 1 }, "ada"]);
  assert.deepEqual(rooms[0].of("client-moved"), []);
  // By a client that does not mind what pusher-js forbids.
  ada.connection.send_event("client-moved", { x: 2 }, "a");
  await until(() => ada.errors.length === 1, "the refusal");
  assert.equal(ada.errors[0].data?.code ?? ada.errors[0].error?.data?.code, 4301);

  const socketId = ada.connection.socket_id;
  const answer = await signer.trigger(["a", "b"], "many", { n: 1 }, { socket_id: socketId, info: "subscription_count" });
  assert.deepEqual(await answer.json(), { channels: { a: { subscription_count: 2 }, b: { subscription_count: 2 } } });
  const batch = [
    { channel: "a", name: "batch", data: { n: 1 }, socket_id: socketId },
    { channel: "b", name: "batch", data: { n: 2 } },
  ];
  assert.equal((await signer.triggerBatch(batch)).status, 200);
  await until(() => ada.channel("b").of("batch").length === 1 && bob.channel("b").of("batch").length === 1 && bob.channel("a").of("batch").length === 1, "the batch");
  assert.deepEqual(["a", "b"].map((name) => bob.channel(name).of("many").length), [1, 1]);
  assert.deepEqual(["a", "b"].map((name) => ada.channel(name).of("many").length), [0, 0]);
  assert.equal(ada.channel("a").of("batch").length, 0);
});

await scenario("pusher-js: a connection that is cut comes back, subscribes again and hears what is published then", async (t) => {
  const server = await serverOf(t);
  const line = await t.line(server);
  const signer = backend(server);
  const pusher = await client(t, line, signer, { user: { id: "ada", info: {} } });
  const channel = await subscribe(pusher, "presence-room");
  await subscribe(pusher, "private-a");
  const before = pusher.connection.socket_id;
  line.cut();
  await until(() => pusher.connection.state === "connected" && pusher.connection.socket_id !== before && channel.subscribed && pusher.channel("private-a").subscribed, "the reconnect", 30_000);
  await signer.trigger("private-a", "after", {});
  await until(() => pusher.channel("private-a").of("after").length === 1, "the event after the reconnect");
  assert.equal(channel.members.count, 1);
  // Pings of both sides: it stays over several of the server's intervals.
  const socketId = pusher.connection.socket_id;
  await new Promise((resolve) => setTimeout(resolve, 5_000));
  assert.equal(pusher.connection.socket_id, socketId);
  assert.equal(pusher.connection.state, "connected");
});

await scenario("pusher-js: wrong keys and signatures, and another app's secret", async (t) => {
  const server = await serverOf(t);
  const stranger = await client(t, server, backend(server), { key: "nobody", connect: false });
  await until(() => stranger.connection.state === "failed" || stranger.errors.length > 0, "the refusal of the key");
  assert.equal(stranger.errors[0].data?.code ?? stranger.errors[0].error?.data?.code, 4001);

  const forger = backend(server, { ...SHOP, secret: "a guess of the secret" });
  const pusher = await client(t, server, forger, { user: { id: "ada", info: {} } });
  for (const name of ["private-a", "presence-a"]) {
    const channel = await subscribe(pusher, name);
    assert.equal(channel.subscribed, false);
    assert.deepEqual([channel.events[0].event, channel.events[0].data.type, channel.events[0].data.status], ["pusher:subscription_error", "AuthError", 401]);
  }
  pusher.signin();
  await until(() => pusher.errors.length > 0, "the refusal of the sign-in");
  for (const app of [{ ...SHOP, secret: "a guess of the secret" }, { appId: "3", key: "other-key", secret: "another app's secret" }]) {
    await assert.rejects(backend(server, app).trigger("news", "e", {}), (error) => error.status === 401);
  }
  await assert.rejects(backend(server).trigger("news", "e", "x".repeat(10_241)), (error) => error.status === 413);
});

await scenario("pusher-js: a user signs in, is sent an event, and is sent away", async (t) => {
  const server = await serverOf(t);
  const signer = backend(server);
  const pusher = await client(t, server, signer, { user: { id: "ada", user_info: { name: "Ada" } } });
  const heard = [];
  pusher.user.bind("hello", (data) => heard.push(data));
  pusher.signin();
  await until(() => pusher.user.user_data, "the sign-in");
  await until(async () => {
    await signer.sendToUser("ada", "hello", { n: 1 });
    return heard.length > 0;
  }, "an event for the user");
  assert.deepEqual(heard[0], { n: 1 });
  assert.equal((await signer.terminateUserConnections("ada")).status, 200);
  await until(() => pusher.errors.some((error) => (error.data?.code ?? error.error?.data?.code) === 4009), "the end of the connection");
});

await scenario("pusher-js: cache channels begin with the last event", async (t) => {
  const server = await serverOf(t);
  const signer = backend(server);
  const pusher = await client(t, server, signer);
  const empty = await subscribe(pusher, "private-cache-price");
  await until(() => empty.of("pusher:cache_miss").length === 1, "the cache miss");
  await signer.trigger("private-cache-price", "price", { cents: 100 });
  await signer.trigger("private-cache-price", "price", { cents: 101 });
  const late = await subscribe(await client(t, server, signer), "private-cache-price");
  await until(() => late.of("price").length === 1, "the cached event");
  assert.deepEqual(late.of("price")[0].data, { cents: 101 });
});

await scenario("Laravel Echo: channels, presence, whispers and a refusal", async (t) => {
  const server = await serverOf(t);
  const signer = backend(server);
  const echo = async (id) => {
    const pusher = await client(t, server, signer, { user: { id, info: { name: id } } });
    return new Echo({ broadcaster: "pusher", key: SHOP.key, client: pusher, namespace: "App.Events", withoutInterceptors: true });
  };
  const ada = await echo("ada");
  const bob = await echo("bob");
  const heard = { shipped: [], here: [], joining: [], leaving: [], typing: [], errors: [] };
  ada.channel("news").listen("Shipped", (event) => heard.shipped.push(event));
  ada.join("room").here((users) => heard.here.push(users)).joining((user) => heard.joining.push(user.name)).leaving((user) => heard.leaving.push(user.name));
  await until(() => heard.here.length === 1, "who is here");
  let here;
  bob.join("room").here((users) => (here = users.map(({ name }) => name))).listenForWhisper("typing", (data) => heard.typing.push(data));
  await until(() => here, "who is here, for the second");
  assert.deepEqual(here.sort(), ["ada", "bob"]);
  await until(() => heard.joining.length === 1, "who joins");
  ada.join("room").whisper("typing", { who: "ada" });
  await until(() => heard.typing.length === 1, "the whisper");
  await until(async () => {
    await signer.trigger("news", "App\\Events\\Shipped", { order: 1 }, { socket_id: bob.socketId() });
    return heard.shipped.length > 0;
  }, "the broadcast");
  assert.deepEqual(heard.shipped[0], { order: 1 });
  bob.leave("room");
  await until(() => heard.leaving.length === 1, "who leaves");
  assert.deepEqual([heard.joining, heard.leaving], [["bob"], ["bob"]]);
  const forged = await client(t, server, backend(server, { ...SHOP, secret: "a guess of the secret" }));
  const eve = new Echo({ broadcaster: "pusher", key: SHOP.key, client: forged, withoutInterceptors: true });
  eve.private("orders").error((error) => heard.errors.push(error));
  await until(() => heard.errors.length === 1, "the refusal");
  assert.equal(heard.errors[0].status, 401);
});

await scenario("pusher (npm): webhooks, verified and read by its own library", async (t) => {
  const server = await serverOf(t);
  const signer = backend(server);
  const received = [];
  const listener = http.createServer(async (request, response) => {
    let rawBody = "";
    for await (const chunk of request.setEncoding("utf8")) rawBody += chunk;
    received.push({ headers: request.headers, rawBody });
    response.end();
  });
  listener.listen(0, "127.0.0.1");
  await once(listener, "listening");
  t.after(() => listener.close());
  const events = ["channel_occupied", "channel_vacated", "member_added", "member_removed", "client_event"];
  const value = {
    upstreams: { backend: { members: { a: { address: `127.0.0.1:${listener.address().port}` } } } },
    hooks: { shop: { upstream: "backend", events, pusher_app: "shop" } },
  };
  const answer = await fetch(`http://127.0.0.1:${server.adminPort}/config/webhooks`, { method: "PUT", body: JSON.stringify(value), headers: { "Content-Type": "application/json", ...server.adminHeaders } });
  assert(answer.ok, await answer.text());
  const room = await subscribe(await client(t, server, signer, { user: { id: "ada", info: {} } }), "presence-room");
  const second = await client(t, server, signer, { user: { id: "bob", info: {} } });
  await subscribe(second, "presence-room");
  assert(room.trigger("client-moved", { x: 1 }));
  await until(() => second.channel("presence-room").of("client-moved").length === 1, "the client event");
  second.disconnect();
  room.pusher.disconnect();
  const seen = () => received.flatMap(({ headers, rawBody }) => {
    const webhook = signer.webhook({ headers, rawBody });
    assert(webhook.isValid(), rawBody);
    return webhook.getEvents();
  });
  await until(() => seen().some(({ name }) => name === "channel_vacated"), () => `all webhooks: ${JSON.stringify(seen())}`);
  const heard = seen().map(({ name, channel, user_id }) => [name, channel, user_id].filter(Boolean).join(" "));
  for (const event of ["channel_occupied presence-room", "member_added presence-room ada", "member_added presence-room bob", "client_event presence-room ada", "member_removed presence-room bob", "member_removed presence-room ada", "channel_vacated presence-room"]) {
    assert.equal(heard.filter((one) => one === event).length, 1, `${event}: ${heard}`);
  }
  const forged = backend(server, { ...SHOP, secret: "a guess of the secret" });
  assert.equal(forged.webhook(received[0]).isValid(), false);
});

await scenario("pusher-js in Chromium: a presence channel whose page asks its backend, and a compressed event", async (t) => {
  const server = await serverOf(t);
  const signer = backend(server);
  const script = await readFile(path.join(CACHE, "node_modules/pusher-js/dist/web/pusher.js"));
  const listener = http.createServer(async (request, response) => {
    if (request.url === "/pusher.js") return response.end(script);
    if (request.url !== "/auth") return response.setHeader("Content-Type", "text/html").end("<script src=/pusher.js></script>");
    let body = "";
    for await (const chunk of request) body += chunk;
    const asked = new URLSearchParams(body);
    response.end(JSON.stringify(signer.authorizeChannel(asked.get("socket_id"), asked.get("channel_name"), { user_id: "ada" })));
  });
  listener.listen(0, "127.0.0.1");
  await once(listener, "listening");
  t.after(() => listener.close());
  const page = await (await browser(t)).newPage();
  await page.goto(`http://127.0.0.1:${listener.address().port}/`);
  await page.evaluate((wsPort) => {
    window.events = [];
    const pusher = new window.Pusher("shop-key", { cluster: "mt1", wsHost: "127.0.0.1", wsPort, forceTLS: false, enabledTransports: ["ws"], channelAuthorization: { endpoint: "/auth" } });
    pusher.subscribe("presence-room").bind_global((event, data) => window.events.push([event, data]));
  }, server.clientPort);
  const heard = (name) => page.evaluate((name) => window.events.find(([event]) => event === name)?.[1], name);
  await until(() => heard("pusher:subscription_succeeded"), "the subscription");
  await signer.trigger("presence-room", "made", { text: "x".repeat(2_000) });
  assert.deepEqual(await until(() => heard("made"), "the event"), { text: "x".repeat(2_000) });
});
