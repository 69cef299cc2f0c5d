// One offset space: the same message, the same offset and epoch, on every transport there is.

import { assert, range, scenario, until, watch } from "./dunlin.mjs";

await scenario("every transport delivers the same messages with the same offsets and epoch", async (t) => {
  const MESSAGES = 40;
  const server = await t.server({ workers: 4 });
  const seen = {};
  const note = (transport, epoch) => ({ offset, data }) => (seen[transport] ??= []).push({ offset, epoch, data });

  const waits = [];
  for (const transport of ["websocket", "http_stream", "sse"]) {
    const record = await watch(await t.client(server, transport), "news");
    const { epoch } = record.subscribed[0].streamPosition;
    waits.push(() => record.received(MESSAGES).then(() => record.publications.forEach(note(transport, epoch))));
  }
  const socket = await t.socket(server, "/connection/uni_websocket");
  socket.say({ subs: { news: {} } });
  await until(() => socket.lines.length > 0, "the first push");
  const streams = {
    uni_websocket: socket.lines,
    uni_sse: (await t.eventSource(server, { subs: { news: {} } })).pushes,
    uni_http_stream: (await t.httpStream(server, { subs: { news: {} } })).pushes,
  };
  for (const [transport, pushes] of Object.entries(streams)) {
    const pubs = () => pushes.filter((push) => push.pub).map(({ pub }) => pub);
    waits.push(() => until(() => pubs().length >= MESSAGES, transport).then(() => pubs().forEach(note(transport, pushes[0].connect.subs.news.epoch))));
  }
  let { cursor } = (await server.get("/connection/poll?channel=news&timeout=0")).json();
  const polling = (async () => {
    while ((seen.poll ?? []).length < MESSAGES) {
      const answer = (await server.get(`/connection/poll?channel=news&timeout=5&cursor=${encodeURIComponent(cursor)}`)).json();
      assert.deepEqual(answer.gap ?? [], []);
      for (const publication of answer.publications) note("poll", answer.positions.news.epoch)(publication);
      cursor = answer.cursor;
    }
  })();

  for (const n of range(1, MESSAGES)) {
    const answer = await server.publish("news", { n });
    note("api", answer.epoch)({ offset: answer.offset, data: { n } });
  }
  const { publications, epoch } = await server.api("history", { channel: "news", limit: 100 });
  publications.forEach(note("history", epoch));
  await Promise.all([...waits.map((wait) => wait()), polling]);

  const expected = range(1, MESSAGES).map((n) => ({ offset: n, epoch, data: { n } }));
  assert.equal(Object.keys(seen).length, 9);
  for (const [transport, messages] of Object.entries(seen)) assert.deepEqual(messages, expected, transport);
});
