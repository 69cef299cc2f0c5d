// Services: the servers that this one depends on, and how each did.

import { curl, get, poll } from "./api.js";
import { callLine, fill, fmt, h, name, table } from "./dom.js";

const LOOK_MS = 5000;
const WORDS = (key) => key.replaceAll("_", " ");

export function open(root, _, signal) {
  const [engines, webhooks, upstreams] = [h("div"), h("div"), h("div")];
  root.append(
    h("div.head", h("h1", "Services")),
    h("div.stack",
      h("section.card", h("h2", "Engines"), engines, callLine(curl("GET", "./status/engines"))),
      h("section.card", h("h2", "Webhooks"), webhooks, callLine(curl("GET", "./status/webhooks"))),
      h("section.card", h("h2", "Backends that are asked"), upstreams, callLine(curl("GET", "./status/upstreams")))));
  const dot = (good, text) => h("span", h("span.dot", { class: `dot ${good ? "good" : "bad"}` }), " ", text);

  poll(LOOK_MS, signal, async () => {
    const [ofEngines, ofHooks, ofUpstreams] = await Promise.all(["engines", "webhooks", "upstreams"].map((page) => get(`./status/${page}`, { signal })));
    fill(engines, [table([
      ["Engine", (of) => name(of.engine, 60), "name"],
      ["Server", (of) => name(of.server, 80), "name"],
      ["State", (of) => dot(of.state === "ready" && !of.refusing, of.refusing ?? of.state)],
      ["Worker", (of) => String(of.worker), "num"],
      ["Role", (of) => of.role],
      ["Version", (of) => of.version ?? ""],
      ["What it said, and what mends it", (of) => h("span", name(of.detail ?? "", 300), of.fix ? h("div.quiet.small", of.fix) : null), "name"],
    ], ofEngines.connections, { empty: "No engine is set: channels live in this process. Engines keep them for several nodes, or on a disk; see Settings, engines." })]);

    const hooks = Object.entries(ofHooks.hooks);
    const counters = [...new Set(hooks.flatMap(([, of]) => Object.keys(of)))].filter((key) => key !== "last_error");
    const failing = Object.entries(ofHooks.failing).flatMap(([upstream, members]) => Object.entries(members).map(([member, of]) => ({ upstream, member, ...of })));
    fill(webhooks, [
      failing.length ? h("ul.notes", failing.map((of) => h("li.error", `${name(of.upstream, 60)}, ${name(of.member, 80)}: ${fmt.int(of.failures)} failures, the last: ${name(of.error ?? "", 300)}`))) : "",
      table([
        ["Hook", ([key]) => name(key, 60), "name"],
        ...counters.map((key) => [WORDS(key), ([, of]) => (key.includes("bytes") ? fmt.bytes(of[key] ?? 0) : fmt.int(of[key] ?? 0)), "num"]),
        ["Last error", ([, of]) => (of.last_error ? h("span", fmt.time(of.last_error.time_ms), h("div.quiet.small", `${name(of.last_error.member, 80)}: ${name(of.last_error.error, 300)}`)) : "none"), "name"],
      ], hooks, { empty: "No webhook is set. Webhooks tell your backend who connects, subscribes and publishes; see Settings, webhooks." }),
    ]);

    const upstreamRows = Object.entries(ofUpstreams.upstreams ?? {});
    const proxyRows = Object.entries(ofUpstreams.proxies ?? {});
    fill(upstreams, [upstreamRows.length || proxyRows.length ? h("div.stack",
      upstreamRows.length ? facts("Upstream", upstreamRows) : "",
      proxyRows.length ? facts("Proxy", proxyRows) : "") : h("p.empty", "No backend is asked before clients connect, subscribe or publish; see Settings, proxies.")]);
  });

  /// What a status says of each name, as it says it.
  function facts(title, rows) {
    return table([[title, ([key]) => name(key, 80), "name"], ["Status", ([, of]) => h("code", name(JSON.stringify(of), 2000)), "name"]], rows);
  }
}
