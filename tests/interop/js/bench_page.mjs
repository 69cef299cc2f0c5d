// Chromium at both ends of `dunlin bench http`: it records what is replayed, and opens the report.

import fs from "node:fs";
import http from "node:http";
import path from "node:path";
import { pathToFileURL } from "node:url";

import { browser } from "./chromium.mjs";
import { CACHE, assert, scenario } from "./dunlin.mjs";
import { directory, listening, load } from "./generator.mjs";

await scenario("what Chromium saved as HAR is replayed: the same methods, paths, headers and bodies, by turns", async (t) => {
  const asked = [];
  const server = http.createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    asked.push({ line: `${request.method} ${request.url}`, custom: request.headers["x-custom"], body });
    response.setHeader("Content-Type", "text/html");
    response.end(request.url === "/" ? '<link rel="icon" href="data:,"><p>a page' : "ok");
  });
  const origin = await listening(t, server);
  const har = path.join(directory(t), "session.har");
  const context = await browser(t, { recordHar: { path: har } });
  const page = await context.newPage();
  await page.goto(origin);
  await page.evaluate(async () => {
    await fetch("/items?page={n}&q=a%20b", { headers: { "X-Custom": "kept" } });
    await fetch("/items", { method: "POST", body: JSON.stringify({ name: "sand{n}piper" }) });
  });
  await context.close();
  const seen = asked.splice(0);
  assert.deepEqual(seen.map(({ line }) => line), ["GET /", "GET /items?page={n}&q=a%20b", "POST /items"]);
  const result = await load(origin, "--from", har, "-c", "1", "-n", "30");
  assert.equal(result.answered, 30);
  assert.deepEqual(asked, Array.from({ length: 30 }, (_, n) => seen[n % 3]));
});

await scenario("the report opens in Chromium: plots, a comparison, no script error, nothing fetched, a telephone", async (t) => {
  const server = http.createServer((request, response) => {
    if (request.url === "/teapot") response.statusCode = 418;
    response.end("hello");
  });
  server.maxRequestsPerSocket = 50;
  const origin = await listening(t, server);
  const folder = directory(t);
  const [first, report] = ["first.json", "report.html"].map((name) => path.join(folder, name));
  fs.writeFileSync(first, JSON.stringify(await load(origin, "-c", "4", "-n", "2000", "--name", "one at a time")));
  await load(origin, "-c", "4", "-p", "20", "-n", "4000", "--name", "pipelined", "--report", report, "--with", first);
  const context = await browser(t);
  const page = await context.newPage();
  page.on("pageerror", (error) => t.complaints.push(`the page threw: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && t.complaints.push(`the page complained: ${message.text()}`));
  page.on("request", (request) => request.url().startsWith("http") && t.complaints.push(`the page asked for ${request.url()}`));
  await page.goto(pathToFileURL(report).href);
  const text = await page.textContent("#page");
  for (const word of [origin, "one at a time", "pipelined", "4,000", "Latency by percentile", "closed with notice", "dunlin-bench http"]) assert(text.includes(word), `the report says ${word}`);
  assert((await page.locator("svg").count()) >= 5);
  assert.equal(await page.locator("svg path.curve[d*=NaN], svg rect[height*=NaN]").count(), 0);
  await page.locator("svg").first().hover();
  assert.match(await page.locator(".tip").first().textContent(), /one at a time: .*pipelined: /);
  await page.screenshot({ path: path.join(CACHE, "bench-report.png"), fullPage: true });
  await page.setViewportSize({ width: 390, height: 844 });
  await page.emulateMedia({ colorScheme: "dark" });
  const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert(content <= window, `the report is ${content} px wide in a window of ${window} px`);
  await page.screenshot({ path: path.join(CACHE, "bench-report-dark.png"), fullPage: true });
});
