// The examples of README.md as they stand there, run by the programs they are for.

import { execFile, spawn } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { promisify } from "node:util";

import { CACHE, assert, scenario, until } from "./dunlin.mjs";

const README = fs.readFileSync(path.join(CACHE, "../../README.md"), "utf8");

/// The example in this language, for this server, in a file beside the installed packages.
function example(t, language, file, server) {
  const [, text] = README.match(new RegExp("```" + language + "\\n(.*?)```", "s"));
  const at = path.join(CACHE, `${server.clientPort}-${file}`);
  fs.writeFileSync(at, text.replaceAll("127.0.0.1:8000", `127.0.0.1:${server.clientPort}`));
  t.after(() => fs.rmSync(at));
  return at;
}

await scenario("readme: the JavaScript example runs on this Node and prints what is published", async (t) => {
  const server = await t.server();
  const program = spawn(process.execPath, [example(t, "js", "example.mjs", server)], { stdio: ["ignore", "pipe", "inherit"] });
  t.after(() => program.kill());
  let printed = "";
  program.stdout.on("data", (text) => (printed += text));
  await until(async () => (await server.api("presence_stats", { channel: "news" })).num_clients === 1, "the example to subscribe");
  await server.publish("news", { text: "hello" });
  await until(() => printed.includes("\n"), "the example to print");
  assert.equal(printed, "1 { text: 'hello' }\n");
});

await scenario("readme: the Python example publishes", async (t) => {
  const server = await t.server();
  const run = promisify(execFile);
  const { stdout } = await run(path.join(CACHE, "venv/bin/python"), [example(t, "python", "example.py", server)]);
  assert.match(stdout, /offset=1/);
});
