// Tokens and keys made by `jose`, as a backend or an identity provider has them: subscription tokens in centrifuge-js, and a real
// key set on a real server, which may be slow, endless or gone.

import http from "node:http";
import { once } from "node:events";
import { pathToFileURL } from "node:url";

import { assert, exchange, installed, range, scenario, until, watch } from "./dunlin.mjs";

const jose = await import(pathToFileURL(installed.resolve("jose")).href);
const SECRET = new TextEncoder().encode("the-secret-of-the-interop-tests-0123456789");
const KEY = { "X-API-Key": "the-api-key-of-the-interop-tests" };
const now_s = () => Math.floor(Date.now() / 1000);

/// A token by HMAC; `lasts_s` from now.
const token = (claims, lasts_s = 60, secret = SECRET) =>
  new jose.SignJWT(claims).setProtectedHeader({ alg: "HS256" }).setExpirationTime(now_s() + lasts_s).sign(secret);

/// An identity provider: keys by algorithm and `kid`, and their set at a URL.
class Provider {
  keys = {};
  fetches = 0;
  /// How a request for the set is answered.
  answer = (response) => response.writeHead(200, { "Content-Type": "application/jwk-set+json" }).end(JSON.stringify(this.set));

  static async open(t) {
    const provider = new Provider();
    provider.server = http.createServer((request, response) => {
      provider.fetches += 1;
      response.on("error", () => {});
      provider.answer(response);
    });
    provider.server.listen(0, "127.0.0.1");
    await once(provider.server, "listening");
    t.after(() => (provider.server.closeAllConnections(), provider.server.close()));
    provider.url = `http://127.0.0.1:${provider.server.address().port}/keys`;
    return provider;
  }

  async add(kid, alg) {
    const options = { extractable: true, ...(alg === "EdDSA" && { crv: "Ed25519" }) };
    this.keys[kid] = { alg, ...(await jose.generateKeyPair(alg, options)) };
    this.keys[kid].jwk = { ...(await jose.exportJWK(this.keys[kid].publicKey)), kid, alg, use: "sig" };
  }

  get set() {
    // A secret and a key for encryption are among them, as providers have them.
    const others = [{ kty: "oct", kid: "secret", k: "c2VjcmV0LW9mLXRoZS1wcm92aWRlcg" }, { kty: "RSA", kid: "enc", use: "enc", n: "AQAB", e: "AQAB" }];
    return { keys: [...others, ...Object.values(this.keys).map(({ jwk }) => jwk)] };
  }

  token(kid, claims = { sub: "ann" }, as = kid) {
    const { alg, privateKey } = this.keys[kid];
    return new jose.SignJWT(claims).setProtectedHeader({ alg, kid: as }).setExpirationTime("1h").sign(privateKey);
  }

  /// Has the server take its keys from here.
  async serve(server) {
    const patch = { client: { token: { jwks_public_endpoint: this.url } } };
    const headers = { Authorization: "Bearer the-admin-token-of-the-interop-tests", "Content-Type": "application/merge-patch+json" };
    const { status, text } = await exchange(server.adminPort, "PATCH", "/config", JSON.stringify(patch), headers);
    assert.equal(status, 200, text);
  }
}

/// What becomes of a connect with this token: the user's connection, or the code that refuses it.
async function connected(t, server, token) {
  const client = await t.client(server, "websocket", { connect: false, token });
  client.connect();
  await until(() => client.state === "connected" || client.disconnects.some(({ code }) => code >= 3000), "the connect to be decided");
  return client.state === "connected" ? "connected" : client.disconnects.find(({ code }) => code >= 3000).code;
}

async function metric(server, name) {
  const { text } = await exchange(server.adminPort, "GET", "/metrics", undefined, { Authorization: "Bearer the-admin-token-of-the-interop-tests" });
  return Number(text.match(new RegExp(`^dunlin_${name}(?:{[^}]*})? (\\d+)`, "m"))?.[1]);
}

