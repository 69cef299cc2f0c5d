// A backend's pushes to Google's and a browser's services, played by Node's HTTP/2 server; the browser decrypts with the
// http_ece package.

import { execFile, execFileSync } from "node:child_process";
import crypto from "node:crypto";
import fs from "node:fs";
import http2 from "node:http2";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { assert, installed, scenario } from "./dunlin.mjs";

const ece = installed("http_ece");
const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../..");
const ACCOUNT_FILE = path.join(ROOT, "crates/push/tests/data/service-account.json");
const ACCOUNT = fs.readFileSync(ACCOUNT_FILE, "utf8");
// Made for tests; it opens nothing.
const VAPID_KEY = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw";
const HOSTS = ["fcm.googleapis.com", "oauth2.googleapis.com", "push.example.net"];

/// A service that answers by a function of (authority + path, headers, body).
async function service(t, answer) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "dunlin-push-"));
  t.after(() => fs.rmSync(directory, { recursive: true }));
  const [key, cert] = ["key.pem", "cert.pem"].map((name) => path.join(directory, name));
  const names = `subjectAltName=${HOSTS.map((host) => `DNS:${host}`).join(",")}`;
  const ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
  const end = ["-addext", names, "-addext", "basicConstraints=critical,CA:FALSE"];
  execFileSync("openssl", ["req", "-x509", ...ec, "-keyout", path.join(directory, "ca.key"), "-out", path.join(directory, "ca.pem"), "-subj", "/CN=tests"], { stdio: "pipe" });
  const signed = ["-CA", path.join(directory, "ca.pem"), "-CAkey", path.join(directory, "ca.key")];
  execFileSync("openssl", ["req", "-x509", ...signed, ...ec, ...end, "-keyout", key, "-out", cert, "-subj", "/CN=push services"], { stdio: "pipe" });
  const server = http2.createSecureServer({ key: fs.readFileSync(key), cert: fs.readFileSync(cert) });
  server.on("stream", (stream, headers) => {
    const pieces = [];
    stream.on("data", (piece) => pieces.push(piece));
    stream.on("end", () => {
      const { status, body = "", ...more } = answer(headers[":authority"] + headers[":path"], headers, Buffer.concat(pieces));
      stream.respond({ ":status": status, ...more });
      stream.end(body);
    });
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  t.after(() => server.close());
  const caFile = path.join(directory, "ca.pem");
  return { address: `127.0.0.1:${server.address().port}`, caFile, ca: fs.readFileSync(caFile, "utf8") };
}

async function post(url, body, method = "POST", headers = {}) {
  const answer = await fetch(url, { method, headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body) });
  return { status: answer.status, json: await answer.json() };
}

