// Real Chromium: the development page, the browser's own EventSource, and centrifuge-js as a page loads it.

import { execFileSync } from "node:child_process";
import path from "node:path";

import { browser } from "./chromium.mjs";
import { CACHE, assert, installed, range, scenario, until } from "./dunlin.mjs";

/// Opens a page; what it logs as an error or asks of another host fails the story.
async function open(t, context, url) {
  const page = await context.newPage();
  page.on("pageerror", (error) => t.complaints.push(`the page threw: ${error.message}`));
  page.on("request", (request) => {
    if (new URL(request.url()).protocol.startsWith("http") && !request.url().startsWith(url)) t.complaints.push(`the page asked for ${request.url()}`);
  });
  await page.goto(url);
  return page;
}

const offsets = (page, transport) => page.$$eval(`[data-transport="${transport}"] li[data-offset]`, (lines) => lines.map((line) => Number(line.dataset.offset)).reverse());

await scenario("page: a person publishes and sees the message arrive over WebSocket, SSE and long-poll", async (t) => {
  const server = await t.server();
  const page = await open(t, await browser(t), `${server.origin}/`);
  const columns = ["websocket", "sse", "poll"];
  for (const transport of columns) await page.waitForSelector(`[data-transport="${transport}"][data-state="connected"]`);

  await page.fill("#data", '{"text": "Hello, flock", "from": "a person"}');
  await page.click("#publish button.primary");
  for (const transport of columns) await page.waitForSelector(`[data-transport="${transport}"] li[data-offset="1"]`);
  await server.publish("news", "and one from the backend");
  await page.selectOption("#copies", "10");
  await page.click("#publish button.primary");
  for (const transport of columns) {
    await page.waitForSelector(`[data-transport="${transport}"] li[data-offset="12"]`);
    assert.deepEqual(await offsets(page, transport), range(1, 12), transport);
    assert.match(await page.textContent(`[data-transport="${transport}"] .median`), /^[\d.]+ m?s$/);
    assert.equal(await page.textContent(`[data-transport="${transport}"] .received`), "12");
  }
  assert.match(await page.textContent("#outcome"), /^Published as offsets 3–12, epoch \S+, in /);
  await page.waitForFunction(() => document.querySelector("#agreement").textContent === "12 messages, each on all three transports with the same offset.");
  await page.screenshot({ path: path.join(CACHE, "page.png") });
});

await scenario("page: a broken line shows its recovery, a restarted server its new epoch", async (t) => {
  const { server, line, page, columns } = await brokenAfterOne(t);
  for (const n of range(2, 4)) await server.publish("news", { n });
  for (const transport of columns) await page.waitForSelector(`[data-transport="${transport}"][data-state="reconnecting"]`);
  line.mend();
  for (const transport of columns) {
    await page.waitForSelector(`[data-transport="${transport}"] li.note:has-text("recovered 3 missed messages")`);
    await page.waitForSelector(`[data-transport="${transport}"] li[data-offset="4"]`);
    assert.deepEqual(await offsets(page, transport), range(1, 4), transport);
  }
  for (const transport of columns) {
    await page.click(`[data-transport="${transport}"] .drop`);
    await page.waitForSelector(`[data-transport="${transport}"] li.note:has-text("recovered, nothing was missed")`);
  }
  await server.kill();
  for (const transport of columns) await page.waitForSelector(`[data-transport="${transport}"][data-state="reconnecting"]`);
  await server.start();
  for (const transport of columns) await page.waitForSelector(`[data-transport="${transport}"] li.note.bad:has-text("not recovered")`);
  await server.publish("news", { n: "after" });
  for (const transport of columns) await until(async () => (await offsets(page, transport)).at(-1) === 1, `the new stream over ${transport}`);
  await page.screenshot({ path: path.join(CACHE, "page-recovered.png") });
});

await scenario("page: a hundred at once, twice, are all there, and late ones are not missing", async (t) => {
  const server = await t.server();
  const page = await open(t, await browser(t), `${server.origin}/`);
  const columns = ["websocket", "sse", "poll"];
  for (const transport of columns) await page.waitForSelector(`[data-transport="${transport}"][data-state="connected"]`);
  await page.selectOption("#copies", "100");
  for (const sent of [100, 200]) {
    await page.click("#publish button.primary");
    for (const transport of columns) await page.waitForSelector(`[data-transport="${transport}"] li[data-offset="${sent}"]`);
    await page.waitForFunction((text) => document.querySelector("#agreement").textContent === text, `${sent} messages, each on all three transports with the same offset.`);
  }
  assert.equal(await page.$$eval("#strip .stack", (stacks) => stacks.length), 96);
  assert.equal(await page.$$eval(".note.bad", (notes) => notes.length), 0);
});