await scenario("subscription tokens: getToken opens a private channel, and keeps it open beyond the life of each token", async (t) => {
  const server = await t.server({ config: "access.toml" });
  const client = await t.client(server, "websocket", { token: await token({ sub: "ann" }) });
  const asked = [];
  const getToken = async ({ channel }) => {
    asked.push(channel);
    return token({ sub: "ann", channel, info: { of: "ann" } }, asked.length < 3 ? 2 : 60);
  };
  const room = await watch(client, "private:room", { getToken, getData: async () => ({ any: 1 }) });
  assert.equal(room.subscribed.length, 1, JSON.stringify(room.errors));
  await until(() => asked.length >= 3, "two refreshes");
  await server.api("publish", { channel: "private:room", data: 1 }, KEY);
  await room.received(1);
  assert.deepEqual([room.subscribed.length, room.unsubscribed.length], [1, 0], "it was refreshed, not made again");
});

await scenario("subscription tokens: an expired one is error 109, and the SDK comes with another", async (t) => {
  const server = await t.server({ config: "access.toml" });
  const client = await t.client(server, "websocket", { token: await token({ sub: "ann" }) });
  const getToken = ({ channel }) => token({ sub: "ann", channel });
  const expired = await token({ sub: "ann", channel: "private:room" }, -60);
  const room = await watch(client, "private:room", { token: expired, getToken });
  await room.subscribedTimes(1);
  assert.equal(room.errors[0].error.code, 109);
});

await scenario("subscription tokens: who has no new one is unsubscribed (2501), and comes back with one", async (t) => {
  const server = await t.server({ config: "access.toml" });
  const socket = await t.socket(server);
  socket.say({ id: 1, connect: { token: await token({ sub: "ann" }) } });
  await socket.answer(1);
  socket.say({ id: 2, subscribe: { channel: "private:room", token: await token({ sub: "ann", channel: "private:room" }, 2) } });
  assert.equal((await socket.answer(2)).subscribe.expires, true);
  const push = await until(() => socket.lines.find((line) => line.push?.unsubscribe), "the end of the subscription");
  assert.deepEqual([push.push.channel, push.push.unsubscribe.code], ["private:room", 2501]);
  socket.say({ id: 3, subscribe: { channel: "private:room", token: await token({ sub: "ann", channel: "private:room" }) } });
  assert.equal((await socket.answer(3)).subscribe.expires, true);
});

await scenario("subscription tokens: another user's, another channel's, a connection's and a forged one open nothing", async (t) => {
  const server = await t.server({ config: "access.toml" });
  const channel = "private:room";
  for (const [claims, secret, what] of [
    [{ sub: "bob", channel }, SECRET, 3500],
    [{ sub: "ann", channel: "private:other" }, SECRET, 3500],
    [{ sub: "ann" }, SECRET, 103],
    [{ sub: "ann", channel }, new TextEncoder().encode("another-secret-that-nobody-knows"), 103],
  ]) {
    const socket = await t.socket(server);
    socket.say({ id: 1, connect: { token: await token({ sub: "ann" }) } }, { id: 2, subscribe: { channel, token: await token(claims, 60, secret) } });
    const answer = until(() => socket.lines.find((line) => line.id === 2), "the refusal").then(({ error }) => error?.code);
    const code = await Promise.race([answer.catch(() => null), socket.closed.then(({ code }) => code)]);
    assert.equal(code, what, JSON.stringify(claims));
  }
});

await scenario("subscription tokens: a revoked one ends its subscription with 2502, and the SDK gets another", async (t) => {
  const server = await t.server({ config: "access.toml" });
  const client = await t.client(server, "websocket", { token: await token({ sub: "ann" }) });
  let given = 0;
  const getToken = ({ channel }) => token({ sub: "ann", channel, jti: `token-${++given}` });
  const room = await watch(client, "private:room", { getToken });
  assert.equal(room.subscribed.length, 1);
  await server.api("revoke_token", { uid: "token-1" }, KEY);
  await room.subscribedTimes(2);
  assert.equal(given, 2);
});

