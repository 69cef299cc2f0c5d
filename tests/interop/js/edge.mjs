// TLS, and proxies that say whose a connection is: curl, openssl, centrifuge-js, nginx and HAProxy, with settings made while
// the server runs.

import fs from "node:fs";
import net from "node:net";
import path from "node:path";

import { assert, exchange, scenario, until, watch, WebSocket } from "./dunlin.mjs";
import { certificate, directory, freePort, nginx, run, start } from "./generator.mjs";

/// Where proxies connect from, as opposed to clients.
const PROXY = "127.0.0.9";
/// A change that names files takes a token.
const WITH_TOKEN = { config: "admin.toml" };

/// Changes settings of a server.
async function set(server, patch) {
  const headers = { "Content-Type": "application/merge-patch+json", ...server.adminHeaders };
  const { status, text } = await exchange(server.adminPort, "PATCH", "/config", JSON.stringify(patch), headers);
  assert.equal(status, 200, text);
}

/// A server with another listener, whose port this gives.
async function listener(t, ingress, more = {}) {
  const [server, port] = [await t.server(WITH_TOKEN), await freePort()];
  await set(server, { ...more, listeners: { other: { addr: `127.0.0.1:${port}`, ingress } } });
  return [server, port];
}

/// The status of the answer to a request from an address, whose connection is kept; null when it is closed without.
function ask(t, port, localAddress, headers = "") {
  return new Promise((resolve) => {
    const socket = net.connect({ port, host: "127.0.0.1", localAddress });
    t.after(() => socket.destroy());
    socket.on("data", (data) => resolve(Number(data.toString().split(" ")[1])));
    socket.on("error", () => resolve(null)).on("close", () => resolve(null));
    // It is answered at once, and stays open.
    const target = `/connection/uni_sse?cf_connect=${encodeURIComponent('{"subs":{"news":{}}}')}`;
    socket.write(`GET ${target} HTTP/1.1\r\nHost: localhost\r\n${headers}\r\n`);
  });
}

/// Two connections of each client are served, and the third of one is not.
async function twoEach(t, port, refused) {
  for (const client of ["127.0.0.5", "127.0.0.6", "127.0.0.5", "127.0.0.6"]) {
    assert.equal(await ask(t, port, client), 200, client);
  }
  assert.equal(await ask(t, port, "127.0.0.5"), refused, "the third of one client");
  assert.equal(await ask(t, port, "127.0.0.7"), 200, "another client");
}

const LIMITS = { limits: { connections_per_address_max: 2 } };

