// `dunlin bench http` against other people's servers, and other people's clients against `dunlin bench serve`.

import { once } from "node:events";
import fs from "node:fs";
import http from "node:http";
import http2 from "node:http2";
import path from "node:path";

import { assert, installed, scenario } from "./dunlin.mjs";
import { DUNLIN, attempt, certificate, directory, freePort, listening, load, nginx, run, start } from "./generator.mjs";

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
  const folder = directory(t);
  const port = await freePort();
  const server = await nginx(t, port, folder, `
    access_log ${folder}/access.log ledger; keepalive_requests 100; listen 127.0.0.1:${port};
    location / { add_header X-Request-Id $http_x_request_id; add_header X-Served $connection-$connection_requests; return 200 'hello'; }`,
    "log_format ledger '$connection-$connection_requests $http_x_request_id $status';");
  const ledger = path.join(folder, "ledger");
  const result = await load(`http://127.0.0.1:${port}/`, "-c", "10", "-p", "50", "-n", "5000", "--check-id", "--ledger", ledger);
  assert.equal(result.answered, 5000);
  server.kill("SIGTERM");
  await once(server, "close");
  const check = await run(DUNLIN, ["bench", "ledger", "--client", ledger, "--server", `${folder}/access.log`, "--requests", "5000", "--json"]);
  const agreement = JSON.parse(check.stdout);
  assert.equal(check.status, 0, check.stderr);
  assert.deepEqual([agreement.agreed, agreement.done_twice, agreement.server_lines], [5000, 0, 5000]);
});

await scenario("nginx over TLS and a unix socket: ALPN, versions, a certificate of the client's own, HTTP/1.1 and HTTP/2", async (t) => {
  const folder = directory(t);
  const [own, client] = [await certificate(folder, "server"), await certificate(folder, "client")];
  const [port, strict] = [await freePort(), await freePort()];
  const answer = "location / { add_header X-Request-Id $http_x_request_id; return 200 '$server_protocol $ssl_client_verify'; }";
  const tls = `ssl_certificate ${own.cert}; ssl_certificate_key ${own.key}; ssl_protocols TLSv1.3; ssl_client_certificate ${client.cert};`;
  await nginx(t, port, folder, `listen 127.0.0.1:${port} ssl http2; listen unix:${folder}/plain.sock; ${tls} ${answer}`,
    `server { listen 127.0.0.1:${strict} ssl http2; ${tls} ssl_verify_client on; ${answer} }`);
  const many = ["-c", "3", "-p", "20", "-n", "2000", "--check-id"];
  const url = `https://localhost:${port}/`;
  for (const [version, protocol] of [["1.1", "HTTP/1.1"], ["2", "HTTP/2.0"]]) {
    const result = await load(url, ...many, "--http", version, "--ca", own.cert, "--expect-body", protocol);
    assert.equal(result.answered, 2000);
    // Whoever the server wants to know shows a certificate of its own.
    const mutual = `https://localhost:${strict}/`;
    const shown = await load(mutual, ...many, "--http", version, "--ca", own.cert, "--cert", client.cert, "--key", client.key, "--expect-body", "SUCCESS");
    assert.equal(shown.answered, 2000);
    const hidden = await attempt(mutual, "-n", "3", "-c", "1", "--http", version, "--ca", own.cert);
    assert.deepEqual([hidden.status, hidden.result.errors["status 400"]], [1, 3]);
  }
  const older = await attempt(url, "-n", "1", "-c", "1", "--ca", own.cert, "--tls-version", "1.2");
  assert.match(older.result.error_samples[0], /^localhost:\d+: TLS: /);
  const stranger = await attempt(url, "-n", "1", "-c", "1", "--http", "2", "--ca", client.cert);
  assert.match(stranger.result.error_samples[0], /TLS: .*certificate.*--ca FILE/);
  const local = await load("http://any.example/", ...many, "--unix-socket", `${folder}/plain.sock`, "--expect-body", "HTTP/1.1");
  assert.equal(local.answered, 2000);
});

await scenario("nghttpd: HTTP/2 over TLS by ALPN, and without", async (t) => {
  const folder = directory(t);
  const { cert, key } = await certificate(folder, "server");
  fs.writeFileSync(path.join(folder, "page.txt"), "served by nghttpd\n");
  for (const [scheme, options, files] of [["https", [], [key, cert]], ["http", ["--no-tls"], []]]) {
    const port = await freePort();
    await start(t, port, "nghttpd", ["--address=127.0.0.1", `--htdocs=${folder}`, ...options, String(port), ...files]);
    const trusted = scheme === "https" ? ["--ca", cert] : [];
    const result = await load(`${scheme}://127.0.0.1:${port}/page.txt`, "--http", "2", "-c", "2", "-p", "50", "-n", "3000", "--expect-body", "served by nghttpd", ...trusted);
    assert.equal(result.answered, 3000);
    assert.equal(result.connection_events.opened, 2);
  }
});

await scenario("HdrHistogram's reader for JavaScript reads the log, and finds the percentiles of the summary", async (t) => {
  const { HistogramLogReader } = installed("hdr-histogram-js");
  const log = path.join(directory(t), "run.hlog");
  const origin = await listening(t, http.createServer((_, response) => response.end("hello")));
  const result = await load(origin, "-c", "4", "-n", "3000", "--hdr-log", log);
  const reader = new HistogramLogReader(fs.readFileSync(log, "utf8"));
  let sum = null, intervals = 0;
  for (let next = reader.nextIntervalHistogram(); next; next = reader.nextIntervalHistogram(), intervals++) {
    if (sum) sum.add(next);
    else sum = next;
  }
  assert(intervals > 0);
  assert.equal(sum.totalCount, 3000);
  for (const [percentile, us] of [[50, result.latency_us.p50], [99, result.latency_us.p99], [100, result.latency_us.max]]) {
    const read = sum.getValueAtPercentile(percentile) / 1000;
    assert(Math.abs(read - us) <= us * 0.002, `${percentile} %: ${read} µs in the log, ${us} in the summary`);
  }
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
