// `dunlin bench http` against other people's servers, and other people's clients against `dunlin bench serve`.

import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import http from "node:http";
import http2 from "node:http2";
import net from "node:net";
import os from "node:os";
import path from "node:path";

import { assert, scenario } from "./dunlin.mjs";

const DUNLIN = process.env.DUNLIN_BIN;
/// Debian puts servers where an ordinary PATH does not look.
const NGINX = ["/usr/sbin/nginx", "nginx"].find((file) => fs.existsSync(file)) ?? "nginx";

/// Runs a program to its end: its status and what it printed.
async function run(program, args) {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"] });
  let stdout = "", stderr = "";
  child.stdout.on("data", (data) => (stdout += data));
  child.stderr.on("data", (data) => (stderr += data));
  const [status] = await once(child, "close");
  return { status, stdout, stderr };
}

/// `dunlin bench http … --json`: the object, after all went well.
async function load(...args) {
  const { status, stdout, stderr } = await run(DUNLIN, ["bench", "http", ...args, "--json"]);
  const result = JSON.parse(stdout.trim().split("\n").at(-1) || "null");
  assert.equal(status, 0, `${stderr}\n${JSON.stringify(result?.errors)}`);
  return result;
}

async function listening(t, server) {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.close();
    server.closeAllConnections?.();
  });
  return `http://127.0.0.1:${server.address().port}`;
}

async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/// Starts a server that a story ends, and waits until it listens.
async function start(t, port, program, args) {
  const child = spawn(program, args, { stdio: "ignore" });
  t.after(() => child.kill("SIGTERM"));
  const connects = () =>
    new Promise((resolve) => {
      const socket = net.connect(port, "127.0.0.1", () => resolve(true)).on("error", () => resolve(false));
      socket.on("connect", () => socket.destroy());
    });
  for (let left = 200; !(await connects()); left--) {
    assert(left > 0 && child.exitCode === null, `${program} does not listen`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return child;
}

await scenario("Node's server closes every seventh request: each id is answered once, in order", async (t) => {
  const seen = new Map();
  const server = http.createServer((request, response) => {
    const id = request.headers["x-request-id"];
    seen.set(id, (seen.get(id) ?? 0) + 1);
    response.setHeader("X-Request-Id", id);
    response.end(`answer to ${request.url}`);
  });
  server.maxRequestsPerSocket = 7;
  const origin = await listening(t, server);
  const result = await load(`${origin}/n/{n}`, "-c", "5", "-p", "10", "-n", "2000", "--check-id", "--expect-body", "answer to /n/");
  assert.equal(result.answered, 2000);
  assert.equal(seen.size, 2000);
  assert(result.connection_events.opened > 100);
});

await scenario("Node's server gets the bodies that templates make, chunked answers come back whole", async (t) => {
  const bodies = [];
  const server = http.createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    bodies.push(JSON.parse(body).n);
    response.write("first,");
    response.end("second");
  });
  const origin = await listening(t, server);
  const result = await load(`${origin}/`, "--body", '{"n":{n},"id":"{uuid}"}', "-H", "Content-Type: application/json", "-c", "3", "-n", "300", "--expect-body", "first,second");
  assert.equal(result.answered, 300);
  assert.deepEqual(bodies.sort((a, b) => a - b), Array.from({ length: 300 }, (_, n) => n));
});

await scenario("Node's HTTP/2 server: streams side by side, each with its own answer", async (t) => {
  const server = http2.createServer((request, response) => {
    response.setHeader("X-Request-Id", request.headers["x-request-id"]);
    response.end("x".repeat(20_000));
  });
  const sessions = new Set();
  server.on("session", (session) => sessions.add(session));
  t.after(() => sessions.forEach((session) => session.destroy()));
  const origin = await listening(t, server);
  const result = await load(`${origin}/{n}`, "--http", "2", "-c", "2", "-p", "20", "-n", "1000", "--check-id");
  assert.equal(result.answered, 1000);
  assert.equal(sessions.size, 2);
  assert(result.read_bytes >= 20_000_000);
});

await scenario("nginx closes at keepalive_requests: its log and our ledger agree line by line", async (t) => {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "dunlin-nginx-"));
  t.after(() => fs.rmSync(directory, { recursive: true, force: true }));
  const port = await freePort();
  const config = path.join(directory, "nginx.conf");
  const temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map((name) => `${name}_temp_path ${directory};`).join(" ");
  fs.writeFileSync(config, `
    worker_processes 1; daemon off; pid ${directory}/pid; error_log ${directory}/error.log;
    events { worker_connections 256; }
    http {
      log_format ledger '$connection-$connection_requests $http_x_request_id $status';
      access_log ${directory}/access.log ledger; keepalive_requests 100; ${temporary}
      server { listen 127.0.0.1:${port}; location / {
        add_header X-Request-Id $http_x_request_id; add_header X-Served $connection-$connection_requests; return 200 'hello'; } }
    }`);
  const nginx = await start(t, port, NGINX, ["-c", config]);
  const ledger = path.join(directory, "ledger");
  const result = await load(`http://127.0.0.1:${port}/`, "-c", "10", "-p", "50", "-n", "5000", "--check-id", "--ledger", ledger);
  assert.equal(result.answered, 5000);
  nginx.kill("SIGTERM");
  await once(nginx, "close");
  const check = await run(DUNLIN, ["bench", "ledger", "--client", ledger, "--server", `${directory}/access.log`, "--requests", "5000", "--json"]);
  const agreement = JSON.parse(check.stdout);
  assert.equal(check.status, 0, check.stderr);
  assert.deepEqual([agreement.agreed, agreement.done_twice, agreement.server_lines], [5000, 0, 5000]);
});

await scenario("curl reads what bench serve sends, and refuses what it should not", async (t) => {
  const port = await freePort();
  await start(t, port, DUNLIN, ["bench", "serve", "--listen", `127.0.0.1:${port}`]);
  const curl = (target, ...args) => run("curl", ["--silent", "--show-error", "--max-time", "5", ...args, `http://127.0.0.1:${port}${target}`]);
  assert.match((await curl("/")).stdout, /\/close-after\/100/);
  assert.equal((await curl("/bytes/30")).stdout, "Hello, World!Hello, World!Hell");
  assert.equal((await curl("/chunked/4")).stdout, "Hello, World!");
  assert.equal((await curl("/until-close/bytes/5")).stdout, "Hello");
  assert.equal((await curl("/echo", "--data", "ping")).stdout, "ping");
  assert.match((await curl("/id/a7", "--include")).stdout, /X-Request-Id: a7\r\n/);
  assert.match((await curl("/interim", "--include")).stdout, /103 Early Hints[^]*200 OK/);
  // curl's codes: 18 a partial body, 52 nothing at all, 56 a failure to receive, 1 or 8 no HTTP it knows.
  for (const [fault, codes] of [["cut-body", [18]], ["nothing", [52]], ["reset-body", [56]], ["cut-chunk", [18, 56]], ["bad-chunk-size", [56]], ["not-http", [1]]]) {
    const { status } = await curl(`/broken/${fault}`);
    assert(codes.includes(status), `${fault}: curl ended with ${status}`);
  }
});