await scenario("page: a configured server's refusal is said on every transport, once, and a token and a key mend it", async (t) => {
  const server = await t.server({ config: "page.toml" });
  const page = await open(t, await browser(t), `${server.origin}/`);
  const asked = [];
  page.on("request", (request) => asked.push(request.url()));
  page.on("websocket", (socket) => asked.push(socket.url()));
  for (const transport of ["websocket", "sse", "poll"]) {
    await page.waitForSelector(`[data-transport="${transport}"][data-state="refused"]`);
    const note = await page.textContent(`[data-transport="${transport}"] li.note.bad`);
    assert.match(note, /^refused: .*a connection token is required/, transport);
  }
  await page.click("#publish button.primary");
  await page.waitForSelector("#outcome.bad");
  assert.match(await page.textContent("#outcome"), /^Not published: no API key; send one of api.keys/);
  const soFar = asked.length;
  // Longer than the longest pause before a first retry.
  await page.waitForTimeout(1500);
  assert.equal(asked.length, soFar, `asked again: ${asked.slice(soFar)}`);
  await page.screenshot({ path: path.join(CACHE, "page-refused.png") });

  await page.fill("#token", execFileSync(process.env.DUNLIN_BIN, ["token", "ada", "--config", server.configFile], { encoding: "utf8" }));
  await page.fill("#key", "the-api-key-of-the-interop-tests");
  await page.click("#credentials button");
  for (const transport of ["websocket", "sse", "poll"]) await page.waitForSelector(`[data-transport="${transport}"][data-state="connected"]`);
  await page.click("#publish button.primary");
  for (const transport of ["websocket", "sse", "poll"]) await page.waitForSelector(`[data-transport="${transport}"] li[data-offset="1"]`);

  // A channel that is not for this client.
  await page.fill("#channel", "closed:1");
  await page.click("#watch button");
  for (const transport of ["websocket", "sse", "poll"]) {
    await page.waitForSelector(`[data-transport="${transport}"][data-state="refused"]`);
    assert.match(await page.textContent(`[data-transport="${transport}"] li.note.bad`), /^refused: /, transport);
  }
});

await scenario("page: what was published fits on a telephone and in the dark", async (t) => {
  const server = await t.server();
  const context = await browser(t);
  const page = await open(t, context, `${server.origin}/`);
  await page.emulateMedia({ colorScheme: "dark" });
  await page.setViewportSize({ width: 390, height: 844 });
  await page.waitForSelector('[data-transport="poll"][data-state="connected"]');
  await server.publish("news", { text: "x".repeat(500) });
  await page.waitForSelector('[data-transport="poll"] li[data-offset="1"]');
  const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert(content <= window, `the page is ${content} px wide in a window of ${window} px`);
  await page.screenshot({ path: path.join(CACHE, "page-dark.png") });
});

await scenario("chromium: its own EventSource follows two channels on uni_sse", async (t) => {
  const server = await t.server();
  const page = await open(t, await browser(t), `${server.origin}/`);
  await page.evaluate(() => {
    const address = `/connection/uni_sse?cf_connect=${encodeURIComponent(JSON.stringify({ subs: { a: {}, b: {} } }))}`;
    window.pushes = [];
    new EventSource(address).onmessage = ({ data }) => window.pushes.push(JSON.parse(data));
  });
  await page.waitForFunction(() => window.pushes.some((push) => push.connect));
  const { epoch } = await server.publish("a", { n: 1 });
  await server.publish("b", { n: 2 });
  await page.waitForFunction(() => window.pushes.filter((push) => push.pub).length === 2);
  const pushes = await page.evaluate(() => window.pushes);
  assert.equal(pushes[0].connect.subs.a.epoch, epoch);
  assert.deepEqual(pushes.filter((push) => push.pub).map(({ channel, pub }) => [channel, pub.offset, pub.data.n]).sort(), [["a", 1, 1], ["b", 1, 2]]);
});

await scenario("chromium: centrifuge-js, as a page loads it, over each transport the browser has", async (t) => {
  const server = await t.server();
  const page = await open(t, await browser(t), `${server.origin}/`);
  await page.addScriptTag({ path: path.join(path.dirname(installed.resolve("centrifuge")), "../dist/centrifuge.js") });
  for (const transport of ["websocket", "http_stream", "sse"]) {
    const got = page.evaluate(
      ({ transport, channel }) =>
        new Promise((resolve, reject) => {
          const endpoint = `${transport === "websocket" ? `ws://${location.host}` : location.origin}/connection/${transport}`;
          const client = new Centrifuge([{ transport, endpoint }], { emulationEndpoint: `${location.origin}/emulation` });
          const subscription = client.newSubscription(channel);
          subscription.on("publication", ({ offset, data }) => (client.disconnect(), resolve({ offset, data })));
          subscription.on("subscribed", () => subscription.publish({ over: transport }).catch(reject));
          subscription.subscribe();
          client.connect();
        }),
      { transport, channel: `chromium-${transport}` },
    );
    assert.deepEqual(await got, { offset: 1, data: { over: transport } });
  }
});

