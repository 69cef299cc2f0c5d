// centrifuge-js in Protobuf (centrifuge/build/protobuf), beside JSON clients in the same channels.

import { Centrifuge as JsonCentrifuge, assert, installed, range, scenario, until, watch } from "./dunlin.mjs";

const { Centrifuge } = installed("centrifuge/build/protobuf");
const protobuf = { sdk: Centrifuge, protocol: "protobuf" };
const bytes = (value) => new TextEncoder().encode(JSON.stringify(value));
const parsed = (data) => JSON.parse(new TextDecoder().decode(data));

assert.notEqual(Centrifuge, JsonCentrifuge);

for (const transport of ["websocket", "http_stream"]) {
  await scenario(`protobuf, ${transport}: what either format publishes reaches both, at the same offset`, async (t) => {
    const server = await t.server({ config: "presence.toml" });
    const [ann, bob] = [await t.client(server, transport, protobuf), await t.client(server)];
    const [atAnn, atBob] = [await watch(ann, "news", { joinLeave: true }), await watch(bob, "news", { joinLeave: true })];
    await atAnn.subscription.publish(bytes({ from: "ann", text: "ü\n" }));
    await atBob.subscription.publish({ from: "bob" });
    const { offset, epoch } = await server.publish("news", { from: "api" });
    await Promise.all([atAnn.received(3), atBob.received(3)]);
    assert.deepEqual(atAnn.publications.map(({ data }) => parsed(data).from), ["ann", "bob", "api"]);
    assert.deepEqual(atBob.publications.map(({ data }) => data.from), ["ann", "bob", "api"]);
    assert.equal(atBob.publications[0].data.text, "ü\n");
    assert.deepEqual([atAnn.offsets(), atBob.offsets(), offset], [[1, 2, 3], [1, 2, 3], 3]);
    assert.equal(atAnn.subscribed[0].streamPosition.epoch, epoch);
    assert.equal(atAnn.publications[1].info.client, bob.id);

    const history = await atAnn.subscription.history({ limit: -1, since: { offset: 1, epoch } });
    assert.deepEqual(history.publications.map(({ offset, data }) => [offset, parsed(data).from]), [[2, "bob"], [3, "api"]]);
    await assert.rejects(atAnn.subscription.history({ limit: 1, since: { offset: 1, epoch: "another" } }), { code: 112 });
    const { clients } = await atAnn.subscription.presence();
    assert.deepEqual(Object.keys(clients).sort(), [ann.id, bob.id].sort());
    const stats = await atAnn.subscription.presenceStats();
    assert.deepEqual([stats.numClients, stats.numUsers], [2, 1]);
    bob.disconnect();
    await until(() => atAnn.leaves.some(({ info }) => info.client === bob.id), "bob's leave");
    await assert.rejects(ann.rpc("anything", bytes({})), { code: 108 });
    atAnn.subscription.unsubscribe();
    await until(async () => !("news" in (await server.api("channels", {})).channels), "the channel to be without subscribers");
  });

  await scenario(`protobuf, ${transport}: a dropped connection comes back and recovers exactly what it missed`, async (t) => {
    const server = await t.server();
    const line = await t.line(server);
    const news = await watch(await t.client(line, transport, protobuf), "news");
    for (const n of range(1, 3)) await server.publish("news", { n });
    await news.received(3);
    line.fail();
    for (const n of range(4, 8)) await server.publish("news", { n });
    line.mend();
    await news.subscribedTimes(2);
    await server.publish("news", { n: 9 });
    await news.received(9);
    assert.deepEqual(news.publications.map(({ offset, data }) => [offset, parsed(data).n]), range(1, 9).map((n) => [n, n]));
    assert.deepEqual([news.subscribed[1].wasRecovering, news.subscribed[1].recovered], [true, true]);
  });

  await scenario(`protobuf, ${transport}: stays through pings, and is notified to reconnect (3001) and that it is disconnected (3503)`, async (t) => {
    const server = await t.server({ config: "presence.toml" });
    const client = await t.client(server, transport, protobuf);
    const news = await watch(client, "news");
    await new Promise((resume) => setTimeout(resume, 2500));
    assert.deepEqual([client.state, client.disconnects.length], ["connected", 1]);
    await server.terminate();
    await until(() => client.state === "connecting", "the client to reconnect");
    assert.equal(client.disconnects[1].code, 3001);
    await server.start();
    await news.subscribedTimes(2);
    await server.api("disconnect", { user: "", client: client.id });
    await until(() => client.state === "disconnected", "the disconnect");
    assert.equal(client.disconnects.at(-1).code, 3503);
  });
}

