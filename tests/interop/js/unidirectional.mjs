// The unidirectional transports with clients that know nothing of the protocol but JSON: EventSource, ws, bare HTTP.

import { assert, range, scenario, until } from "./dunlin.mjs";

/// Each transport as a function that connects and answers with a live list of pushes.
const TRANSPORTS = {
  uni_sse: async (t, server, connect) => (await t.eventSource(server, connect)).pushes,
  uni_http_stream: async (t, server, connect) => (await t.httpStream(server, connect)).pushes,
  uni_websocket: async (t, server, connect) => {
    const socket = await t.socket(server, "/connection/uni_websocket");
    socket.say(connect);
    await until(() => socket.lines.length > 0, "the first push");
    return socket.lines;
  },
};

const publications = (pushes, channel) => pushes.filter((push) => push.pub && push.channel === channel).map(({ pub }) => pub);

for (const [name, connectTo] of Object.entries(TRANSPORTS)) {
  await scenario(`${name}: two channels in one stream, position first, then every message`, async (t) => {
    const server = await t.server();
    const { epoch } = await server.publish("a", "before");
    const pushes = await connectTo(t, server, { subs: { a: {}, b: {} } });
    const { subs, client, ping } = pushes[0].connect;
    assert.match(client, /./);
    assert.equal(ping, 25);
    assert.deepEqual([subs.a.epoch, subs.a.offset, Object.keys(subs).sort()], [epoch, 1, ["a", "b"]]);
    for (const n of range(2, 4)) await server.publish("a", { n });
    await server.publish("b", { n: 1 });
    await until(() => publications(pushes, "a").length === 3 && publications(pushes, "b").length === 1, "four publications");
    assert.deepEqual(publications(pushes, "a").map(({ offset, data }) => [offset, data.n]), [[2, 2], [3, 3], [4, 4]]);
  });

  await scenario(`${name}: comes back with a position and is given what it missed; an old epoch is reported`, async (t) => {
    const server = await t.server();
    let epoch;
    for (const n of range(1, 5)) ({ epoch } = await server.publish("a", { n }));
    const [first] = await connectTo(t, server, { subs: { a: { recover: true, epoch, offset: 2 } } });
    assert.equal(first.connect.subs.a.recovered, true);
    assert.deepEqual(first.connect.subs.a.publications.map(({ offset, data }) => [offset, data.n]), [[3, 3], [4, 4], [5, 5]]);
    const [other] = await connectTo(t, server, { subs: { a: { recover: true, epoch: "gone", offset: 2 } } });
    assert(!other.connect.subs.a.recovered);
    assert.equal(other.connect.subs.a.was_recovering, true);
    assert.equal(other.connect.subs.a.epoch, epoch);
  });

  await scenario(`${name}: is pinged with {} and gets the reason of its disconnect`, async (t) => {
    const server = await t.server({ config: "presence.toml" });
    const pushes = await connectTo(t, server, { subs: { a: {} } });
    await until(() => pushes.some((push) => Object.keys(push).length === 0), "a ping");
    await server.api("disconnect", { user: "", client: pushes[0].connect.client });
    const { disconnect } = await until(() => pushes.find((push) => push.disconnect), "the disconnect push");
    assert.equal(disconnect.code, 3503);
  });
}
