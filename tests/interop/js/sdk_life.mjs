// What centrifuge-js's own tests ask of a server, on every transport and in both formats; its package comes without them. Their
// configuration is ../config/centrifuge_js.toml, so that a checkout's suite can be run against the same server by hand.

import { createHmac } from "node:crypto";

import { assert, installed, range, scenario, until, watch } from "./dunlin.mjs";

const { Centrifuge: ProtobufCentrifuge } = installed("centrifuge/build/protobuf");
const protobuf = { sdk: ProtobufCentrifuge, protocol: "protobuf" };
const CONFIG = { config: "centrifuge_js.toml" };
const WAYS = [
  ["websocket", {}],
  ["http_stream", {}],
  ["sse", {}],
  ["websocket", protobuf],
  ["http_stream", protobuf],
];

const encoded = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
function token(claims) {
  const unsigned = `${encoded({ alg: "HS256", typ: "JWT" })}.${encoded(claims)}`;
  return `${unsigned}.${createHmac("sha256", "secret").update(unsigned).digest("base64url")}`;
}

for (const [transport, options] of WAYS) {
  const way = `${transport}, ${options.protocol ?? "json"}`;

  await scenario(`${way}: who subscribes and unsubscribes ten times in a breath is there once, then not at all`, async (t) => {
    const server = await t.server(CONFIG);
    const client = await t.client(server, transport, options);
    const news = client.newSubscription("news");
    for (const _ of range(1, 10)) {
      news.subscribe();
      news.unsubscribe();
    }
    assert.equal(news.state, "unsubscribed");
    news.subscribe();
    await news.ready();
    const present = async () => [(await client.presenceStats("news")).numClients, Object.keys((await client.presence("news")).clients).length];
    assert.deepEqual(await present(), [1, 1]);
    news.unsubscribe();
    await until(async () => (await present()).join() === "0,0", "the channel to be empty");
  });

  await scenario(`${way}: who connects and disconnects ten times in a breath is connected once, and what it asked before it was is answered`, async (t) => {
    const server = await t.server(CONFIG);
    const client = await t.client(server, transport, { ...options, connect: false });
    for (const _ of range(1, 10)) {
      client.connect();
      client.disconnect();
    }
    assert.equal(client.state, "disconnected");
    const rpc = client.rpc("nothing", options.protocol ? new Uint8Array() : {});
    client.connect();
    const early = client.newSubscription("early");
    early.subscribe();
    early.unsubscribe();
    await assert.rejects(rpc, { code: 108 });
    assert.equal((await client.presenceStats("early")).numClients, 0);
    await until(async () => (await server.api("info", {})).nodes[0].num_clients === 1, "one session");
  });

  await scenario(`${way}: five channels by subscription tokens, and none of them after they were given up`, async (t) => {
    const server = await t.server(CONFIG);
    const client = await t.client(server, transport, { ...options, getToken: async () => token({ sub: "ann" }) });
    const names = range(1, 5).map((n) => `$room${n}`);
    const rooms = names.map((channel) => client.newSubscription(channel, { getToken: async ({ channel }) => token({ sub: "ann", channel }) }));
    for (const room of rooms) room.subscribe();
    await Promise.all(rooms.map((room) => room.ready()));
    assert.deepEqual(Object.keys((await server.api("channels", {})).channels).sort(), names);
    for (const room of rooms) room.unsubscribe();
    await until(async () => Object.keys((await server.api("channels", {})).channels).length === 0, "no channel");
  });

  await scenario(`${way}: getState is asked once, and again when what was missed is gone (error 112)`, async (t) => {
    const server = await t.server(CONFIG);
    for (const n of range(1, 3)) await server.publish("smallhistory:a", { n });
    const line = await t.line(server);
    const client = await t.client(line, transport, options);
    let asked = 0;
    const getState = async () => {
      asked += 1;
      const { offset, epoch } = await server.api("history", { channel: "smallhistory:a", limit: 0 });
      return { offset, epoch };
    };
    const room = await watch(client, "smallhistory:a", { getState });
    assert.equal(asked, 1);
    await server.publish("smallhistory:a", { n: 4 });
    await room.received(1);

    line.fail();
    await server.publish("smallhistory:a", { n: 5 });
    line.mend();
    await room.received(2);
    assert.equal(asked, 1);

    line.fail();
    for (const n of range(6, 10)) await server.publish("smallhistory:a", { n });
    line.mend();
    await until(() => asked === 2, "the state to be asked for again");
    await until(async () => Object.keys((await server.api("channels", {})).channels).length === 1 && room.subscription.state === "subscribed", "the subscription");
    await server.publish("smallhistory:a", { n: 11 });
    await room.received(3);
    assert.deepEqual(room.offsets(), [4, 5, 11]);
  });
}
