// Acknowledgements by centrifuge-js and the helper, on each of its transports and in both formats.

import { createHmac } from "node:crypto";

import { acknowledged, unread } from "../../../clients/dunlin_ack.mjs";
import { assert, installed, range, scenario, until } from "./dunlin.mjs";

const { Centrifuge: ProtobufCentrifuge } = installed("centrifuge/build/protobuf");
const encoded = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
function token(claims) {
  const unsigned = `${encoded({ alg: "HS256", typ: "JWT" })}.${encoded(claims)}`;
  return `${unsigned}.${createHmac("sha256", "secret").update(unsigned).digest("base64url")}`;
}

/// A device of ann's with the helper. `fails(offset)`: the application loses this message.
async function device(t, server, name, channel, { transport = "websocket", fails = () => false, ...options } = {}) {
  const data = options.sdk ? Buffer.from(JSON.stringify({ device: name })) : { device: name };
  const client = await t.client(server, transport, { ...options, data, token: token({ sub: "ann" }), connect: false });
  const [handled, states, errors] = [[], [], []];
  const subscription = client.newSubscription(channel);
  acknowledged(client, subscription, async ({ offset }) => {
    if (fails(offset)) throw new Error(`lost ${offset}`);
    handled.push(offset);
  }, { onState: (state) => states.push(state), onError: (error) => errors.push(error), protobuf: options.protocol === "protobuf" });
  subscription.subscribe();
  client.connect();
  await client.ready();
  return { client, subscription, handled, states, errors };
}

const publish = (server, channel, count) =>
  server.api("batch", { commands: Array.from({ length: count }, (_, n) => ({ publish: { channel, data: { n } } })) });
const cursor = (server, channel, device) => server.api("unread", { user: "ann", channel, device });

await scenario("acks: what is not acknowledged comes again, on each transport, and what is does not", async (t) => {
  const server = await t.server({ config: "acks.toml", workers: 4 });
  const ways = [{ transport: "websocket" }, { transport: "http_stream" }, { transport: "sse" }, { sdk: ProtobufCentrifuge, protocol: "protobuf" }];
  let top = 0;
  for (const way of [...ways, ...ways]) {
    await publish(server, "inbox:ann", 5);
    top += 5;
    const lost = top - 2;
    const first = await device(t, server, "phone", "inbox:ann", { ...way, fails: (offset) => offset === lost });
    await until(() => first.errors.length === 1, "the message that is lost");
    await until(async () => (await cursor(server, "inbox:ann", "phone")).offset === lost - 1, "the acknowledgement");
    first.client.disconnect();
    const second = await device(t, server, "phone", "inbox:ann", way);
    await until(() => second.handled.length === 3, "what was not acknowledged");
    assert.deepEqual(second.handled, [lost, lost + 1, lost + 2]);
    await until(async () => (await cursor(server, "inbox:ann", "phone")).unread === 0, "the rest");
    await publish(server, "inbox:ann", 1);
    top += 1;
    await until(() => second.handled.length === 4, "a message that comes now");
    await until(async () => (await cursor(server, "inbox:ann", "phone")).offset === top, "its acknowledgement");
    second.client.disconnect();
  }
  assert.deepEqual(await cursor(server, "inbox:ann", "laptop").then(({ offset, unread, is_new }) => ({ offset, unread, is_new })), { offset: 0, unread: top, is_new: true });
});

await scenario("acks: more than one recovery holds is read page by page, in order", async (t) => {
  const server = await t.server({ config: "acks.toml", workers: 2 });
  await publish(server, "inbox:ann", 230);
  const { client, handled } = await device(t, server, "phone", "inbox:ann");
  await until(() => handled.length === 230, "all of them");
  assert.deepEqual(handled, range(1, 230));
  await until(async () => (await unread(client, "inbox:ann")).unread === 0, "their acknowledgements");
});