await scenario("protobuf: a payload that is not JSON arrives as its bytes, and in JSON as null with b64data", async (t) => {
  const server = await t.server();
  const [ann, bob] = [await t.client(server, "websocket", protobuf), await t.client(server)];
  const [atAnn, line] = [await watch(ann, "files"), await t.socket(server)];
  await watch(bob, "files");
  line.say({ id: 1, connect: {} }, { id: 2, subscribe: { channel: "files" } });
  await line.answer(2);
  await atAnn.subscription.publish(new Uint8Array([0, 1, 255]));
  await server.api("publish", { channel: "files", b64data: "AAEC" });
  await server.publish("files", { ordinary: true });
  await atAnn.received(3);
  assert.deepEqual(atAnn.publications.slice(0, 2).map(({ data }) => [...data]), [[0, 1, 255], [0, 1, 2]]);
  const pushed = await until(() => line.lines.filter((line) => line.push).length === 3 && line.lines.filter((line) => line.push), "three pushes");
  assert.deepEqual(pushed.map(({ push }) => [push.pub.data, push.pub.b64data]), [[null, "AAH/"], [null, "AAEC"], [{ ordinary: true }, undefined]]);
  // Nobody is disconnected for what another has published.
  assert.equal(bob.state, "connected");
  const { publications } = await server.api("history", { channel: "files", limit: 10 });
  assert.deepEqual(publications.map(({ b64data }) => b64data), ["AAH/", "AAEC", undefined]);
});

await scenario("protobuf: malformed commands are a bad request (3501) that says why, and nobody else notices", async (t) => {
  const server = await t.server();
  const witness = await watch(await t.client(server, "websocket", protobuf), "news");
  const varint = (n) => (n < 0x80 ? [n] : [(n & 0x7f) | 0x80, ...varint(Math.floor(n / 128))]);
  const delimited = (...body) => [...varint(body.length), ...body];
  let deep = [];
  for (let n = 0; n < 10_000; n++) deep = deep.length < 30_000 ? [0x32, ...varint(deep.length), ...deep] : deep;
  const filter = [0x0a, 1, 0x61, 0x6a, ...delimited(...deep)];
  for (const [what, frame, reason] of [
    ["a length of 4 GiB", [0xff, 0xff, 0xff, 0xff, 0x0f, 1], /length of 4294967295 bytes/],
    ["a varint that does not end", Array(12).fill(0xff), /varint/],
    ["a wire type that does not exist", delimited(0x0f, 1), /wire type 7/],
    ["a group", delimited(0x0b, 0x0c), /wire type 3/],
    ["a string in place of the id", delimited(0x0a, 1, 0x61), /^bad request: id: is of another wire type/],
    ["a channel that is not UTF-8", delimited(0x08, 1, 0x2a, 3, 0x0a, 1, 0xff), /subscribe.channel: is not UTF-8/],
    ["a filter nested very deep", delimited(0x08, 1, 0x2a, ...delimited(...filter)), /subscribe.tf: is nested deeper/],
    ["JSON", [...new TextEncoder().encode('{"id":1,"connect":{}}')], /bad request/],
    ["nothing", [], /without a command/],
  ]) {
    const socket = await t.socket(server, "/connection/websocket?cf_protocol=protobuf");
    socket.send(new Uint8Array(frame));
    const { code, reason: said } = await socket.closed;
    assert.equal(code, 3501, `${what}: ${code} ${said}`);
    assert.match(said, reason, what);
  }
  await server.publish("news", 1);
  await witness.received(1);
});
