// Two servers of different owners: centrifuge-js on both sides, over a line between the servers that is cut.

import { execFileSync } from "node:child_process";
import { createHmac } from "node:crypto";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

import { assert, freePort, installed, Line, range, scenario, until } from "./dunlin.mjs";

const { Centrifuge: ProtobufCentrifuge } = installed("centrifuge/build/protobuf");
const encoded = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
function token(claims) {
  const unsigned = `${encoded({ alg: "HS256", typ: "JWT" })}.${encoded(claims)}`;
  return `${unsigned}.${createHmac("sha256", "secret").update(unsigned).digest("base64url")}`;
}

function keys() {
  const [secret, shared] = execFileSync(process.env.DUNLIN_BIN, ["federation", "key"], { encoding: "utf8" }).match(/"[0-9a-f]{64}"/g);
  return { secret, shared };
}

/// A server of a domain; without an address of the peer it waits to be dialed.
function domain(t, name, { secret }, listen, peer, { shared }, address) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "dunlin-federation-"));
  t.after(() => fs.rmSync(directory, { recursive: true }));
  const configFile = path.join(directory, "dunlin.toml");
  fs.writeFileSync(
    configFile,
    `[client.token]
hmac_secret = "secret"
short_hmac_secret = true
[api]
without_key = true
[client.subscribe_to_user_personal_channel]
enabled = true
personal_channel_namespace = "inbox"
[channel.namespaces.inbox]
history_size = 1000
history_ttl_ms = 300000
recover = true
[federation]
enabled = true
domain = "${name}"
key = ${secret}
listen = "127.0.0.1:${listen}"
client_send = "users"
[federation.peers."${peer}"]
address = "${address}"
keys = [${shared}]
`,
  );
  return t.server({ configFile });
}

async function pair(t) {
  const [of_a, of_b] = [keys(), keys()];
  const [at_a, at_b] = [await freePort(), await freePort()];
  const b = await domain(t, "b.example", of_b, at_b, "a.example", of_a, "");
  const line = await Line.open(at_b);
  t.after(() => line.close());
  const a = await domain(t, "a.example", of_a, at_a, "b.example", of_b, `127.0.0.1:${line.port}`);
  await until(async () => (await a.api("send", { user: "probe@b.example", data: 0 })).status === "delivered", "the link");
  return { a, b, line };
}

/// A client with what arrives in its personal channel.
async function user(t, server, name, options = {}) {
  const client = await t.client(server, "websocket", { ...options, token: token({ sub: name }), connect: false });
  client.inbox = [];
  client.on("publication", ({ channel, data, info }) => {
    assert.equal(channel, `inbox:#${name}`);
    const bytes = data instanceof Uint8Array ? JSON.parse(Buffer.from(data).toString()) : data;
    client.inbox.push({ from: info?.user, data: bytes });
  });
  client.connect();
  await client.ready();
  return client;
}

await scenario("federation: clients of two servers exchange messages, in JSON and in Protobuf", async (t) => {
  const { a, b } = await pair(t);
  const alice = await user(t, a, "alice");
  const bob = await user(t, b, "bob", { sdk: ProtobufCentrifuge });
  const sent = await alice.rpc("dunlin.send", { to: "bob@b.example", data: { text: "hello" } });
  assert.equal(sent.data.status, "delivered");
  await until(() => bob.inbox.length === 1, "alice's message");
  assert.deepEqual(bob.inbox, [{ from: "alice@a.example", data: { text: "hello" } }]);
  const request = Buffer.from(JSON.stringify({ to: "alice@a.example", data: { text: "and back" } }));
  const answer = await bob.rpc("dunlin.send", request);
  assert.equal(JSON.parse(Buffer.from(answer.data).toString()).status, "delivered");
  await until(() => alice.inbox.length === 1, "bob's answer");
  assert.deepEqual(alice.inbox, [{ from: "bob@b.example", data: { text: "and back" } }]);
  await assert.rejects(alice.rpc("dunlin.send", { to: "carol@mail.example", data: 1 }), { code: 107 });
});

await scenario("federation: what is sent while the line is cut arrives once and in order", async (t) => {
  const { a, b, line } = await pair(t);
  const alice = await user(t, a, "alice");
  const bob = await user(t, b, "bob");
  const states = new Set();
  for (const n of range(0, 59)) {
    if (n % 15 === 7) line.cut();
    const { data } = await alice.rpc("dunlin.send", { to: "bob@b.example", data: { n } });
    states.add(data.status);
  }
  await until(() => bob.inbox.length >= 60, "all messages", 60_000);
  assert.deepEqual(bob.inbox.map(({ data }) => data.n), [...range(0, 59)]);
  assert(states.has("delivered") && states.has("queued"), [...states].join());
});