await scenario("acks: what one device has read the user's others hear of, and do not get", async (t) => {
  const server = await t.server({ config: "acks.toml", workers: 3 });
  await publish(server, "shared:ann", 3);
  const laptop = await device(t, server, "laptop", "shared:ann", { fails: () => true });
  await until(() => laptop.states.length === 1, "the laptop's first state");
  assert.equal(laptop.states[0].unread, 3);
  const phone = await device(t, server, "phone", "shared:ann", { transport: "sse" });
  await until(() => phone.handled.length === 3, "the phone's messages");
  await until(() => laptop.states.some(({ unread }) => unread === 0), "the laptop to hear of it");
  const watch = await device(t, server, "watch", "shared:ann");
  await until(() => watch.states.length === 1, "the watch's state");
  assert.deepEqual([watch.handled, watch.states[0].unread], [[], 0]);
});

await scenario("acks: a client acknowledges for itself alone, and what it was sent", async (t) => {
  const server = await t.server({ config: "acks.toml" });
  await publish(server, "inbox:ann", 2);
  const { client, states } = await device(t, server, "phone", "inbox:ann", { fails: () => true });
  await until(() => states.length === 1, "its subscription");
  const refused = async (data, method = "dunlin.ack") => {
    const error = await client.rpc(method, data).then(() => assert.fail("it was accepted"), (error) => error);
    return `${error.code} ${error.message}`;
  };
  assert.match(await refused({ channel: "inbox:ann", offset: 3 }), /107 .*the last 2/);
  assert.match(await refused({ channel: "inbox:ann", offset: 0 }), /107 /);
  assert.match(await refused({ channel: "inbox:ann", offset: 1, epoch: "gone" }), /112 /);
  assert.match(await refused({ channel: "inbox:ann", offset: 1, user: "bob" }), /107 .*user/);
  assert.match(await refused({ channel: "inbox:bob", offset: 1 }), /103 .*subscribe/);
  assert.match(await refused({ channel: "inbox:ann" }), /107 .*offset/);
  const device_id = "d".repeat(1_000);
  const long = await t.client(server, "websocket", { token: token({ sub: "ann" }), data: { device: device_id }, connect: false });
  const subscription = long.newSubscription("inbox:ann");
  const failed = new Promise((resolve) => subscription.on("error", ({ error }) => resolve(error)).on("unsubscribed", resolve));
  subscription.subscribe();
  long.connect();
  const error = await failed;
  assert.match(`${error.message ?? error.reason}`, /128 bytes/);
});

await scenario("acks: what is not acknowledged comes again on the living connection, on each transport", async (t) => {
  const server = await t.server({ config: "acks_again.toml", state: true, workers: 3 });
  for (const namespace of ["again", "kept"]) {
    for (const [at, transport] of ["websocket", "http_stream", "sse"].entries()) {
      const channel = `${namespace}:${at}`;
      const lost = new Set([2, 4]);
      const { client, handled, errors } = await device(t, server, "phone", channel, { transport, fails: (offset) => lost.delete(offset) });
      await publish(server, channel, 10);
      await until(async () => (await cursor(server, channel, "phone")).offset === 10, `everything over ${transport} of ${namespace}`);
      assert.deepEqual(handled, range(1, 10));
      assert.equal(errors.length, 2, `${errors}`);
      client.disconnect();
    }
  }
  assert.ok(await server.metric("dunlin_redeliveries_total") >= 12, "they are counted");
});

await scenario("acks: a message that no delivery helps goes to the channel for such messages, and what follows goes on", async (t) => {
  const server = await t.server({ config: "acks_again.toml", state: true, workers: 2 });
  for (const namespace of ["again", "kept"]) {
    const channel = `${namespace}:poison`;
    const { handled, errors } = await device(t, server, "phone", channel, { fails: (offset) => offset === 2 });
    await publish(server, channel, 4);
    await until(async () => (await cursor(server, channel, "phone")).offset === 4, `what follows it in ${namespace}`);
    assert.deepEqual([handled, errors.length], [[1, 3, 4], 3]);
    const { publications } = await server.api("history", { channel: `dead:${namespace}`, limit: 10 });
    assert.deepEqual(publications.map(({ data, tags }) => [data, tags]), [[{ n: 1 }, {
      dead_letter_channel: channel, dead_letter_offset: "2", dead_letter_user: "ann", dead_letter_device: "phone", dead_letter_deliveries: "4",
    }]]);
  }
});