await scenario("one notification reaches Google's service and a browser, each in its own words", async (t) => {
  const browser = crypto.createECDH("prime256v1");
  const p256dh = browser.generateKeys("base64url");
  const auth = crypto.randomBytes(16);
  const seen = { tokens: 0, fcm: [], web: [] };
  const { address, ca, caFile } = await service(t, (target, headers, body) => {
    if (target === "oauth2.googleapis.com/token") {
      seen.tokens += 1;
      return { status: 200, body: JSON.stringify({ access_token: "granted", expires_in: 3599, token_type: "Bearer" }) };
    }
    if (target === "fcm.googleapis.com/v1/projects/demo-1/messages:send") {
      const { message } = JSON.parse(body);
      assert.equal(headers.authorization, "Bearer granted");
      seen.fcm.push(message);
      if (message.token !== "gone") return { status: 200, body: JSON.stringify({ name: `projects/demo-1/messages/${message.token}` }) };
      const details = [{ "@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", errorCode: "UNREGISTERED" }];
      return { status: 404, body: JSON.stringify({ error: { code: 404, status: "NOT_FOUND", details } }) };
    }
    if (target.startsWith("push.example.net/over")) return { status: 410 };
    assert.equal(target, "push.example.net/push/1");
    assert.match(headers.authorization, /^vapid t=/);
    seen.web.push(JSON.parse(ece.decrypt(body, { version: "aes128gcm", privateKey: browser, authSecret: auth.toString("base64url") })));
    return { status: 201, location: "https://push.example.net/message/7" };
  });

  const server = await t.server({ config: "admin.toml" });
  const config = (pointer, value) => post(`http://127.0.0.1:${server.adminPort}/config/${pointer}`, value, "PUT", server.adminHeaders);
  const api = async (method, body) => (await post(`${server.origin}/api/${method}`, body)).json;
  const route = { address, ca };
  const fcm = await config("push/fcm/shop", { service_account: ACCOUNT, token_address: address, route });
  assert.equal(fcm.status, 201, JSON.stringify(fcm.json));
  const vapid = { private_key: VAPID_KEY, subject: "mailto:ops@example.com", hosts: ["push.example.net"], route };
  assert.equal((await config("push/vapid/shop", vapid)).status, 201);

  const subscription = (endpoint) => ({ endpoint, expirationTime: null, keys: { p256dh, auth: auth.toString("base64url") } });
  const devices = [
    { provider: "fcm", app: "shop", tokens: ["here", "gone"] },
    { provider: "web", app: "shop", tokens: [subscription("https://push.example.net/push/1"), subscription("https://push.example.net/over")] },
    { provider: "web", app: "shop", token: subscription("https://elsewhere.example/push") },
  ];
  assert.equal((await api("push/devices/register", { user: "ada", devices })).result.registered, 5);
  const notification = { title: "Hello", data: { room: 7 }, fcm: { android: { ttl: "5s" } }, web: { actions: ["reply"] } };
  const { result } = await api("push", { notification, users: ["ada"] });
  assert.deepEqual([result.accepted, result.rejected, result.not_sent], [2, 2, 1], JSON.stringify(result));
  const ended = Object.fromEntries(result.outcomes.map((line) => [line.provider === "web" ? JSON.parse(line.token).endpoint : line.token, line]));
  assert.equal(ended.here.id, "projects/demo-1/messages/here");
  assert.equal(ended.gone.reason, "UNREGISTERED");
  assert.equal(ended["https://push.example.net/push/1"].id, "https://push.example.net/message/7");
  assert.equal(ended["https://push.example.net/over"].reason, "Gone");
  assert.match(ended["https://elsewhere.example/push"].detail, /no known push service/);

  assert.equal(seen.tokens, 1, "one access token serves all");
  const message = seen.fcm.find((message) => message.token === "here");
  assert.deepEqual([message.notification.title, message.data.room, message.android.ttl], ["Hello", "7", "5s"]);
  assert.deepEqual(seen.web, [{ title: "Hello", data: { room: 7 }, actions: ["reply"] }]);

  const { result: feed } = await api("push/devices/feed", { after: 0, wait_ms: 10_000 });
  assert.ok(feed.entries.length > 0 && feed.entries.every((entry) => entry.dropped && entry.user === "ada"));

  // The same from a shell.
  const send = async (...flags) => {
    const way = ["--address", address, "--roots", caFile, "--title", "By hand"];
    const { stdout } = await promisify(execFile)(process.env.DUNLIN_BIN, ["push", "send", ...flags, ...way]);
    return stdout;
  };
  assert.match(await send("fcm", "--token", "here", "--account", ACCOUNT_FILE, "--token-address", address), /^accepted projects\/demo-1\/messages\/here/);
  const to = JSON.stringify(subscription("https://push.example.net/push/1"));
  assert.match(await send("web", "--subscription", to, "--key", VAPID_KEY, "--contact", "mailto:ops@example.com"), /^accepted https:/);
  assert.equal(seen.web[1].title, "By hand");
  await assert.rejects(send("fcm", "--token", "gone", "--account", ACCOUNT_FILE, "--token-address", address), /UNREGISTERED|404/);
});

