// Inboxes by centrifuge-js without a helper: the first steps of docs/inbox.md as they stand there.

import { createHmac } from "node:crypto";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

import { assert, range, scenario, until } from "./dunlin.mjs";

const PAGE = fs.readFileSync(path.join(path.dirname(fileURLToPath(import.meta.url)), "../../../docs/inbox.md"), "utf8");
const [, CONFIG] = PAGE.match(/```toml\n(.*?)```/s);
const [, SECRET] = CONFIG.match(/hmac_secret = "(.*)"/);
const [, KEY] = CONFIG.match(/backend = "(.*)"/);

const encoded = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
function token(sub) {
  const unsigned = `${encoded({ alg: "HS256", typ: "JWT" })}.${encoded({ sub })}`;
  return `${unsigned}.${createHmac("sha256", SECRET).update(unsigned).digest("base64url")}`;
}

async function start(t) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "dunlin-inbox-"));
  t.after(() => fs.rmSync(directory, { recursive: true }));
  const configFile = path.join(directory, "dunlin.toml");
  fs.writeFileSync(configFile, CONFIG);
  const server = await t.server({ configFile, state: true });
  const api = (method, body) => server.api(method, body, { "X-API-Key": KEY });
  return { server, api, put: (users, message) => api("inbox_publish", { namespace: "inbox", users, ...message }) };
}

/// A device that shows what it is sent and acknowledges it.
async function device(t, server, user, name, { transport = "websocket", acks = true } = {}) {
  const client = await t.client(server, transport, { token: token(user), data: { device: name }, connect: false });
  const [offsets, shown, states] = [[], new Map(), []];
  client.on("publication", ({ channel, data, offset, tags }) => {
    offsets.push(offset);
    shown.set(tags?.inbox_id ?? offset, tags?.inbox_cancelled ? null : data);
    // It may end with the story.
    if (acks) client.rpc("dunlin.ack", { channel, offset }).catch(() => {});
  });
  client.on("subscribed", ({ channel, data }) => states.push({ channel, ...data.ack }));
  client.connect();
  await client.ready();
  return { client, offsets, shown, states };
}

await scenario("inbox: what was sent to a user who was away waits for each of the devices, in order", async (t) => {
  const { server, api, put } = await start(t);
  for (let n = 1; n <= 3; n++) await put(["42", "43"], { data: { n } });
  const phone = await device(t, server, "42", "phone");
  await until(() => phone.offsets.length === 3, "what waits");
  assert.deepEqual([phone.offsets, phone.states[0].channel, phone.states[0].unread], [[1, 2, 3], "inbox:42", 3]);
  await until(async () => (await api("unread", { user: "42", channel: "inbox:42", device: "phone" })).unread === 0, "its acknowledgement");
  phone.client.disconnect();
  await put(["42"], { data: { n: 4 } });
  const again = await device(t, server, "42", "phone", { transport: "sse" });
  await until(() => again.offsets.length === 1, "what came meanwhile");
  assert.deepEqual(again.offsets, [4]);
  const laptop = await device(t, server, "42", "laptop", { transport: "http_stream" });
  await until(() => laptop.offsets.length === 4, "what it has not seen");
  assert.deepEqual(laptop.offsets, range(1, 4));
  const { publications } = await laptop.client.history("inbox:42", { limit: 2, reverse: true });
  assert.deepEqual(publications.map(({ offset }) => offset), [4, 3]);
  const next = await laptop.client.history("inbox:42", { limit: 2, reverse: true, since: { offset: 3, epoch: laptop.states[0].epoch } });
  assert.deepEqual(next.publications.map(({ offset }) => offset), [2, 1]);
  const other = await device(t, server, "43", "phone");
  await until(() => other.offsets.length === 3, "the inbox of the other");
});

await scenario("inbox: the newest of an id is what a user gets, nothing of what was cancelled or has expired", async (t) => {
  const { server, api, put } = await start(t);
  const there = await device(t, server, "42", "there");
  await put(["42"], { id: "order", data: "packed" });
  await put(["42"], { id: "news", data: "gone soon", ttl_ms: 1 });
  await put(["42"], { id: "order", data: "sent" });
  await put(["42"], { id: "offer", data: "buy" });
  await put(["42"], { data: "stays", priority: "high" });
  await api("inbox_cancel", { namespace: "inbox", users: ["42"], id: "offer" });
  await until(() => there.offsets.length === 6, "all of it");
  assert.deepEqual([there.shown.get("order"), there.shown.get("offer")], ["sent", null]);
  const away = await device(t, server, "42", "away");
  await until(() => away.offsets.length === 3, "what counts");
  assert.deepEqual([away.offsets, away.shown.get("order"), away.shown.get(5), away.shown.get("offer")], [[3, 5, 6], "sent", "stays", null]);
});

await scenario("inbox: it is the user's alone, and nothing else is one", async (t) => {
  const { server, api, put } = await start(t);
  await put(["42"], { data: 1 });
  const { client } = await device(t, server, "43", "phone");
  const subscription = client.newSubscription("inbox:42");
  const failed = new Promise((resolve) => subscription.on("error", ({ error }) => resolve(error)).on("unsubscribed", resolve));
  subscription.subscribe();
  assert.equal((await failed).code, 103);
  const error = await client.history("inbox:42", { limit: 1 }).then(() => assert.fail("it was read"), (error) => error);
  assert.equal(error.code, 103);
});
