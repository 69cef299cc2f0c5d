// A node of Centrifugo's library beside Dunlin on one Redis, in Centrifugo's layout: what is said to one is heard at the other, and
// clients that move between them miss nothing.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";

import { CACHE, assert, exchange, freePort, range, scenario, until, watch } from "./dunlin.mjs";

/// Servers of Redis, a node of Centrifugo's library and a Dunlin on them. `cluster`: they are one, with so many partitions.
async function fleet(t, { servers = 1, cluster = 0 } = {}) {
  const directory = await mkdtemp(path.join(os.tmpdir(), "dunlin-interop-"));
  t.after(() => rm(directory, { recursive: true, force: true }));
  const ports = await Promise.all(range(1, servers).map((number) => startRedis(t, path.join(directory, String(number)), cluster > 0)));
  if (cluster > 0) await formCluster(ports);
  const configFile = path.join(directory, "dunlin.toml");
  await writeFile(configFile, config(ports, cluster));
  const [centrifugo, dunlin] = await Promise.all([Centrifugo.start(t, ports, cluster), t.server({ configFile })]);
  await until(async () => !(await dunlin.api("publish", { channel: "ready", data: 1 }).catch((error) => error)).code, "Dunlin to reach Redis");
  return { centrifugo, dunlin, ports, redis: (...command) => cli(ports[0], command), nodes: [centrifugo, dunlin] };
}