await scenario("curl, openssl and centrifuge-js speak TLS with a certificate set while the server runs", async (t) => {
  const folder = directory(t);
  const { cert, key } = await certificate(folder, "first");
  const certificates = { main: { chain_file: cert, key_file: key } };
  const [server, port] = await listener(t, { tls: true }, { tls: { certificates } });
  const curl = (...args) => run("curl", ["-sS", "--max-time", "10", "--cacert", cert, ...args]);

  for (const version of [["--tlsv1.2", "--tls-max", "1.2"], ["--tlsv1.3"], ["--http1.1"], ["--http2"]]) {
    const { stdout, stderr } = await curl("-o", "/dev/null", "-w", "%{http_code}", ...version, `https://localhost:${port}/`);
    assert.equal(stdout, "200", `${version}: ${stderr}`);
  }
  const body = "x".repeat(300_000);
  fs.writeFileSync(path.join(folder, "body"), JSON.stringify({ channel: "large", data: body }));
  const published = await curl("-d", `@${path.join(folder, "body")}`, `https://localhost:${port}/api/publish`);
  assert.match(published.stdout, /"offset":1/, published.stderr);
  const history = await curl("-d", '{"channel":"large","limit":1}', `https://localhost:${port}/api/history`);
  assert(history.stdout.includes(body), "a large answer comes whole");
  const plain = await run("curl", ["-sS", "-w", "%{http_code}", `http://localhost:${port}/`]);
  assert.match(plain.stdout, /https:\/\/.*400$/s, "plain HTTP is answered with what to do");

  const s_client = (input, ...args) =>
    run("sh", ["-c", `(${input}) | openssl s_client -connect localhost:${port} -servername localhost -CAfile ${cert} -alpn http/1.1 ${args.join(" ")}`]);
  // It reads what it is to send until the answer has come.
  const request = "printf 'GET / HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n'; sleep 1";
  for (const [version, shown] of [["-tls1_2", "TLSv1.2"], ["-tls1_3", "TLSv1.3"]]) {
    const { stdout } = await s_client(request, version);
    assert.match(stdout, new RegExp(`${shown}[^]*ALPN protocol: http/1.1|ALPN protocol: http/1.1[^]*${shown}`), version);
    assert.match(stdout, /Verif(y return code: 0|ication: OK)/);
    assert.match(stdout, /HTTP\/1.1 200 OK/);
  }
  // `K`, a line of its own, renews the keys of both directions.
  const renewed = await s_client(`sleep 0.5; printf 'K\\n'; sleep 0.5; ${request}`, "-tls1_3");
  assert.match(renewed.stdout + renewed.stderr, /KEYUPDATE[^]*HTTP\/1.1 200 OK|HTTP\/1.1 200 OK[^]*KEYUPDATE/);
  for (const refused of ["-tls1_1", "-tls1", "-cipher ALL:@SECLEVEL=0 -tls1"]) {
    assert.doesNotMatch((await s_client(request, refused)).stdout, /HTTP\/1.1/, refused);
  }

  class Secure extends WebSocket {
    constructor(url, protocols) {
      super(url, protocols, { ca: fs.readFileSync(cert) });
    }
  }
  const { Centrifuge } = await import("./dunlin.mjs");
  const client = new Centrifuge(`wss://localhost:${port}/connection/websocket`, { websocket: Secure });
  t.after(() => client.disconnect());
  client.connect();
  const news = await watch(client, "news");
  for (let n = 1; n <= 50; n++) await server.publish("news", { n });
  await news.received(50);
  assert.deepEqual(news.offsets(), Array.from({ length: 50 }, (_, at) => at + 1));

  // Files that have changed are read again; who is connected stays.
  const second = await certificate(folder, "second");
  fs.copyFileSync(second.key, key);
  const trusted = path.join(folder, "trusted.pem");
  fs.copyFileSync(second.cert, trusted);
  fs.copyFileSync(second.cert, cert);
  await until(async () => (await run("curl", ["-sS", "--cacert", trusted, `https://localhost:${port}/`])).status === 0, "the renewed certificate", 25_000);
  await server.publish("news", { n: 51 });
  await news.received(51);
});

await scenario("a certificate that cannot be used is refused, and the error says how to fix it", async (t) => {
  const server = await t.server(WITH_TOKEN);
  const folder = directory(t);
  const [first, second] = [await certificate(folder, "first"), await certificate(folder, "second")];
  const patch = { tls: { certificates: { main: { chain_file: first.cert, key_file: second.key } } }, server: { client_ingress: { tls: true } } };
  const headers = { "Content-Type": "application/merge-patch+json", ...server.adminHeaders };
  const { status, text } = await exchange(server.adminPort, "PATCH", "/config", JSON.stringify(patch), headers);
  assert.equal(status, 422, text);
  assert.match(text, /not the key of the certificate/);
  assert.equal((await server.get("/")).status, 200, "and plain HTTP is served as before");
});

