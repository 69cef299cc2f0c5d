// centrifuge-js over its HTTP transports: a stream down (http_stream or sse), `/emulation` up.

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
