// Real Chromium: what a page of another site can do to a server on its visitor's machine, and what a page can whose name
// leads there.

import http from "node:http";
import { once } from "node:events";

import { browser } from "./chromium.mjs";
import { assert, exchange, scenario } from "./dunlin.mjs";

/// Requests a page may send without having asked (CORS), and some that it must ask for. Answers with what it could read.
async function tries(page, admin, client) {
  return page.evaluate(
    async ({ admin, client }) => {
      const read = [];
      const send = async (url, options) => {
        for (const mode of ["no-cors", "cors"]) {
          try {
            const answer = await fetch(url, { ...options, mode });
            if (answer.type !== "opaque") read.push([url, mode, answer.status, await answer.text()]);
          } catch {
            // It was not let to send, or not to read.
          }
        }
      };
      const json = { "Content-Type": "application/json" };
      await send(`${admin}/config/limits/broadcast_quantum`, { method: "PUT", headers: json, body: "7" });
      await send(`${admin}/config/admin/token`, { method: "PUT", headers: json, body: '"a token of some length"' });
      await send(`${admin}/config/revisions/1/restore`, { method: "POST" });
      await send(`${admin}/config/revisions/1/restore`, { method: "POST", body: "{}" });
      await send(`${admin}/broadcasts/news/cancel`, { method: "POST" });
      await send(`${admin}/config`, {});
      await send(`${admin}/metrics`, {});
      await send(`${client}/api/publish`, { method: "POST", body: '{"channel":"news","data":"from a page"}' });
      await send(`${client}/api/history`, { method: "POST", body: '{"channel":"news"}' });
      await send(`${client}/connection/poll?channel=news&cursor=0&timeout=0`, {});
      await send(`${client}/emulation`, { method: "POST", body: "{}" });
      return read;
    },
    { admin, client },
  );
}

/// The way of a browser to a name that leads to its site first, and to this machine afterwards: a proxy.
async function rebinding(t) {
  const proxy = http.createServer((request, response) => {
    const { pathname, search, port } = new URL(request.url);
    if (pathname === "/page") return response.setHeader("Content-Type", "text/html").end("<p>a page");
    const { method, headers } = request;
    const onward = http.request({ host: "127.0.0.1", port, method, path: pathname + search, headers, agent: false }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    onward.on("error", () => response.destroy());
    request.pipe(onward);
  });
  proxy.listen(0, "127.0.0.1");
  await once(proxy, "listening");
  t.after(() => proxy.close());
  return proxy.address().port;
}

/// Nothing was changed, and nothing published.
async function untouched(server) {
  const { text } = await exchange(server.adminPort, "GET", "/config/revisions");
  assert.equal(JSON.parse(text).current, 2, text);
  const history = await server.api("history", { channel: "news", limit: 10 });
  assert.deepEqual(history.publications.map(({ data }) => data), ["the backend's"]);
}

async function begin(t) {
  const server = await t.server();
  const put = await exchange(server.adminPort, "PUT", "/config/limits/broadcast_quantum", "32");
  assert.equal(put.status, 200, put.text);
  await server.publish("news", "the backend's");
  return server;
}

await scenario("a page of another site changes nothing and reads nothing, whatever it sends", async (t) => {
  const server = await begin(t);
  const site = http.createServer((_, response) => response.setHeader("Content-Type", "text/html").end("<p>a page")).listen(0, "127.0.0.1");
  await once(site, "listening");
  t.after(() => site.close());
  const context = await browser(t);
  for (const host of ["127.0.0.1", "localhost"]) {
    const page = await context.newPage();
    await page.goto(`http://localhost:${site.address().port}/`);
    const read = await tries(page, `http://${host}:${server.adminPort}`, `http://${host}:${server.clientPort}`);
    assert.deepEqual(read, []);
    // A form needs no permission either.
    await page.evaluate((action) => {
      document.body.innerHTML = `<form method="post" enctype="text/plain" action="${action}"><input name="a" value="b"></form>`;
      document.forms[0].submit();
    }, `http://${host}:${server.adminPort}/config/revisions/1/restore`);
    await page.waitForURL("**/restore");
    assert.match(await page.textContent("body"), /foreign-page/);
  }
  await untouched(server);
});

await scenario("a page whose name was led to this machine (DNS rebinding) changes nothing and reads nothing", async (t) => {
  const server = await begin(t);
  const through = await rebinding(t);
  const context = await browser(t, { proxy: { server: `http://127.0.0.1:${through}` } });
  for (const port of [server.adminPort, server.clientPort]) {
    const page = await context.newPage();
    const own = `http://page.evil.test:${port}`;
    await page.goto(`${own}/page`);
    const read = await tries(page, own, own);
    assert(read.length > 0, "its own answers it can read");
    for (const [url, , status, text] of read) assert([403, 404, 405].includes(status), `${status} ${url}: ${text}`);
    for (const [, , , text] of read) assert(!text.includes("the backend's") && !text.includes("broadcast_quantum"), text);
  }
  await untouched(server);
});