await scenario("the admin port asks for a certificate of its clients", async (t) => {
  const server = await t.server(WITH_TOKEN);
  const folder = directory(t);
  const [own, theirs] = [await certificate(folder, "own"), await certificate(folder, "theirs")];
  const certificates = { main: { chain_file: own.cert, key_file: own.key } };
  const admin_ingress = { tls: true, client_ca: fs.readFileSync(theirs.cert, "utf8") };
  await set(server, { tls: { certificates }, server: { admin_ingress } });
  const health = (...args) => run("curl", ["-sS", "--cacert", own.cert, ...args, `https://localhost:${server.adminPort}/health`]);
  await until(async () => (await health("--cert", theirs.cert, "--key", theirs.key)).stdout.includes("serving"), "health over TLS");
  assert.notEqual((await health()).status, 0, "without one");
  assert.notEqual((await health("--cert", own.cert, "--key", own.key)).status, 0, "with another");
  // As it was, for whoever looks after the story.
  const patch = JSON.stringify({ server: { admin_ingress: { tls: false, client_ca: null } } });
  const back = await run("curl", ["-sS", "--cacert", own.cert, "--cert", theirs.cert, "--key", theirs.key, "-X", "PATCH", "-H", "Content-Type: application/merge-patch+json", "-H", `Authorization: ${server.adminHeaders.Authorization}`, "-d", patch, `https://localhost:${server.adminPort}/config`]);
  assert.equal(back.status, 0, back.stderr);
});

await scenario("behind HAProxy, PROXY protocol 1 and 2, limits are the clients'", async (t) => {
  for (const send of ["send-proxy", "send-proxy-v2"]) {
    const [server, port] = await listener(t, { trusted_proxies: [`${PROXY}/32`], proxy_protocol: true }, LIMITS);
    const [front, folder] = [await freePort(), directory(t)];
    const config = path.join(folder, "haproxy.cfg");
    fs.writeFileSync(config, `
defaults
  mode tcp
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen front
  bind 127.0.0.1:${front}
  server dunlin 127.0.0.1:${port} ${send} source ${PROXY}
`);
    await start(t, front, "haproxy", ["-db", "-f", config]);
    await twoEach(t, front, null);
    const direct = await ask(t, port, "127.0.0.1", "");
    assert.equal(direct, 200, "who comes directly needs no header");
    assert.equal(await ask(t, port, PROXY), null, "a proxy without its header is closed");
    await server.publish("news", 1);
  }
});

await scenario("behind nginx, PROXY protocol and X-Forwarded-For, limits are the clients'", async (t) => {
  const trusted_proxies = [PROXY];
  const [, port] = await listener(t, { trusted_proxies, proxy_protocol: true }, LIMITS);
  const [front, folder] = [await freePort(), directory(t)];
  const config = path.join(folder, "stream.conf");
  fs.writeFileSync(config, `
    load_module /usr/lib/nginx/modules/ngx_stream_module.so;
    worker_processes 1; daemon off; pid ${folder}/pid; error_log ${folder}/error.log;
    events { worker_connections 256; }
    stream { server { listen 127.0.0.1:${front}; proxy_pass 127.0.0.1:${port}; proxy_bind ${PROXY}; proxy_protocol on; } }`);
  await start(t, front, "nginx", ["-c", config]);
  await twoEach(t, front, null);

  const [, behind] = await listener(t, { trusted_proxies }, LIMITS);
  const http = await freePort();
  await nginx(t, http, directory(t), `listen 127.0.0.1:${http}; location / {
    proxy_pass http://127.0.0.1:${behind}; proxy_bind ${PROXY}; proxy_http_version 1.1; proxy_buffering off;
    proxy_set_header Connection ""; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }`);
  await twoEach(t, http, 429);
  // What a client writes itself stands before what the proxy adds, and is not believed.
  const invented = "X-Forwarded-For: 192.0.2.77\r\n";
  assert.equal(await ask(t, http, "127.0.0.8", invented), 200);
  assert.equal(await ask(t, http, "127.0.0.8", invented), 200);
  assert.equal(await ask(t, http, "127.0.0.8", invented), 429);
  assert.equal(await ask(t, behind, "127.0.0.4", invented), 200);
});
