// The operator's page on the admin port, used in Chromium as a person does.

import path from "node:path";

import { browser } from "./chromium.mjs";
import { CACHE, assert, range, scenario, until, watch } from "./dunlin.mjs";

const TOKEN = "the-admin-token-of-the-interop-tests";
const SEE = "a-token-that-may-only-look-around";
const HOSTILE = `<img src=x onerror="document.title='owned'"> #100% '"`;

/// Opens the page. What it logs as an error, and a request of another origin, fails the story.
async function open(t, server, context, { refused = false } = {}) {
  const origin = `http://127.0.0.1:${server.adminPort}`;
  const page = await context.newPage();
  page.on("pageerror", (error) => t.complaints.push(`the page threw: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && !refused && t.complaints.push(`the console says: ${message.text()}`));
  page.on("request", (request) => {
    const url = request.url();
    if (url.startsWith("http") && !url.startsWith(origin)) t.complaints.push(`the page asked for ${url}`);
    if (/[?#&][^ ]*token/i.test(url)) t.complaints.push(`an address has a token: ${url}`);
  });
  await page.goto(`${origin}/`);
  return page;
}

async function signIn(page, token) {
  await page.fill("#token", token);
  await page.click("text=Sign in >> nth=-1");
}

const tab = (page, title) => page.click(`#tabs >> text=${title}`);

await scenario("operator: a wrong token is refused, the right one stays in the tab and ends with it", async (t) => {
  const server = await t.server({ config: "admin.toml" });
  const context = await browser(t);
  const page = await open(t, server, context, { refused: true });
  await page.waitForSelector("#token");
  await signIn(page, "not-a-token-of-this-server");
  await page.waitForSelector("text=The server does not know this token.");
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  await signIn(page, TOKEN);
  await page.waitForSelector("h1:text('Overview')");
  assert.match(await page.textContent("#who"), /program/);
  await page.reload();
  await page.waitForSelector("h1:text('Overview')");
  const other = await open(t, server, context, { refused: true });
  await other.waitForSelector("#token");
  await page.click("text=Sign out");
  await page.waitForSelector("#token");
  assert.equal(await page.evaluate(() => sessionStorage.length + localStorage.length + document.cookie.length), 0);
});

await scenario("operator: a page of another site can neither frame the page nor act through it", async (t) => {
  const server = await t.server();
  const page = await (await browser(t)).newPage();
  await page.goto(`${server.origin}/`);
  const admin = `http://127.0.0.1:${server.adminPort}`;
  const outcome = await page.evaluate(async (admin) => {
    const frame = document.createElement("iframe");
    frame.src = admin;
    document.body.append(frame);
    const answers = [];
    for (const type of ["text/plain", "application/json"]) {
      answers.push(await fetch(`${admin}/api/publish`, { method: "POST", mode: type === "text/plain" ? "no-cors" : "cors", headers: { "Content-Type": type }, body: '{"channel":"news","data":1}' }).then((r) => r.status, () => "failed"));
    }
    await new Promise((resume) => setTimeout(resume, 300));
    let framed = false;
    try {
      framed = frame.contentDocument !== null;
    } catch {
      framed = false;
    }
    return { answers, framed };
  }, admin);
  assert.deepEqual(outcome, { answers: [0, "failed"], framed: false });
  assert.equal((await server.api("history", { channel: "news" })).offset, 0);
});

await scenario("operator: a setting is found, edited, tried, applied, and restored from its revision", async (t) => {
  const server = await t.server();
  const page = await open(t, server, await browser(t), { refused: true });
  await page.waitForSelector("#tabs a");
  await tab(page, "Settings");
  await page.fill("input[type=search]", "history size");
  const field = '[data-pointer="/channel/without_namespace/history_size"] input';
  await page.fill(field, "50");
  await page.press(field, "Tab");
  await page.click(".drafts button:text('Review')");
  await page.waitForSelector("dialog .after:text('50')");
  await page.fill("dialog input[aria-label=Comment]", "for the quote's \"sake\"");
  assert.match(await page.textContent("dialog details code"), /^curl -X PATCH .*history_size.*comment=for\+the\+quote/);
  await page.click("dialog .primary");
  await page.waitForSelector(".toast:has-text('Revision 2 runs on 2 workers.')");
  await page.fill("input[type=search]", "history_size");
  assert.equal(await page.inputValue(field), "50");

  // What is not valid says where and what mends it, and changes nothing.
  await page.fill(field, "many");
  await page.press(field, "Tab");
  await page.click(".drafts button:text('Review')");
  await page.waitForSelector("dialog li.error:has-text('channel.without_namespace.history_size')");
  assert(await page.isDisabled("dialog .primary"));
  await page.click("dialog button:text('Back')");
  await page.click(".drafts button:text('Discard')");

  await tab(page, "Changes");
  await page.click('tr:has-text("development") button:text("Restore")');
  await page.waitForSelector("dialog .after:text('100')");
  await page.click("dialog .primary");
  await page.waitForSelector(".toast:has-text('Revision 3 runs, with the settings of 1.')");
  await page.waitForSelector("#node:has-text('revision 3')");
});

await scenario("operator: a token of role see reads, and finds nothing to press that changes something", async (t) => {
  const server = await t.server({ config: "admin.toml" });
  const headers = { Authorization: `Bearer ${TOKEN}`, "Content-Type": "application/json" };
  const made = await fetch(`http://127.0.0.1:${server.adminPort}/config/admin/tokens/viewer`, { method: "PUT", headers, body: JSON.stringify({ token: SEE, role: "see" }) });
  assert.equal(made.status, 201);
  const page = await open(t, server, await browser(t), { refused: true });
  await page.waitForSelector("#token");
  await signIn(page, SEE);
  await page.waitForSelector("#who:has-text('see')");
  await tab(page, "Settings");
  await page.waitForSelector("text=editing takes the role change");
  assert.equal(await page.$$eval(".setting :is(input, select, textarea)", (all) => all.filter((of) => !of.disabled).length), 0);
  await tab(page, "Channels");
  await page.click("text=Open this name", { trial: true });
  await page.goto(`http://127.0.0.1:${server.adminPort}/#/channels/news`);
  await page.waitForSelector("text=Reading messages takes the role operate.");
  assert.equal(await page.$$eval("textarea", (all) => all.length), 0);
  await tab(page, "Changes");
  await page.waitForSelector("tbody tr");
  assert.equal(await page.$$eval("td.act button", (all) => all.length), 0);
  // Its call is refused by the server too, and says which role it takes.
  const refusal = await page.evaluate(async (token) => {
    const answer = await fetch("./config/limits/connections_max", { method: "PUT", headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, body: "1" });
    return `${answer.status} ${await answer.text()}`;
  }, SEE);
  assert.match(refusal, /^403 .*role `change`/);

  // The token is withdrawn while the page is open.
  await fetch(`http://127.0.0.1:${server.adminPort}/config/admin/tokens/viewer`, { method: "DELETE", headers });
  await page.waitForSelector("text=The server does not take this token any more.");
});

await scenario("operator: names that are markup stay text, and a megabyte of one is cut", async (t) => {
  const server = await t.server();
  const put = (pointer, body) => fetch(`http://127.0.0.1:${server.adminPort}/config${pointer}?comment=${encodeURIComponent(HOSTILE)}`, { method: "PUT", headers: { "Content-Type": "application/json", From: HOSTILE }, body: JSON.stringify(body) });
  assert.equal((await put("/client/token/issuer", HOSTILE.repeat(10_000))).status, 200);
  const page = await open(t, server, await browser(t));
  await page.waitForSelector("#tabs a");
  await tab(page, "Changes");
  await page.waitForSelector("td:has-text('<img src=x')");
  await page.click("tbody button.plain >> nth=0");
  await page.waitForSelector(".diff td:has-text('characters)')");
  await tab(page, "Settings");
  await page.click(".sections >> text=channel");
  assert.equal(await page.$$eval("img", (all) => all.length), 0);
  assert(!(await page.title()).includes("owned"));
});

await scenario("operator: clients are found, unsubscribed and disconnected", async (t) => {
  const server = await t.server();
  const clients = [];
  for (const channel of [HOSTILE, "news"]) {
    const client = await t.client(server);
    clients.push({ client, ...(await watch(client, channel)) });
  }
  const page = await open(t, server, await browser(t));
  await page.waitForSelector("#tabs a");
  await tab(page, "Clients");
  await page.waitForSelector("text=2 connections");
  await page.fill("input[name=channel]", HOSTILE);
  await page.press("input[name=channel]", "Enter");
  await page.waitForSelector("text=1 connection");
  assert.equal(await page.textContent("tbody button"), clients[0].client.id);
  await page.click("tbody button");
  await page.waitForSelector("dialog td:has-text('<img src=x')");
  await page.click("dialog button:text('Unsubscribe')");
  await until(() => clients[0].unsubscribed.length > 0, "the client to hear that it is unsubscribed");
  assert.match(await page.textContent("dialog details code"), /^curl -X POST .*"channel":"<img.*\/api\/unsubscribe'$/);
  await page.click("dialog button:text('Disconnect')");
  await until(() => clients[0].client.disconnects.length > 0, "the client to hear that it is disconnected");
  await page.selectOption("select[name=transport]", "sse");
  await page.click("form button:text('Search')");
  await page.waitForSelector("text=No connection fits.");
  assert.equal(await page.$$eval("img", (all) => all.length), 0);
});

await scenario("operator: a channel shows who is there and what was said, page by page, and a message is published", async (t) => {
  const server = await t.server();
  const client = await t.client(server);
  const subscribed = await watch(client, HOSTILE);
  for (const n of range(1, 30)) await server.publish(HOSTILE, { n, text: HOSTILE });
  const page = await open(t, server, await browser(t));
  await page.waitForSelector("#tabs a");
  await tab(page, "Channels");
  await page.click("tbody a:has-text('<img src=x')");
  await page.waitForSelector("text=1 client, 1 user present");
  await page.waitForSelector(`td:has-text('${client.id}')`);
  const read = () => page.evaluate(() => [...[...document.querySelectorAll("section")].find((of) => of.querySelector("h2")?.textContent === "History").querySelectorAll("tbody td:first-child")].map((of) => Number(of.textContent)));
  await until(async () => (await read()).length === 20, "a page of history");
  await page.click("button:text('Older')");
  await until(async () => (await read()).length === 30, "the rest of it");
  assert.deepEqual(await read(), range(1, 30).reverse());
  await page.fill("textarea", `{"hello": "it's"}`);
  await page.click("form button:text('Publish')");
  await page.waitForSelector("text=Published as offset 31");
  await subscribed.received(31);
  assert.deepEqual(subscribed.publications.at(-1).data, { hello: "it's" });
  assert.equal(await page.$$eval("img", (all) => all.length), 0);
  assert(!(await page.title()).includes("owned"));

  // A name that nobody has subscribed to.
  await tab(page, "Channels");
  await page.fill("input[placeholder='chat:*']", "#100%");
  await page.click("button:text('Open this name')");
  await page.waitForSelector("h1:text('#100%')");
});

await scenario("operator: the page outlives a restart of the server, and its graphs begin anew", async (t) => {
  const server = await t.server();
  const page = await open(t, server, await browser(t), { refused: true });
  await page.waitForSelector("#node:has-text('serving')");
  await server.kill();
  await page.waitForSelector("text=The server does not answer.", { timeout: 15_000 });
  await server.start();
  await page.waitForSelector("text=The server does not answer.", { state: "detached", timeout: 15_000 });
  await page.waitForSelector("#node:has-text('serving')");
  await until(async () => (await page.textContent(".chart .value")) !== "–", "a figure of the new process", 30_000);
});

await scenario("operator: it fits a telephone in the dark, can be used by keyboard, and paints at once", async (t) => {
  const server = await t.server();
  const page = await open(t, server, await browser(t));
  await page.emulateMedia({ colorScheme: "dark" });
  await page.setViewportSize({ width: 390, height: 844 });
  await page.waitForSelector(".chart .value");
  for (const title of await page.$$eval("#tabs a", (all) => all.map((of) => of.textContent))) {
    await tab(page, title);
    await page.waitForSelector(`h1:text('${title}')`);
    const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert(content <= window, `${title} is ${content} px wide in a window of ${window} px`);
    const unnamed = await page.$$eval("button, input, select, textarea, a", (all) => all.filter((of) => !(of.textContent.trim() || of.getAttribute("aria-label") || of.labels?.length || of.title)).map((of) => of.outerHTML));
    assert.deepEqual(unnamed, [], title);
    await page.screenshot({ path: path.join(CACHE, `operator-${title.toLowerCase()}.png`) });
  }
  // From the top: the skip link, the brand, then the sections; Enter opens one.
  await page.goto(`http://127.0.0.1:${server.adminPort}/`);
  await page.waitForSelector("#tabs a");
  const focused = () => page.evaluate(() => document.activeElement.textContent.trim());
  await until(async () => (await page.keyboard.press("Tab"), (await focused()) === "Settings"), "the Settings link by the tab key");
  await page.keyboard.press("Enter");
  await page.waitForSelector("h1:text('Settings')");
  const { bytes, paint } = await page.evaluate(() => ({
    bytes: performance.getEntriesByType("resource").filter((of) => /\/page\//.test(of.name)).reduce((sum, of) => sum + of.decodedBodySize, 0),
    paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
  }));
  assert(bytes > 0 && bytes < 200 * 1024, `${bytes} bytes`);
  console.log(`       ${bytes} bytes, first paint after ${Math.round(paint)} ms`);
});
