// Webhooks at the page's Node.js backend, notified of what centrifuge-js does.

import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

import { assert, scenario, until } from "./dunlin.mjs";

const PAGE = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../../docs/operating/webhooks.md");
const SECRET = "the-key-of-the-hook-0123456789abcdef";

/// The page's backend on a port of its own; `events` are those it has verified.
async function backend(t) {
  const [, source] = /```js\n(.*?)```/s.exec(await readFile(PAGE, "utf8"));
  const folder = await mkdtemp(path.join(os.tmpdir(), "dunlin-webhooks-"));
  t.after(() => rm(folder, { recursive: true }));
  await writeFile(path.join(folder, "backend.mjs"), source);
  const port = 32_000 + Math.floor(Math.random() * 700);
  const process_ = spawn(process.execPath, [path.join(folder, "backend.mjs"), String(port)], { env: { ...process.env, HOOK_SECRET: SECRET } });
  t.after(() => process_.kill());
  let text = "";
  process_.stdout.setEncoding("utf8").on("data", (piece) => (text += piece));
  const listens = () =>
    new Promise((resolve) => {
      const probe = net.connect(port, "127.0.0.1", () => resolve(probe.destroy() && true));
      probe.on("error", () => resolve(false));
    });
  for (let tries = 0; !(await listens()); tries++) {
    assert(tries < 500 && process_.exitCode === null, "the backend never listens");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return { port, events: () => text.split("\n").slice(0, -1).map((line) => JSON.parse(line)) };
}

await scenario("webhooks: the page's Node.js backend verifies what two clients do, each reported in order and once", async (t) => {
  const { port, events } = await backend(t);
  const server = await t.server({ config: "admin.toml" });
  const put = (at, value) => fetch(`http://127.0.0.1:${server.adminPort}/config/${at}`, { method: "PUT", body: JSON.stringify(value), headers: { "Content-Type": "application/json", ...server.adminHeaders } });
  const answer = await put("webhooks", {
    upstreams: { backend: { members: { a: { address: `127.0.0.1:${port}` } } } },
    hooks: { chat: { upstream: "backend", events: ["connect", "disconnect", "subscribe", "unsubscribe", "publish"], secret: SECRET } },
  });
  assert(answer.ok, await answer.text());

  const clients = [await t.client(server), await t.client(server, "sse")];
  for (const client of clients) {
    const subscription = client.newSubscription("chat");
    subscription.subscribe();
    await subscription.ready(10_000);
    for (let n = 0; n < 20; n++) await subscription.publish({ n });
  }
  for (const client of clients) client.disconnect();
  await until(() => events().length === 2 * (1 + 1 + 20 + 1 + 1), "all events");
  const reported = events();
  assert.equal(new Set(reported.map((event) => event.id)).size, reported.length);
  for (const [at, transport] of ["websocket", "sse"].entries()) {
    const own = reported.filter((event) => event.client === clients[at].id);
    assert.deepEqual(
      own.filter((event) => event.event !== "publish").map((event) => event.event),
      ["connect", "subscribe", "unsubscribe", "disconnect"],
    );
    assert.equal(own.find((event) => event.event === "connect").transport, transport);
    assert.equal(own.filter((event) => event.event === "publish").length, 20);
  }
  const offsets = reported.filter((event) => event.event === "publish").map((event) => event.offset);
  assert.deepEqual(offsets, Array.from({ length: 40 }, (_, n) => n + 1), "a channel's publications are reported in their order");
});
