// What the stories in this directory share: a server of their own, other people's clients, a line that can be cut.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

const HERE = path.dirname(fileURLToPath(import.meta.url));
export const CACHE = path.resolve(HERE, "../../../.cache/interop");
export const installed = createRequire(path.join(CACHE, "package.json"));

export const { Centrifuge } = installed("centrifuge");
export const EventSource = installed("eventsource");
export const WebSocket = installed("ws");
export { assert };

const SCENARIO_TIMEOUT_MS = 100_000;
const TIMEOUT_MS = 10_000;
const LOG_LINES_SHOWN = 60;

/// Runs one story: `story(t)` gets what it needs from `t`, which ends all of it afterwards. One line of outcome; a story
/// that fails shows the log of its servers.
export async function scenario(name, story) {
  const t = new Stage();
  const began = performance.now();
  const outcome = await Promise.race([story(t).then(() => null, (error) => error), timeout(SCENARIO_TIMEOUT_MS, "the story to end")]);
  for (const server of t.servers) t.complaints.push(...(await server.faults()));
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  if (outcome === null && t.complaints.length === 0) {
    console.log(`ok     ${name} (${seconds} s)`);
  } else {
    process.exitCode = 1;
    console.log(`FAILED ${name} (${seconds} s)`);
    const reasons = [...t.complaints, outcome && (outcome.stack ?? outcome)].filter(Boolean).join("\n");
    console.log(indent(reasons));
    for (const server of t.servers) console.log(indent(`--- log of ${server.origin}\n${server.lastLines()}`));
  }
  await t.clear();
}

/// The props of one story; everything it hands out ends with the story.
class Stage {
  servers = [];
  complaints = [];
  #endings = [];

  /// Calls `ending` when the story is over.
  after(ending) {
    this.#endings.unshift(ending);
  }

  async server({ state = false, ...options } = {}) {
    const directory = state ? fs.mkdtempSync(path.join(os.tmpdir(), "dunlin-interop-")) : null;
    if (directory) this.after(() => fs.rmSync(directory, { recursive: true }));
    const server = new Server({ ...options, state: directory });
    this.servers.push(server);
    this.after(() => server.kill());
    await server.start();
    return server;
  }

  /// A TCP line to the server that the story can cut.
  async line(server) {
    const line = await Line.open(server.clientPort);
    this.after(() => line.close());
    return line;
  }

  /// A connected centrifuge-js that remembers its `id` and its `disconnects`. `to` is a server or a line; `transport` as centrifuge-js names it. Without
  /// `connect: false` it is connected when this returns.
  async client(to, transport = "websocket", { connect = true, sdk = Centrifuge, ...options } = {}) {
    const http_origin = `http://127.0.0.1:${to.clientPort ?? to.port}`;
    const endpoint =
      transport === "websocket"
        ? `${http_origin.replace("http", "ws")}/connection/websocket`
        : [{ transport, endpoint: `${http_origin}/connection/${transport}` }];
    const client = new sdk(endpoint, {
      websocket: WebSocket,
      eventsource: EventSource,
      emulationEndpoint: `${http_origin}/emulation`,
      minReconnectDelay: 20,
      maxReconnectDelay: 300,
      ...options,
    });
    client.disconnects = [];
    client.on("connected", (context) => (client.id = context.client));
    client.on("connecting", (context) => client.disconnects.push(context));
    client.on("disconnected", (context) => client.disconnects.push(context));
    this.after(() => client.disconnect());
    if (connect) {
      client.connect();
      await client.ready(TIMEOUT_MS);
    }
    return client;
  }

  /// A bare WebSocket that collects what it receives, one entry a line; for what no SDK would send.
  async socket(server, path = "/connection/websocket", options = {}) {
    const socket = new WebSocket(`ws://127.0.0.1:${server.clientPort ?? server.port}${path}`, options);
    socket.lines = [];
    socket.on("message", (data) => {
      for (const line of data.toString().split("\n")) if (line.trim()) socket.lines.push(JSON.parse(line));
    });
    socket.closed = once(socket, "close").then(([code, reason]) => ({ code, reason: reason.toString() }));
    this.after(() => socket.terminate());
    await once(socket, "open");
    socket.say = (...commands) => socket.send(commands.map((command) => JSON.stringify(command)).join("\n"));
    socket.answer = (id) => until(() => socket.lines.find((line) => line.id === id), `the answer to command ${id}`);
    return socket;
  }

  /// An EventSource (npm) on the unidirectional stream; collects what it is pushed.
  async eventSource(server, connect) {
    const url = `http://127.0.0.1:${server.clientPort ?? server.port}/connection/uni_sse?cf_connect=${encodeURIComponent(JSON.stringify(connect))}`;
    const source = new EventSource(url);
    source.pushes = [];
    source.onmessage = ({ data }) => source.pushes.push(JSON.parse(data));
    this.after(() => source.close());
    await until(() => source.pushes.some((push) => push.connect || push.disconnect), "the stream's first push");
    return source;
  }