await scenario("keys: tokens of every algorithm of an identity provider let in by its key set", async (t) => {
  const server = await t.server({ config: "access.toml" });
  const provider = await Provider.open(t);
  for (const alg of ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]) await provider.add(alg, alg);
  await provider.serve(server);
  for (const kid of Object.keys(provider.keys)) assert.equal(await connected(t, server, await provider.token(kid)), "connected", kid);
  assert.equal(await connected(t, server, await token({ sub: "ann" })), "connected", "the secret goes on");
  // An HMAC by a public key, by the set's secret, a token of another key, and none at all.
  const pem = new TextEncoder().encode(await jose.exportSPKI(provider.keys.RS256.publicKey));
  const by = (secret, kid) => new jose.SignJWT({ sub: "admin" }).setProtectedHeader({ alg: "HS256", kid }).sign(secret);
  for (const wrong of [
    await by(pem, "RS256"),
    await by(new TextEncoder().encode("secret-of-the-provider"), "secret"),
    await provider.token("RS256", { sub: "admin" }, "RS384"),
    new jose.UnsecuredJWT({ sub: "admin" }).encode(),
  ]) {
    assert.equal(await connected(t, server, wrong), 3500);
  }
});

await scenario("keys: a connect waits for a key that is new, and ten thousand unknown ones cost a fetch an interval", async (t) => {
  const server = await t.server({ config: "access.toml" });
  const provider = await Provider.open(t);
  await provider.add("old", "ES256");
  await provider.serve(server);
  assert.equal(await connected(t, server, await provider.token("old")), "connected");
  await provider.add("new", "ES256");
  assert.equal(await connected(t, server, await provider.token("new")), "connected");

  const before = { fetches: provider.fetches, at: performance.now() };
  const forged = (await provider.token("new")).split(".");
  const header = (kid) => Buffer.from(JSON.stringify({ alg: "ES256", kid })).toString("base64url");
  for (const tens of range(0, 99)) {
    await Promise.all(
      range(0, 99).map(async (n) => {
        const poll = `/connection/poll?channel=news&timeout=0&token=${[header(`kid-${tens}-${n}`), forged[1], forged[2]].join(".")}`;
        const { status } = await server.get(poll);
        assert([401, 503].includes(status), status);
      }),
    );
  }
  const intervals = (performance.now() - before.at) / 500;
  assert(provider.fetches - before.fetches <= intervals + 2, `${provider.fetches - before.fetches} fetches in ${intervals} intervals`);
  assert.equal(await connected(t, server, await provider.token("new")), "connected");
  const [unknown] = [[header("nobody"), forged[1], forged[2]].join(".")];
  await until(async () => (await connected(t, server, unknown)) === 3500, "the refusal of a key that is in no set");
});

for (const [what, answer] of [
  ["never answers", () => {}],
  ["is refused", (response) => response.writeHead(500).end("no")],
  ["has garbage", (response) => response.writeHead(200).end("<html>")],
  ["has 100 MB", (response) => response.writeHead(200, { "Content-Length": 100 << 20 }).end(Buffer.alloc(100 << 20, 32))],
  ["never ends", (response) => {
      response.writeHead(200);
      const more = () => !response.destroyed && response.write(Buffer.alloc(1 << 16, 32), () => setImmediate(more));
      more();
    }],
]) {
  await scenario(`keys: a key set that ${what} stops nobody whose key is known`, async (t) => {
    const server = await t.server({ config: "access.toml" });
    const provider = await Provider.open(t);
    await provider.add("old", "ES256");
    await provider.serve(server);
    assert.equal(await connected(t, server, await provider.token("old")), "connected");
    await provider.add("new", "ES256");
    const good = provider.answer;
    provider.answer = answer;
    const waiting = connected(t, server, await provider.token("new"));
    await until(() => provider.fetches >= 2, "the fetch for the new key");
    for (const _ of range(1, 20)) assert.equal(await connected(t, server, await provider.token("old")), "connected");
    await until(async () => (await metric(server, "token_jwks_fetch_failures_total")) >= 1, "the failure in the metrics");
    assert.equal(await metric(server, "token_jwks_keys"), 1, "the key before stays");
    provider.answer = good;
    // It was asked to come again, and does.
    assert.equal(await waiting, "connected");
  });
}