async function startRedis(t, directory, isCluster) {
  await mkdir(directory);
  const port = await freePort();
  const flags = ["--port", String(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory];
  if (isCluster) flags.push("--cluster-enabled", "yes", "--cluster-port", String(await freePort()), "--cluster-node-timeout", "2000");
  const redis = spawn("redis-server", flags);
  t.after(() => redis.kill("SIGKILL"));
  let said = "";
  redis.stdout.on("data", (text) => (said += text));
  await until(() => said.includes("Ready to accept"), "Redis");
  return port;
}

async function formCluster(ports) {
  const bounds = range(0, ports.length).map((n) => Math.floor((16384 * n) / ports.length));
  for (const [n, port] of ports.entries()) {
    await cli(port, ["CLUSTER", "ADDSLOTSRANGE", String(bounds[n]), String(bounds[n + 1] - 1)]);
    await cli(port, ["CLUSTER", "SET-CONFIG-EPOCH", String(n + 1)]);
    const bus = (await cli(port, ["CONFIG", "GET", "cluster-port"])).split("\n")[1];
    if (n > 0) await cli(ports[0], ["CLUSTER", "MEET", "127.0.0.1", String(port), bus]);
  }
  for (const port of ports) {
    await until(async () => {
      const info = await cli(port, ["CLUSTER", "INFO"]);
      return info.includes("cluster_state:ok") && info.includes(`cluster_known_nodes:${ports.length}`);
    }, "the cluster");
  }
}

/// What the node of Centrifugo's library does, said to Dunlin.
const config = (ports, cluster) => `
[client]
anonymous = true

[api]
without_key = true

[cluster]
engine = "main"

[engines.main]
addresses = [${ports.map((port) => `"127.0.0.1:${port}"`)}]
${cluster > 0 ? `topology = "cluster"\ncluster_partitions_max = ${cluster}` : ""}
layout = "centrifugo"
prefix = "centrifugo"
position_check_ms = 500

${["without_namespace", "namespaces.plain"].map(
  (name) => `
[channel.${name}]
engine = "main"
${name === "without_namespace" ? "history_size = 100\nhistory_ttl_ms = 300000\nhistory_meta_ttl_ms = 3600000\nrecover = true\npositioned = true" : ""}
presence = true
join_leave = true
allowed_delta_types = ["fossil"]
allow_subscribe_for_client = true
allow_subscribe_for_anonymous = true
allow_publish_for_client = true
allow_publish_for_anonymous = true
allow_presence_for_client = true
allow_presence_for_anonymous = true
`,
).join("")}`;

/// The node of `centrifuge/`, which has Centrifugo's server API as far as the stories call it.
class Centrifugo {
  #log = "";

  static async start(t, ports, cluster) {
    const node = new Centrifugo();
    const flags = ["-redis", ports.map((port) => `127.0.0.1:${port}`).join(","), "-partitions", String(cluster)];
    const process_ = spawn(path.join(CACHE, "centrifuge-node"), cluster > 0 ? [...flags, "-cluster"] : flags);
    t.after(() => process_.kill("SIGKILL"));
    process_.stderr.on("data", (text) => (node.#log += text));
    const [first] = await Promise.race([once(process_.stdout, "data"), once(process_, "exit")]);
    node.clientPort = Number(first);
    assert(node.clientPort > 0, `the node of Centrifugo's library did not start: ${node.#log}`);
    return node;
  }

  async api(method, body) {
    const { status, text } = await exchange(this.clientPort, "POST", `/api/${method}`, JSON.stringify(body));
    assert.equal(status, 200, text);
    const answer = JSON.parse(text);
    if (answer.error) throw Object.assign(new Error(answer.error.message), answer.error);
    return answer.result;
  }

  publish(channel, data) {
    return this.api("publish", { channel, data });
  }

  /// Messages of Dunlin that it could not read are errors in its log.
  assertNothingUnreadable() {
    assert(!/malformed|unsupported|error/i.test(this.#log), this.#log);
  }
}

async function cli(port, command) {
  const process_ = spawn("redis-cli", ["-p", String(port), ...command]);
  let text = "";
  process_.stdout.on("data", (part) => (text += part));
  await once(process_, "close");
  return text.trim();
}

await scenario("centrifugo: what is published at one node is heard at both, at one position", async (t) => {
  const { centrifugo, dunlin, nodes } = await fleet(t);
  const watchers = await Promise.all(nodes.map(async (node) => watch(await t.client(node), "news")));
  for (const n of range(1, 20)) await nodes[n % 2].publish("news", { n });
  const tagged = { channel: "news", data: { n: 21 }, tags: { kind: "tagged" } };
  await dunlin.api("publish", tagged);
  await centrifugo.api("publish", { ...tagged, data: { n: 22 } });
  for (const watcher of watchers) {
    await watcher.received(22);
    assert.deepEqual(watcher.offsets(), range(1, 22));
    assert.deepEqual(watcher.publications.map(({ data }) => data.n), range(1, 22));
    assert.deepEqual(watcher.publications.slice(20).map(({ tags }) => tags), [{ kind: "tagged" }, { kind: "tagged" }]);
  }
  const [one, other] = watchers.map(({ subscribed }) => subscribed[0].streamPosition);
  assert.equal(one.epoch, other.epoch);
  assert.match(one.epoch, /^\w+$/);
  centrifugo.assertNothingUnreadable();
});

await scenario("centrifugo: both publish as fast as they can, and each offset comes once and in order at both", async (t) => {
  const { centrifugo, nodes } = await fleet(t);
  const watchers = await Promise.all(nodes.map(async (node) => watch(await t.client(node), "rush")));
  const publishing = nodes.flatMap((node) => range(1, 4).map(async () => {
    for (const n of range(1, 50)) await node.publish("rush", n);
  }));
  await Promise.all(publishing);
  for (const watcher of watchers) {
    await watcher.received(400);
    assert.deepEqual(watcher.offsets(), range(1, 400));
    assert.deepEqual(watcher.publications.map(({ data }) => data), watchers[0].publications.map(({ data }) => data));
  }
  centrifugo.assertNothingUnreadable();
});

await scenario("centrifugo: what a client publishes bears its name at the other node, and what keeps nothing crosses, too", async (t) => {
  const { centrifugo, nodes } = await fleet(t);
  const clients = await Promise.all(nodes.map((node) => t.client(node)));
  for (const channel of ["news", "plain:news"]) {
    const watchers = await Promise.all(clients.map((client) => watch(client, channel)));
    await clients[0].publish(channel, "from centrifugo");
    await watchers[1].received(1);
    await clients[1].publish(channel, "from dunlin");
    await Promise.all(watchers.map((watcher) => watcher.received(2)));
    for (const { publications } of watchers) {
      assert.deepEqual(publications.map(({ data }) => data), ["from centrifugo", "from dunlin"]);
      assert.deepEqual(publications.map(({ info }) => info.client), clients.map(({ id }) => id));
      assert.deepEqual(publications.map(({ offset }) => offset), channel === "news" ? [1, 2] : [undefined, undefined]);
    }
  }
  centrifugo.assertNothingUnreadable();
});

await scenario("centrifugo: histories are the same at both, in any part", async (t) => {
  const { dunlin, nodes, redis } = await fleet(t);
  for (const n of range(1, 120)) await nodes[n % 2].publish("news", { n });
  const { epoch } = await dunlin.api("history", { channel: "news" });
  const since = (offset) => ({ since: { offset, epoch } });
  for (const part of [{ limit: -1 }, { limit: 0 }, { limit: 7 }, { limit: 7, reverse: true }, { limit: 5, ...since(60) }, { limit: 5, reverse: true, ...since(60) }, { limit: -1, ...since(117) }]) {
    const [one, other] = await Promise.all(nodes.map((node) => node.api("history", { channel: "news", ...part })));
    const plain = ({ offset, epoch, publications }) => ({ offset, epoch, publications: (publications ?? []).map(({ offset, data }) => [offset, data.n]) });
    assert.deepEqual(plain(one), plain(other), JSON.stringify(part));
    assert.equal(plain(one).publications.length, { 0: 0, 5: 5, 7: 7, "-1": part.since ? 3 : 100 }[part.limit]);
  }
  // Removed at either, offsets go on.
  for (const [n, node] of nodes.entries()) {
    await node.api("history_remove", { channel: "news" });
    const answers = await Promise.all(nodes.map((node) => node.api("history", { channel: "news", limit: -1 })));
    assert.deepEqual(answers.map(({ publications, offset }) => [(publications ?? []).length, offset]), [[0, 120 + n], [0, 120 + n]]);
    await node.publish("news", { n });
  }
  assert.match(await redis("TTL", "centrifugo.stream.news"), /^(29\d|300)$/);
  assert.match(await redis("TTL", "centrifugo.stream.meta.news"), /^3[56]\d\d$/);
});

await scenario("centrifugo: a key or a version that was used at one node is known at the other", async (t) => {
  const { nodes } = await fleet(t);
  const watchers = await Promise.all(nodes.map(async (node) => watch(await t.client(node), "news")));
  for (const [number, [first, second]] of [nodes, [...nodes].reverse()].entries()) {
    const keyed = { channel: "news", data: `keyed ${number}`, idempotency_key: `key-${number}` };
    const original = await first.api("publish", keyed);
    const again = await second.api("publish", keyed);
    assert.deepEqual([again.offset, again.epoch], [original.offset, original.epoch]);
    const plain = { channel: "plain:news", data: 1, idempotency_key: `key-${number}` };
    await first.api("publish", plain);
    await second.api("publish", plain);
  }
  // A version of nine, and an older one and a newer one at the other node.
  await nodes[0].api("publish", { channel: "news", data: "version 9", version: 9 });
  await nodes[1].api("publish", { channel: "news", data: "version 8", version: 8 });
  await nodes[1].api("publish", { channel: "news", data: "version 10", version: 10 });
  await nodes[0].api("publish", { channel: "news", data: "version 10 again", version: 10 });
  const last = await nodes[0].publish("news", "last");
  assert.equal(last.offset, 5);
  for (const watcher of watchers) {
    await watcher.received(5);
    assert.deepEqual(watcher.publications.map(({ data }) => data), ["keyed 0", "keyed 1", "version 9", "version 10", "last"]);
  }
});

await scenario("centrifugo: a client that moves from node to node recovers what it missed, and nothing else", async (t) => {
  const { centrifugo, dunlin, nodes } = await fleet(t);
  const line = await t.line(centrifugo);
  const news = await watch(await t.client(line), "news");
  // Nobody else keeps the channel heard at either node.
  let n = 0;
  for (const [move, to] of [dunlin, centrifugo, dunlin].entries()) {
    await nodes[move % 2].publish("news", ++n);
    await news.received(n);
    line.fail();
    for (const _ of range(1, 5)) await nodes[n % 2].publish("news", ++n);
    line.mend();
    line.moveTo(to.clientPort);
    await news.subscribedTimes(move + 2);
    const { wasRecovering, recovered } = news.subscribed.at(-1);
    assert.deepEqual({ wasRecovering, recovered }, { wasRecovering: true, recovered: true });
    await news.received(n);
  }
  assert.deepEqual(news.offsets(), range(1, n));
  assert.deepEqual(news.publications.map(({ data }) => data), range(1, n));
  assert.equal(new Set(news.subscribed.map(({ streamPosition }) => streamPosition.epoch)).size, 1);
});

await scenario("centrifugo: a client that missed more than is kept learns that at the other node", async (t) => {
  const { centrifugo, dunlin } = await fleet(t);
  for (const [from, to, channel] of [[centrifugo, dunlin, "one"], [dunlin, centrifugo, "other"]]) {
    const line = await t.line(from);
    const watcher = await watch(await t.client(line), channel);
    await from.publish(channel, 0);
    await watcher.received(1);
    line.fail();
    for (const n of range(1, 150)) await from.publish(channel, n);
    line.mend();
    line.moveTo(to.clientPort);
    await watcher.subscribedTimes(2);
    const { wasRecovering, recovered } = watcher.subscribed[1];
    assert.deepEqual({ wasRecovering, recovered }, { wasRecovering: true, recovered: false });
  }
});

await scenario("centrifugo: who joins and leaves at one node is seen at both, once and by its own id", async (t) => {
  const { centrifugo, dunlin, nodes } = await fleet(t);
  const watching = await Promise.all(nodes.map((node) => t.client(node, "websocket", { data: { user: "watcher" } })));
  const watchers = await Promise.all(watching.map((client) => watch(client, "room", { joinLeave: true })));
  for (const node of [dunlin, centrifugo]) {
    const visitor = await t.client(node);
    const { subscription } = await watch(visitor, "room");
    const of = ({ joins, leaves }) => [joins, leaves].map((list) => list.filter(({ info }) => info.client === visitor.id).length);
    await until(() => watchers.every((watcher) => of(watcher)[0] === 1), "the joins");
    subscription.unsubscribe();
    await until(() => watchers.every((watcher) => of(watcher)[1] === 1), "the leaves");
    assert.deepEqual(watchers.map(of), [[1, 1], [1, 1]]);
  }
  centrifugo.assertNothingUnreadable();
});

await scenario("centrifugo: presence at Dunlin has the members at both nodes", async (t) => {
  const { dunlin, nodes, redis } = await fleet(t);
  const clients = await Promise.all(nodes.map((node) => t.client(node, "websocket", { data: { user: "somebody" } })));
  await Promise.all(clients.map((client) => watch(client, "room")));
  const present = async () => (await dunlin.api("presence", { channel: "room" })).presence;
  await until(async () => Object.keys(await present()).length === 2, "both");
  const seen = await present();
  assert.deepEqual(Object.keys(seen).sort(), clients.map(({ id }) => id).sort());
  assert.deepEqual(seen[clients[0].id], { user: "somebody", client: clients[0].id });
  assert.deepEqual(await dunlin.api("presence_stats", { channel: "room" }), { num_clients: 2, num_users: 2 });
  const asked = await clients[1].presence("room").catch((error) => error);
  assert.deepEqual(Object.keys(asked.clients).sort(), clients.map(({ id }) => id).sort());
  // Of a node that was killed nobody removes the entry until its time is over.
  await redis("ZADD", "centrifugo.presence.expire.room", "1", clients[0].id);
  assert.deepEqual(Object.keys(await present()), [clients[1].id]);
});

await scenario("centrifugo: differences between messages cross, and are put together at both", async (t) => {
  const { nodes } = await fleet(t);
  const version = (n) => ({ n, fields: range(1, 30).map((field) => `field ${field === n ? "changed" : field}`) });
  for (const channel of ["doc", "plain:doc"]) {
    const watchers = await Promise.all(nodes.map(async (node) => watch(await t.client(node), channel, { delta: "fossil" })));
    for (const n of range(1, 10)) await nodes[n % 2].api("publish", { channel, data: version(n), delta: true });
    for (const watcher of watchers) {
      await watcher.received(10);
      const all = watcher.publications.map(({ data }) => data).sort((one, other) => one.n - other.n);
      assert.deepEqual(all, range(1, 10).map(version));
    }
  }
});

for (const [what, layout] of [["three servers", { servers: 3 }], ["a cluster", { servers: 3, cluster: 16 }]]) {
  await scenario(`centrifugo: of ${what} each channel is at the same one for both`, async (t) => {
    const { centrifugo, ports, nodes } = await fleet(t, layout);
    const clients = await Promise.all(nodes.map((node) => t.client(node)));
    const channels = range(1, 12).map((n) => `news-${n}`);
    const watchers = await Promise.all(channels.map((channel) => Promise.all(clients.map((client) => watch(client, channel)))));
    for (const [at, channel] of channels.entries()) {
      for (const n of range(1, 4)) await nodes[n % 2].publish(channel, n);
      const keyed = { channel, data: 5, idempotency_key: "key" };
      const results = [await nodes[at % 2].api("publish", keyed), await nodes[(at + 1) % 2].api("publish", keyed)];
      assert.deepEqual(results.map(({ offset }) => offset), [5, 5]);
      for (const watcher of watchers[at]) {
        await watcher.received(5);
        assert.deepEqual(watcher.publications.map(({ offset, data }) => [offset, data]), range(1, 5).map((n) => [n, n]));
      }
      const [one, other] = await Promise.all(nodes.map((node) => node.api("history", { channel, limit: -1 })));
      assert.deepEqual([one.offset, one.epoch, one.publications.length], [other.offset, other.epoch, other.publications.length]);
    }
    const counts = await Promise.all(ports.map(async (port) => (await cli(port, ["KEYS", "centrifugo.stream.*"])).split("\n").filter((key) => key.includes("news-")).length));
    assert(counts.filter((count) => count > 0).length > 1, `the channels are spread: ${counts}`);
    // Of each its entries and its hash, once.
    assert.equal(counts.reduce((sum, count) => sum + count), 2 * channels.length);
    centrifugo.assertNothingUnreadable();
  });
}