  /// A unidirectional HTTP stream; collects what it is pushed.
  async httpStream(server, connect) {
    const request = http.request({ host: "127.0.0.1", port: server.clientPort ?? server.port, method: "POST", path: "/connection/uni_http_stream", agent: false });
    this.after(() => request.destroy());
    request.on("error", () => {});
    request.end(JSON.stringify(connect));
    const stream = { pushes: [], ended: false };
    const [response] = await once(request, "response");
    stream.status = response.statusCode;
    response.on("error", () => (stream.ended = true));
    response.on("end", () => (stream.ended = true));
    let rest = "";
    response.setEncoding("utf8").on("data", (text) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line) stream.pushes.push(JSON.parse(line));
    });
    await until(() => stream.pushes.length > 0 || stream.ended, "the stream's first push");
    return stream;
  }

  async clear() {
    for (const ending of this.#endings) {
      try {
        await ending();
      } catch (error) {
        console.log(indent(`while clearing up: ${error.message}`));
      }
    }
  }
}

/// A `dunlin serve` on ports of its own, which it keeps over a restart.
export class Server {
  #process = null;
  #log = "";
  #ending = false;
  died = null;

  /// `config`: a file of ../config, none for development mode; `configFile`: one that stands elsewhere; `state`: where it keeps
  /// what outlives it.
  constructor({ config = null, configFile = config && path.join(HERE, "../config", config), workers = 2, state = null } = {}) {
    this.configFile = configFile;
    this.state = state;
    this.workers = workers;
    // These have the token.
    this.adminHeaders = ["admin.toml", "pusher.toml"].includes(config) ? { Authorization: "Bearer the-admin-token-of-the-interop-tests" } : {};
  }

