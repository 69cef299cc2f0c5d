// Channels in a NATS: wildcards, as centrifuge-js subscribes to them, and subjects that any program publishes to.

import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { once } from "node:events";
import net from "node:net";
import os from "node:os";
import path from "node:path";

import { WebSocket, assert, range, scenario, until, watch } from "./dunlin.mjs";

/// A NATS, and Dunlins on it with these settings.
async function fleet(t, settings, nodes = 1) {
  const directory = await mkdtemp(path.join(os.tmpdir(), "dunlin-interop-"));
  t.after(() => rm(directory, { recursive: true, force: true }));
  const nats = spawn("nats-server", ["-a", "127.0.0.1", "-p", "-1", "-js", "-sd", directory]);
  t.after(() => nats.kill("SIGKILL"));
  let said = "";
  nats.stderr.on("data", (text) => (said += text));
  await until(() => said.includes("Server is ready"), "NATS");
  const port = Number(/Listening for client connections on 127\.0\.0\.1:(\d+)/.exec(said)[1]);
  const configFile = path.join(directory, "dunlin.toml");
  const engine = `[engines.main]\ntype = "nats"\naddresses = ["127.0.0.1:${port}"]\n`;
  await writeFile(configFile, `[client]\nanonymous = true\n[api]\nwithout_key = true\n${engine}${settings}`);
  const servers = [];
  for (const _ of range(1, nodes)) servers.push(await t.server({ configFile }));
  for (const server of servers) {
    await until(async () => !(await server.api("publish", { channel: "chat:ready", data: 1 }).catch((error) => error)).code, "Dunlin to reach NATS");
  }
  return { port, servers };
}

const WILDCARDS = `
[channel.namespaces.chat]
engine = "main"
wildcards = true
allow_subscribe_for_anonymous = true
history_size = 10
history_ttl_ms = 60000
recover = true
presence = true
`;

await scenario("nats: centrifuge-js hears by wildcards what every node publishes, each subscription once and in order", async (t) => {
  const { servers } = await fleet(t, WILDCARDS, 2);
  const client = await t.client(servers[0]);
  const names = ["chat:rooms.*", "chat:>", "chat:rooms.1"];
  const heard = [];
  for (const name of names) heard.push(await watch(client, name));
  for (const n of range(1, 20)) await servers[n % 2].publish(n % 4 < 2 ? "chat:rooms.1" : "chat:rooms.2", { n });
  await servers[1].publish("chat:other", { n: 21 });
  await heard[1].received(21);
  await heard[0].received(20);
  await heard[2].received(10);
  const numbers = (record) => record.publications.map(({ data }) => data.n);
  const ofRoom = (record, room) => numbers(record).filter((n) => n <= 20 && (n % 4 < 2 ? 1 : 2) === room);
  const expected = (room) => range(1, 20).filter((n) => (n % 4 < 2 ? 1 : 2) === room);
  for (const record of heard.slice(0, 2)) {
    assert.deepEqual([ofRoom(record, 1), ofRoom(record, 2)], [expected(1), expected(2)]);
    assert.ok(record.publications.every(({ offset }) => offset === undefined), "there are no positions");
    assert.deepEqual([record.subscribed[0].recoverable, record.subscribed[0].positioned], [false, false]);
  }
  assert.deepEqual(numbers(heard[2]), expected(1));
  assert.equal(heard[2].subscribed[0].recoverable, true);
  await assert.rejects(client.history("chat:>", { limit: 1 }), { code: 108 });
  await assert.rejects(client.presence("chat:>"), { code: 108 });
  await assert.rejects(client.publish("chat:>", {}), { code: 107 });
});

await scenario("nats: a publication that was heard by a wildcard says in `pub.channel` where it was published", async (t) => {
  const { servers } = await fleet(t, WILDCARDS);
  const socket = new WebSocket(`ws://127.0.0.1:${servers[0].clientPort}/connection/websocket`);
  t.after(() => socket.terminate());
  const pushes = [];
  const replies = [];
  socket.on("message", (text) => {
    for (const line of String(text).split("\n").filter(Boolean)) {
      const message = JSON.parse(line);
      if (message.push) pushes.push(message.push);
      else if (message.id) replies.push(message);
    }
  });
  await once(socket, "open");
  socket.send(JSON.stringify({ id: 1, connect: {} }) + "\n" + JSON.stringify({ id: 2, subscribe: { channel: "chat:a.*", recover: true, offset: 3, epoch: "x" } }));
  await until(() => replies.length === 2, "both replies");
  assert.ok(replies[1].subscribe.was_recovering && !replies[1].subscribe.recovered, JSON.stringify(replies[1]));
  await servers[0].publish("chat:a.b", { n: 1 });
  await until(() => pushes.length === 1, "the push");
  assert.deepEqual(pushes[0], { channel: "chat:a.*", pub: { data: { n: 1 }, channel: "chat:a.b" } });
});

const RAW = `raw = true
raw_separator = "."
[channel.namespaces.chat]
engine = "main"
wildcards = true
allow_subscribe_for_anonymous = true
allow_publish_for_anonymous = true
`;

await scenario("nats: what any program publishes to raw subjects clients hear as it is, and the other way round", async (t) => {
  const { port, servers } = await fleet(t, RAW);
  const program = net.connect(port, "127.0.0.1");
  t.after(() => program.destroy());
  let heard = "";
  program.on("data", (text) => (heard += text));
  program.write('CONNECT {"verbose":false}\r\nSUB chat.out 1\r\nPING\r\n');
  await until(() => heard.includes("PONG"), "NATS to take the subscription");
  const client = await t.client(servers[0]);
  const exact = await watch(client, "chat:a.b");
  const wide = await watch(client, "chat:>");
  for (const n of range(1, 20)) program.write(`PUB chat.a.b ${JSON.stringify({ n }).length}\r\n${JSON.stringify({ n })}\r\n`);
  program.write("PUB chat.bad 9\r\nnot JSON{\r\nPUB other.a 2\r\n99\r\nPUB chat.end 3\r\n\"e\"\r\n");
  await wide.received(22);
  await exact.received(20);
  assert.deepEqual(exact.publications.map(({ data }) => data.n), range(1, 20));
  assert.deepEqual(wide.publications.map(({ data }) => data && (data.n ?? data)), [...range(1, 20), null, "e"]);
  await client.publish("chat:out", { from: "js" });
  await until(() => heard.includes('MSG chat.out 1 13\r\n{"from":"js"}\r\n'), () => `the payload alone: ${heard}`);
  for (const channel of ["$SYS:a", "_INBOX:a", "dunlin:r.1", "chat:a b", "chat:>.a"]) {
    const refused = await watch(client, channel);
    assert.equal(refused.subscribed.length, 0, channel);
    refused.subscription.unsubscribe();
  }
});
