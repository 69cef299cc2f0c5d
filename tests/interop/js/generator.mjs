// What the stories about `dunlin bench http` share: the program itself, and other people's servers.

import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";

import { assert } from "./dunlin.mjs";

export const DUNLIN = process.env.DUNLIN_BIN;
/// Debian puts servers where an ordinary PATH does not look.
const installedAt = (name) => [`/usr/sbin/${name}`, `/usr/bin/${name}`].find((file) => fs.existsSync(file)) ?? name;

/// Runs a program to its end: its status and what it printed.
export async function run(program, args) {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"] });
  let stdout = "", stderr = "";
  child.stdout.on("data", (data) => (stdout += data));
  child.stderr.on("data", (data) => (stderr += data));
  const [status] = await once(child, "close");
  return { status, stdout, stderr };
}

/// `dunlin bench http … --json`: its status and the object.
export async function attempt(...args) {
  const { status, stdout, stderr } = await run(DUNLIN, ["bench", "http", ...args, "--json"]);
  return { status, stderr, result: JSON.parse(stdout.trim().split("\n").at(-1) || "null") };
}

/// The object, after all went well.
export async function load(...args) {
  const { status, stderr, result } = await attempt(...args);
  assert.equal(status, 0, `${stderr}\n${JSON.stringify(result?.errors)}`);
  return result;
}

export async function listening(t, server) {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.close();
    server.closeAllConnections?.();
  });
  return `http://127.0.0.1:${server.address().port}`;
}

export async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/// An empty directory for one story.
export function directory(t) {
  const made = fs.mkdtempSync(path.join(os.tmpdir(), "dunlin-bench-"));
  t.after(() => fs.rmSync(made, { recursive: true, force: true }));
  return made;
}

/// Starts a server that a story ends, and waits until it listens.
export async function start(t, port, program, args) {
  const child = spawn(installedAt(program), args, { stdio: "ignore" });
  child.on("error", (error) => t.complaints.push(`${program}: ${error.message}`));
  t.after(() => child.kill("SIGTERM"));
  const connects = () =>
    new Promise((resolve) => {
      const socket = net.connect(port, "127.0.0.1", () => resolve(true)).on("error", () => resolve(false));
      socket.on("connect", () => socket.destroy());
    });
  for (let left = 200; !(await connects()); left--) {
    assert(left > 0 && child.exitCode === null, `${program} does not listen`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return child;
}

/// An nginx whose `server` block is given; the port is one it listens on.
export async function nginx(t, port, folder, server, http = "") {
  const config = path.join(folder, "nginx.conf");
  const temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map((name) => `${name}_temp_path ${folder};`).join(" ");
  fs.writeFileSync(config, `
    worker_processes 1; daemon off; pid ${folder}/pid; error_log ${folder}/error.log;
    events { worker_connections 256; }
    http { access_log off; ${temporary} ${http} server { ${server} } }`);
  return start(t, port, "nginx", ["-c", config]);
}

/// A certificate for localhost that nobody but itself has signed, and its key: the paths of both.
export async function certificate(folder, name) {
  const [config, cert, key] = ["cnf", "pem", "key"].map((ending) => path.join(folder, `${name}.${ending}`));
  fs.writeFileSync(config, `[req]\ndistinguished_name=dn\nx509_extensions=ext\nprompt=no\n[dn]\nCN=${name}\n[ext]\nbasicConstraints=CA:FALSE\nsubjectAltName=DNS:localhost,IP:127.0.0.1\n`);
  const made = await run("openssl", ["req", "-x509", "-config", config, "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-out", cert, "-keyout", key]);
  assert.equal(made.status, 0, made.stderr);
  return { cert, key };
}