await scenario("what a service says of a message is reported in its words, and what it asks for is waited for", async (t) => {
  const browser = crypto.createECDH("prime256v1");
  const p256dh = browser.generateKeys("base64url");
  const auth = crypto.randomBytes(16).toString("base64url");
  const seen = { fcm: [], web: [] };
  const fault = (code, status, message, errorCode) => {
    const details = errorCode ? [{ "@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", errorCode }] : [];
    return { status: code, body: JSON.stringify({ error: { code, status, message, details } }) };
  };
  const { address, ca } = await service(t, (target, headers, body) => {
    if (target.startsWith("oauth2")) return { status: 200, body: JSON.stringify({ access_token: "granted", expires_in: 3599, token_type: "Bearer" }) };
    if (target.startsWith("push.example.net")) {
      seen.web.push(headers);
      if (target.endsWith("/elsewhere")) return { status: 404 };
      if (target.endsWith("/apple")) return { status: 403, body: '{"reason":"BadJwtToken"}' };
      if (target.endsWith("/mozilla")) return { status: 400, body: '{"code":400,"errno":110,"error":"Bad Request","message":"Invalid crypto keys"}' };
      if (target.endsWith("/busy") && seen.web.filter((headers) => headers[":path"] === "/busy").length === 1) return { status: 429, "retry-after": "1" };
      return { status: 201, location: "https://push.example.net/message/1" };
    }
    const { message } = JSON.parse(body);
    seen.fcm.push(message);
    if (message.token === "mistyped") return fault(400, "INVALID_ARGUMENT", "The registration token is not a valid FCM registration token", "INVALID_ARGUMENT");
    if (message.token === "other") return fault(403, "PERMISSION_DENIED", "SenderId mismatch", "SENDER_ID_MISMATCH");
    if (message.topic === "crowded") return fault(429, "RESOURCE_EXHAUSTED", "Topic quota exceeded.", "QUOTA_EXCEEDED");
    const busy = message.token === "busy" && seen.fcm.filter((message) => message.token === "busy").length === 1;
    if (busy) return { ...fault(503, "UNAVAILABLE", "The service is currently unavailable.", "UNAVAILABLE"), "retry-after": "1" };
    return { status: 200, body: JSON.stringify({ name: `projects/demo-1/messages/${message.token ?? message.topic ?? message.condition}` }) };
  });

  const server = await t.server({ config: "admin.toml" });
  const config = (pointer, value) => post(`http://127.0.0.1:${server.adminPort}/config/${pointer}`, value, "PUT", server.adminHeaders);
  const api = async (method, body) => (await post(`${server.origin}/api/${method}`, body)).json;
  const route = { address, ca };
  assert.equal((await config("push/fcm/shop", { service_account: ACCOUNT, token_address: address, route })).status, 201);
  const vapid = { private_key: VAPID_KEY, subject: "mailto:ops@example.com", hosts: ["push.example.net"], route };
  assert.equal((await config("push/vapid/shop", { ...vapid, subject: "mailto: <ops@example.com>" })).status, 422);
  assert.equal((await config("push/vapid/shop", vapid)).status, 201);

  // Google's.
  const notification = { title: "Hello", collapse_id: "room-7", ttl_s: 90, urgency: "normal" };
  const fcm = (...tokens) => [{ provider: "fcm", app: "shop", tokens }];
  const topic = (name) => ({ provider: "fcm", app: "shop", topic: name });
  assert.equal((await api("push/devices/register", { user: "ada", devices: fcm("mistyped", "other") })).result.registered, 2);
  const { result } = await api("push", {
    notification, devices: fcm("fine", "busy"), users: ["ada"], timeout_ms: 20_000,
    broadcasts: [topic("news"), topic("crowded"), { provider: "fcm", app: "shop", condition: "'a' in topics" }],
  });
  const ended = Object.fromEntries(result.outcomes.map((line) => [line.token ?? line.topic ?? line.condition, line]));
  for (const name of ["fine", "busy", "news", "'a' in topics"]) assert.equal(ended[name].outcome, "accepted", JSON.stringify(ended[name]));
  assert.deepEqual([ended.mistyped.reason, ended.mistyped.detail], ["INVALID_ARGUMENT", "The registration token is not a valid FCM registration token"]);
  assert.equal(ended.other.reason, "SENDER_ID_MISMATCH");
  // A topic's quota is its own: the others were not kept waiting, and its minute is longer than this push has.
  assert.deepEqual([ended.crowded.reason, ended.crowded.status, ended.crowded.retry_after_s], ["QUOTA_EXCEEDED", 429, 60]);
  assert.equal(seen.fcm.filter((message) => message.token === "busy").length, 2, "it was sent again once it had waited");
  const { android } = seen.fcm.find((message) => message.token === "fine");
  assert.deepEqual([android.ttl, android.priority, android.collapse_key], ["90s", "NORMAL", "room-7"]);
  assert.equal((await api("push/devices/list", { user: "ada" })).result.devices.length, 2, "neither says that a token is over");
  const large = await api("push", { notification: { data: { text: "x".repeat(3_000) } }, devices: fcm("fine"), broadcasts: [topic("news")] });
  assert.deepEqual(large.result.outcomes.map((line) => line.outcome).sort(), ["accepted", "not_sent"], "2,048 bytes for topics");

  // The browsers'.
  const web = (...paths) => paths.map((path) => ({ endpoint: `https://push.example.net${path}`, keys: { p256dh, auth } }));
  const devices = [{ provider: "web", app: "shop", tokens: web("/fine", "/elsewhere", "/apple", "/mozilla", "/busy") }];
  assert.equal((await api("push/devices/register", { user: "bob", devices })).result.registered, 5);
  const reported = (await api("push", { notification, users: ["bob"], timeout_ms: 20_000 })).result;
  const browsers = Object.fromEntries(reported.outcomes.map((line) => [new URL(JSON.parse(line.token).endpoint).pathname, line]));
  assert.deepEqual([browsers["/fine"].outcome, browsers["/busy"].outcome], ["accepted", "accepted"]);
  assert.deepEqual([browsers["/elsewhere"].status, browsers["/elsewhere"].reason], [404, "Gone"]);
  assert.deepEqual([browsers["/apple"].status, browsers["/apple"].reason], [403, "BadJwtToken"]);
  assert.deepEqual([browsers["/mozilla"].reason, browsers["/mozilla"].detail], ["BadRequest", "Invalid crypto keys"]);
  const { ttl, urgency, topic: replaces } = seen.web.find((headers) => headers[":path"] === "/fine");
  assert.deepEqual([ttl, urgency, replaces], ["90", "normal", "room-7"]);
  const { result: feed } = await api("push/devices/feed", { after: 0, wait_ms: 10_000 });
  assert.deepEqual(feed.entries.map((entry) => [entry.reason, entry.dropped]), [["Gone", true]]);
  assert.equal((await api("push/devices/list", { user: "bob" })).result.devices.length, 4);
});
