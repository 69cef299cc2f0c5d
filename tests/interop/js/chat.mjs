// docs/chat.md, "Build a chat in twenty minutes": its file, its backend, its page and its commands, as they stand there.

import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

import { CACHE, WebSocket, assert, scenario, until } from "./dunlin.mjs";

const PAGE = fs.readFileSync(path.join(CACHE, "../../docs/chat.md"), "utf8");
const block = (language) => PAGE.match(new RegExp("```" + language + "\\n(.*?)```", "s"))[1];

/// The page's backend in a Python of its own: a line of JSON asks for one call.
class Backend {
  static begin(t, directory) {
    const backend = new Backend();
    fs.writeFileSync(path.join(directory, "ask.py"), "import json, sys\nimport backend\nfor line in sys.stdin:\n    name, *arguments = json.loads(line)\n    try:\n        result = getattr(backend, name)(*arguments)\n        result = getattr(result, 'offset', result)\n        print(json.dumps({'result': result}), flush=True)\n    except Exception as error:\n        print(json.dumps({'error': str(error)}), flush=True)\n");
    backend.process = spawn(path.join(CACHE, "venv/bin/python"), ["ask.py"], { cwd: directory, stdio: ["pipe", "pipe", "inherit"] });
    backend.lines = readline.createInterface({ input: backend.process.stdout });
    backend.last = Promise.resolve();
    t.after(() => backend.process.kill());
    return backend;
  }

  call(...call) {
    const answer = this.last.then(async () => {
      const line = once(this.lines, "line");
      this.process.stdin.write(`${JSON.stringify(call)}\n`);
      const { result, error } = JSON.parse((await line)[0]);
      if (error) throw new Error(error);
      return result;
    });
    this.last = answer.catch(() => {});
    return answer;
  }
}

await scenario("chat: every line of the page does what it says", async (t) => {
  const directory = fs.mkdtempSync(path.join(CACHE, "chat-"));
  t.after(() => fs.rmSync(directory, { recursive: true, force: true }));
  const file = path.join(directory, "dunlin.toml");
  fs.writeFileSync(file, block("toml"));
  const [check] = block("sh").split("\n");
  execFileSync("bash", ["-ec", check.replace(/^dunlin /, `${process.env.DUNLIN_BIN} `)], { cwd: directory });
  const server = await t.server({ configFile: file });
  const here = (text) => text.replaceAll("127.0.0.1:8000", `127.0.0.1:${server.clientPort}`);
  fs.writeFileSync(path.join(directory, "backend.py"), here(block("python")));
  const backend = Backend.begin(t, directory);
  // Beside the installed packages, so that the page's import is found.
  const module = path.join(CACHE, `${path.basename(directory)}.mjs`);
  t.after(() => fs.rmSync(module, { force: true }));
  fs.writeFileSync(module, block("js"));
  const { join } = await import(pathToFileURL(module));

  const enter = (user, room, to = server) => {
    const seen = { events: [], messages: new Map() };
    const show = (what, of) => (what === "message" ? seen.messages.set(of.offset, of.text) : seen.events.push([what, of]));
    const fetchToken = async (of) => {
      const token = await (of ? backend.call("room_token", user, of) : backend.call("connection_token", user));
      return token ?? "";
    };
    const url = `ws://127.0.0.1:${to.clientPort ?? to.port}/connection/websocket`;
    seen.client = join({ url, fetchToken, room, show, options: { websocket: WebSocket, minReconnectDelay: 20, maxReconnectDelay: 200 } });
    t.after(() => seen.client.disconnect());
    seen.has = (what) => seen.events.find(([name]) => name === what)?.[1];
    seen.saw = (what, of) => seen.events.some((event) => event[0] === what && event[1] === of);
    return seen;
  };
  const ada = enter("ada", "lobby");
  await until(() => ada.has("present"), "ada to be in the lobby");
  const line = await t.line(server);
  const bob = enter("bob", "lobby", line);
  await until(() => bob.has("present"), "bob to be in the lobby");
  assert.deepEqual(bob.has("present"), ["ada", "bob"]);
  await until(() => ada.saw("joined", "bob"), "ada to see bob join");
  assert.deepEqual(await backend.call("who_is_in", "lobby"), ["ada", "bob"]);

  assert.equal(await backend.call("say", "ada", "lobby", "hello"), 1);
  for (const member of [ada, bob]) await until(() => member.messages.get(1) === "hello", "the message");
  await assert.rejects(backend.call("say", "bob", "attic", "let me in"), /bob is no member of attic/);
  assert.equal(await backend.call("room_token", "bob", "attic"), null);
  const refused = enter("bob", "attic");
  await until(() => refused.has("refused"), "bob to be refused in the attic");

  line.fail();
  await backend.call("say", "ada", "lobby", "bob?");
  line.mend();
  await until(() => bob.messages.get(2) === "bob?", "bob to be sent what he missed");
  assert.equal(bob.has("gap"), undefined);
  // Who is thrown out before he has his answers gets errors for them.
  const presents = () => bob.events.filter(([name]) => name === "present").length;
  await until(() => presents() === 2, "bob to see who is in the lobby again");

  const [, ...commands] = [...PAGE.matchAll(/```sh\n(.*?)```/gs)].map(([, text]) => here(text));
  const [unsubscribe, disconnect] = commands[0].trim().split("\n");
  const run = (command) => assert.equal(execFileSync("bash", ["-ec", command.replace("curl ", "curl -sS --fail ")], { encoding: "utf8" }), '{"result":{}}');
  run(unsubscribe);
  await until(() => bob.has("refused") && ada.saw("left", "bob"), "bob to be out of the room");
  run(disconnect);
  await until(() => bob.client.state === "disconnected", "bob to be out");
  assert.equal(ada.client.state, "connected");
});
