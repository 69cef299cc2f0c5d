// centrifuge-js over its HTTP transports: a stream down (http_stream or sse), `/emulation` up.

import { once } from "node:events";
import http from "node:http";
import readline from "node:readline";

import { assert, exchange, range, scenario, until, watch } from "./dunlin.mjs";

for (const transport of ["http_stream", "sse"]) {
  await scenario(`${transport}: subscribe, publish, history, presence, unsubscribe through emulation`, async (t) => {
    const server = await t.server({ config: "presence.toml", workers: 4 });
    const client = await t.client(server, transport);
    const bystander = await watch(await t.client(server), "room");
    const room = await watch(client, "room", { joinLeave: true });

    await client.publish("room", { n: 1 });
    await server.publish("room", { n: 2 });
    await Promise.all([room.received(2), bystander.received(2)]);
    assert.deepEqual(room.offsets(), [1, 2]);
    assert.deepEqual(room.publications, bystander.publications);

    const history = await room.subscription.history({ limit: 10 });
    assert.deepEqual(history.publications.map(({ data }) => data.n), [1, 2]);
    assert.equal((await room.subscription.presenceStats()).numClients, 2);
    room.subscription.unsubscribe();
    await until(async () => (await bystander.subscription.presenceStats()).numClients === 1, "the unsubscription");
  });

  await scenario(`${transport}: many clients on several workers, each reached by its own emulation requests`, async (t) => {
    const server = await t.server({ workers: 4 });
    const clients = await Promise.all(range(1, 12).map(() => t.client(server, transport)));
    const records = await Promise.all(clients.map((client, index) => watch(client, `own-${index}`)));
    await Promise.all(clients.map((client, index) => client.publish(`own-${index}`, { index })));
    await Promise.all(records.map((record) => record.received(1)));
    records.forEach((record, index) => assert.deepEqual(record.publications.map(({ data }) => data), [{ index }]));
  });

  await scenario(`${transport}: answers pings through emulation and stays`, async (t) => {
    const server = await t.server({ config: "presence.toml" });
    const client = await t.client(server, transport);
    const room = await watch(client, "room");
    const clock = await t.eventSource(server, { subs: {} });
    const pings = () => clock.pushes.filter((push) => Object.keys(push).length === 0).length;
    await until(() => pings() >= 3, "three pings to a stream beside it");
    await server.publish("room", {});
    await room.received(1);
    assert.deepEqual(client.disconnects.map(({ code }) => code), [0], "the client had to reconnect");
  });

  await scenario(`${transport}: a disconnect by the API ends it for good`, async (t) => {
    const server = await t.server();
    const client = await t.client(server, transport);
    await watch(client, "news");
    await server.api("disconnect", { user: "", client: client.id, disconnect: { code: 4500, reason: "go away" } });
    await until(() => client.state === "disconnected", "the disconnect");
    assert.deepEqual([client.disconnects.at(-1).code, client.disconnects.at(-1).reason], [4500, "go away"]);
  });
}

await scenario("emulation: a stale or invented session is recognised, never mis-delivered", async (t) => {
  const server = await t.server({ workers: 4 });
  const client = await t.client(server, "http_stream");
  const { _session: session, _node: node } = client;
  const victim = await watch(await t.client(server), "news");
  client.disconnect();
  await until(async () => (await server.api("info", {})).nodes[0].num_clients === 1, "the stream to be gone");

  const command = JSON.stringify({ id: 9, publish: { channel: "news", data: "from a ghost" } });
  const emulate = async (body) => (await exchange(server.clientPort, "POST", "/emulation", JSON.stringify({ data: command, ...body }))).status;
  // Its own worker knows the session is gone; another passes the command on and has to believe it (204).
  assert([204, 404].includes(await emulate({ session, node })));
  const [id, secret] = session.split(".");
  for (const invented of ["1", "nonsense", id, `${id}.${"0".repeat(secret.length)}`, `${Number(id) + 1}.${secret}`]) {
    assert.equal(await emulate({ session: invented, node }), 404, invented);
  }
  await server.publish("news", "from the backend");
  await victim.received(1);
  assert.deepEqual(victim.publications.map(({ data }) => data), ["from the backend"]);
});

await scenario("emulation: while the server goes down, whoever has not been asked to leave yet publishes on, and is then asked", async (t) => {
  const server = await t.server();
  // Clients are asked to leave one after another: these make it take a second.
  for (const _ of range(1, 100)) await t.socket(server);
  const streams = await Promise.all(range(1, 6).map(() => openStream(server)));
  const publishing = streams.map((stream) => publishUntilItEnds(stream));
  await until(() => streams.every(({ answered }) => answered > 3), "all of them to publish");
  const before = streams.map(({ answered }) => answered);
  await server.terminate();
  await Promise.all(publishing);
  assert.deepEqual(streams.map(({ refused }) => refused), Array(6).fill([]));
  assert.deepEqual(streams.map(({ lines }) => lines.at(-1).push?.disconnect?.code), Array(6).fill(3001));
  assert(streams.some(({ answered }, at) => answered > before[at] + 10), "somebody published while the server went down");
});

/// An HTTP stream whose commands go over one connection, which stays open.
async function openStream(server) {
  const target = { host: "127.0.0.1", port: server.clientPort, method: "POST" };
  const request = http.request({ ...target, path: "/connection/http_stream", agent: false });
  request.end(JSON.stringify({ id: 1, connect: {} }));
  const [response] = await once(request, "response");
  const stream = { target, lines: [], answered: 0, refused: [], ended: false };
  readline.createInterface({ input: response }).on("line", (line) => stream.lines.push(JSON.parse(line))).on("close", () => (stream.ended = true));
  await until(() => stream.lines.length > 0, "the answer to connect");
  return stream;
}

async function publishUntilItEnds(stream) {
  const { session, node } = stream.lines[0].connect;
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const body = JSON.stringify({ session, node, data: JSON.stringify({ id: 2, publish: { channel: "news", data: 1 } }) });
  while (!stream.ended) {
    const request = http.request({ ...stream.target, path: "/emulation", agent });
    request.end(body);
    const answer = await once(request, "response").then(([response]) => response.resume().statusCode, (error) => error.code);
    // What crosses with the end may fail.
    await new Promise((resume) => setTimeout(resume, 10));
    if (answer === 204) stream.answered += 1;
    else if (!stream.ended) stream.refused.push(answer);
  }
  agent.destroy();
}