  async start() {
    this.clientPort ??= await freePort();
    this.adminPort ??= await freePort();
    this.origin = `http://127.0.0.1:${this.clientPort}`;
    const binary = process.env.DUNLIN_BIN;
    assert(binary, "DUNLIN_BIN is not set; it names the dunlin to test");
    const flags = ["serve", "--client", `127.0.0.1:${this.clientPort}`, "--admin", `127.0.0.1:${this.adminPort}`, "--workers", String(this.workers)];
    if (this.configFile) flags.push("--config", this.configFile);
    if (this.state) flags.push("--state", this.state);
    this.#ending = false;
    this.#process = spawn(binary, flags, { stdio: ["ignore", "pipe", "pipe"] });
    const process_ = this.#process;
    for (const stream of [process_.stdout, process_.stderr]) stream.on("data", (text) => (this.#log += text));
    process_.on("exit", (code, signal) => {
      if (!this.#ending) this.died = `status ${code}, signal ${signal}`;
    });
    this.exited = once(process_, "exit").then(([code, signal]) => ({ code, signal }));
    await until(async () => this.died || (await this.#healthy()), "the server to answer /health");
    if (this.died) throw new Error(`the server did not start: ${this.died}`);
  }

  async #healthy() {
    try {
      return (await exchange(this.adminPort, "GET", "/health")).status === 200;
    } catch {
      return false;
    }
  }

  /// SIGTERM, as an operator would; answers with how it exited.
  terminate() {
    this.#ending = true;
    this.#process.kill("SIGTERM");
    return this.exited;
  }

  /// SIGKILL: no goodbye.
  async kill() {
    if (!this.#process) return;
    this.#ending = true;
    this.#process.kill("SIGKILL");
    await this.exited;
  }

  /// Calls the server API; answers with the result, throws the error.
  async api(method, body, headers = {}) {
    const { status, text } = await exchange(this.clientPort, "POST", `/api/${method}`, JSON.stringify(body), headers);
    assert.equal(status, 200, `/api/${method} answered ${status}: ${text}`);
    const answer = JSON.parse(text);
    if (answer.error) throw Object.assign(new Error(answer.error.message), answer.error);
    return answer.result ?? answer;
  }

  publish(channel, data) {
    return this.api("publish", { channel, data });
  }

  async get(path) {
    const answer = await exchange(this.clientPort, "GET", path);
    return { ...answer, json: () => JSON.parse(answer.text) };
  }

  /// The sum of a metric over workers.
  async metric(name) {
    const { text } = await exchange(this.adminPort, "GET", "/metrics", undefined, this.adminHeaders);
    const lines = text.split("\n").filter((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`));
    return lines.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
  }

  /// What is wrong with the server itself: that it died, or that a worker had to begin anew.
  async faults() {
    if (this.died) return [`the server ended by itself: ${this.died}`];
    if (this.#ending) return [];
    const { text } = await exchange(this.adminPort, "GET", "/metrics", undefined, this.adminHeaders);
    return /^dunlin_worker_restarts_total\S* [1-9]/m.test(text) ? ["a worker panicked"] : [];
  }

  lastLines() {
    return this.#log.split("\n").slice(-LOG_LINES_SHOWN).join("\n");
  }
}

/// A TCP line to a port that can be cut, as a network does it.
export class Line {
  #pairs = new Set();
  #refusing = false;

  static async open(target) {
    const line = new Line();
    line.target = target;
    line.listener = net.createServer((near) => line.#join(near, line.target));
    line.listener.listen(0, "127.0.0.1");
    await once(line.listener, "listening");
    line.port = line.listener.address().port;
    return line;
  }

  #join(near, target) {
    if (this.#refusing) return near.destroy();
    const far = net.connect(target, "127.0.0.1");
    const pair = [near, far];
    this.#pairs.add(pair);
    const part = () => {
      this.#pairs.delete(pair);
      near.destroy();
      far.destroy();
    };
    for (const end of pair) end.on("error", part).on("close", part);
    near.pipe(far);
    far.pipe(near);
  }

  /// Cuts every connection; new ones get through at once.
  cut() {
    // A socket that still connects, or has its end behind it, would keep the process alive if it were reset.
    for (const end of [...this.#pairs].flat()) end.readyState === "open" ? end.resetAndDestroy() : end.destroy();
  }

  /// Cuts every connection; new ones lead to this port.
  moveTo(target) {
    this.target = target;
    this.cut();
  }

  /// Cuts every connection and lets none through until `mend`.
  fail() {
    this.#refusing = true;
    this.cut();
  }

  mend() {
    this.#refusing = false;
  }

  close() {
    this.cut();
    this.listener.close();
  }
}

/// Subscribes and records what happens: `publications`, `subscribed`, `unsubscribed`, `joins`, `leaves`, `errors`.
export async function watch(client, channel, options = {}) {
  const subscription = client.newSubscription(channel, { minResubscribeDelay: 20, maxResubscribeDelay: 300, ...options });
  const record = { subscription, publications: [], subscribed: [], unsubscribed: [], joins: [], leaves: [], errors: [] };
  subscription.on("publication", (context) => record.publications.push(context));
  subscription.on("subscribed", (context) => record.subscribed.push(context));
  subscription.on("unsubscribed", (context) => record.unsubscribed.push(context));
  subscription.on("join", (context) => record.joins.push(context));
  subscription.on("leave", (context) => record.leaves.push(context));
  subscription.on("error", (context) => record.errors.push(context));
  record.offsets = () => record.publications.map(({ offset }) => offset);
  record.received = (n) => until(() => record.publications.length >= n, () => `${n} publications, ${record.publications.length} came`);
  record.subscribedTimes = (n) => until(() => record.subscribed.length >= n, () => `subscription number ${n}, ${record.subscribed.length} came`);
  subscription.subscribe();
  await until(() => record.subscribed.length > 0 || record.unsubscribed.length > 0 || record.errors.length > 0, `the subscription to ${channel}`);
  return record;
}

/// The numbers from `first` to `last`.
export function range(first, last) {
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => first + index);
}

/// Waits until `condition` yields something; fails with what it waited for.
export async function until(condition, what, timeout_ms = TIMEOUT_MS) {
  const deadline = performance.now() + timeout_ms;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > deadline) throw new Error(`waited ${timeout_ms / 1000} s in vain for ${typeof what === "function" ? what() : what}`);
    await new Promise((resume) => setTimeout(resume, 5));
  }
}

/// One HTTP exchange on a connection of its own.
export async function exchange(port, method, path, body = "", headers = {}) {
  const request = http.request({ host: "127.0.0.1", port, method, path, agent: false, headers: { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(body), ...headers } });
  request.end(body);
  const [response] = await once(request, "response");
  let text = "";
  for await (const chunk of response.setEncoding("utf8")) text += chunk;
  return { status: response.statusCode, headers: response.headers, text };
}

// Ports below the kernel's ephemeral range, so that no outgoing connection of the tests takes one meanwhile.
const given = new Set();

export async function freePort() {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 12_000);
    // One that was given before may not be taken yet.
    if (given.has(port)) continue;
    const probe = net.createServer();
    const free = await new Promise((resolve) => probe.once("error", () => resolve(false)).listen(port, "127.0.0.1", () => resolve(true)));
    if (free) {
      probe.close();
      await once(probe, "close");
      given.add(port);
      return port;
    }
  }
}

function timeout(ms, what) {
  return new Promise((resolve) => setTimeout(resolve, ms, new Error(`waited ${ms / 1000} s in vain for ${what}`)).unref());
}

function indent(text) {
  return text.replace(/^/gm, "       ");
}