await scenario("page: a thousand messages a second on three transports are drawn by the frame, not one by one", async (t) => {
  const server = await t.server();
  const context = await browser(t);
  const page = await open(t, context, `${server.origin}/`);
  for (const transport of ["websocket", "sse", "poll"]) await page.waitForSelector(`[data-transport="${transport}"][data-state="connected"]`);
  await page.evaluate(() => {
    window.blocked = [];
    new PerformanceObserver((list) => window.blocked.push(...list.getEntries().map((of) => Math.round(of.duration)))).observe({ type: "longtask" });
  });
  // CPU time of the main thread: other tests share the cores.
  const devtools = await context.newCDPSession(page);
  await devtools.send("Performance.enable", { timeDomain: "threadTicks" });
  const metrics = async () => Object.fromEntries((await devtools.send("Performance.getMetrics")).metrics.map(({ name, value }) => [name, value]));
  const before = await metrics();
  const began = performance.now();
  for (const batch of range(1, 100)) {
    const commands = range(1, 50).map((n) => ({ publish: { channel: "news", data: { n, batch } } }));
    await server.api("batch", { commands });
    await new Promise((resume) => setTimeout(resume, Math.max(0, began + 50 * batch - performance.now())));
  }
  for (const transport of ["websocket", "sse"]) await page.waitForSelector(`[data-transport="${transport}"] .received:text("5,000")`);
  const after = await metrics();
  const share = (after.TaskDuration - before.TaskDuration) / ((performance.now() - began) / 1000);
  const layouts = after.LayoutCount - before.LayoutCount;
  // "Behind" ends when it ends; the long-poll may miss what the history does not keep until it asks again.
  await page.waitForFunction(() => !/behind/.test(document.querySelector("#agreement").textContent));
  const blocked = await page.evaluate(() => window.blocked);
  console.log(`       ${layouts} layouts; busy ${Math.round(share * 100)} %; tasks of more than 50 ms: ${blocked.length}, the longest ${Math.max(0, ...blocked)} ms`);
  assert(layouts < 2_000, `${layouts} layouts for 15,000 deliveries`);
});

await scenario("page: a channel's name may have a percent sign and a quote", async (t) => {
  const server = await t.server();
  const context = await browser(t);
  for (const [fragment, channel] of [["#100%", "100%"], ["#it's%20100%25", "it's 100%"]]) {
    const page = await open(t, context, `${server.origin}/`);
    await page.goto(`${server.origin}/${fragment}`);
    await page.reload();
    for (const transport of ["websocket", "sse", "poll"]) await page.waitForSelector(`[data-transport="${transport}"][data-state="connected"]`);
    assert.equal(await page.inputValue("#channel"), channel);
    // The line for a terminal publishes to this channel.
    execFileSync("bash", ["-c", await page.textContent("#shell")], { stdio: "ignore" });
    for (const transport of ["websocket", "sse", "poll"]) await page.waitForSelector(`[data-transport="${transport}"] li[data-offset="1"]`);
  }
});

await scenario("page: what a transport has lost for good is said, and it is not behind any more", async (t) => {
  const { server, line, page, columns } = await brokenAfterOne(t);
  for (const transport of columns) await page.waitForSelector(`[data-transport="${transport}"][data-state="reconnecting"]`);
  // More than the history keeps.
  await server.api("batch", { commands: range(1, 150).map((n) => ({ publish: { channel: "news", data: n } })) });
  line.mend();
  for (const transport of columns) await page.waitForSelector(`[data-transport="${transport}"] li.note.bad:has-text("not recovered")`);
  await server.publish("news", { n: "after" });
  for (const transport of columns) await page.waitForSelector(`[data-transport="${transport}"] li[data-offset="152"]`);
  assert.doesNotMatch(await page.textContent("#agreement"), /behind/);
});

/// The page over a line that fails once each transport has shown the first message.
async function brokenAfterOne(t) {
  const server = await t.server();
  const line = await t.line(server);
  const page = await open(t, await browser(t), `http://127.0.0.1:${line.port}/`);
  const columns = ["websocket", "sse", "poll"];
  for (const transport of columns) await page.waitForSelector(`[data-transport="${transport}"][data-state="connected"]`);
  await server.publish("news", { n: 1 });
  for (const transport of columns) await page.waitForSelector(`[data-transport="${transport}"] li[data-offset="1"]`);
  line.fail();
  return { server, line, page, columns };
}
