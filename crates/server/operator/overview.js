// How the node and its cluster do: figures of an hour or a day from the server's own ring, and what needs attention.

import { get, poll } from "./api.js";
import { Chart } from "./chart.js";
import { fill, fmt, h, name, show, table } from "./dom.js";

const LOOK_MS = 5000;
const TRANSPORTS = { websocket: "WebSocket", uni_websocket: "WebSocket, one way", sse: "Server-sent events", uni_sse: "Server-sent events, one way", http_stream: "HTTP stream", uni_http_stream: "HTTP stream, one way", poll: "Long-poll", pusher: "Pusher", own: "The program's own" };

const CHARTS = [
  { title: "Connections", lines: [{ series: "connections" }], format: fmt.short },
  { title: "Messages a second", lines: [{ series: "messages_out_per_s", title: "delivered" }, { series: "messages_in_per_s", title: "published" }] },
  { title: "Worker to worker", note: "From one worker's send to another's receive, probed once a second: what a message waits for inside Dunlin.", lines: [{ series: "hop_us_p99", title: "p99" }, { series: "hop_us_p50", title: "median" }], format: fmt.us, floor: 100 },
  { title: "Turns of the loop, p99", note: "How long the slowest worker's turns take; what arrives meanwhile waits.", lines: [{ series: "turn_us_p99" }], format: fmt.us, floor: 100 },
  { title: "Turned away a second", lines: [{ series: "refused_per_s", title: "refused" }, { series: "disconnects_per_s", title: "disconnected" }] },
  { title: "Commands a second", lines: [{ series: "commands_per_s", title: "clients" }, { series: "api_commands_per_s", title: "server API" }] },
  { title: "Resident memory", lines: [{ series: "resident_bytes" }], format: fmt.bytes, floor: 1 << 20 },
  { title: "Bytes sent a second", lines: [{ series: "bytes_out_per_s" }], format: fmt.bytes, floor: 1024 },
  { title: "CPU, cores used", note: "By all threads of the process.", lines: [{ series: "cpu_cores" }], format: (n) => n.toFixed(2), floor: 0.1 },
];

export function open(root, _, signal) {
  let span = "hour";
  let ring = null;
  const spans = ["hour", "day"].map((key) => h("button", { "aria-pressed": String(key === span), onclick: () => choose(key) }, `Last ${key}`));
  const charts = CHARTS.map((options) => new Chart(options));
  const alarms = h("ul.alarms", { "aria-label": "Alarms" });
  const calm = h("span.quiet");
  const [transports, refusals, memory, workers, nodes] = Array.from({ length: 5 }, () => h("div"));
  root.append(
    h("div.head", h("h1", "Overview"), calm, h("span.end", h("span.choice", { role: "group", "aria-label": "Span of the graphs" }, spans))),
    alarms,
    h("div.grid", charts.map((chart) => chart.node)),
    h("div.stack.below",
      h("div.halves",
        h("section.card", h("h2", "Sessions by transport"), transports),
        h("section.card", h("h2", "Memory by purpose"), memory)),
      h("section.card", h("h2", "Workers"), workers),
      h("section.card", h("h2", "Nodes"), nodes),
      h("section.card", h("h2", "Refused since the start, by reason"), refusals)),
  );

  function choose(key) {
    span = key;
    ring = null;
    for (const [at, button] of spans.entries()) button.setAttribute("aria-pressed", String(["hour", "day"][at] === key));
    graphs().catch(() => {});
  }

  async function graphs() {
    const wanted = span;
    const part = await get(`./status/series?span=${span}&after=${ring?.newest ?? 0}`, { signal });
    if (wanted !== span) return;
    // Fewer than before: another process answers.
    if (ring && part.newest >= ring.newest) {
      for (const [key, values] of Object.entries(part.series)) part.series[key] = [...ring.series[key], ...values].slice(-part.kept);
    } else if (ring) {
      ring = null;
      return graphs();
    }
    ring = part;
    for (const chart of charts) chart.show(ring);
  }

  poll(LOOK_MS, signal, graphs);
  poll(LOOK_MS, signal, async () => {
    const node = await get("./status/overview", { signal });
    show(calm, node.alarms.length ? "" : "no alarms");
    fill(alarms, node.alarms.map(({ level, what, fix }) => h(`li.${level}`, h("span.dot", { class: `dot ${level === "urgent" ? "bad" : "wait"}` }), h("b", what), h("small", fix))));
    fill(transports, [meters(Object.entries(node.connections.by_transport).map(([key, n]) => [TRANSPORTS[key] ?? key, n, fmt.int(n)]), "Nobody is connected. Clients connect to the client port, " + node.client_addr + ".")]);
    fill(memory, [memoryMeters(node)]);
    fill(workers, [workerTable(node)]);
    fill(refusals, [table([["Reason", (of) => of.reason], ["Times", (of) => fmt.int(of.total), "num"]], node.refusals, { empty: "Nothing was refused." })]);
    if (!node.cluster) fill(nodes, [nodeTable([{ node: node.node, name: node.name, status: node }], [])]);
    else cluster().catch(() => {});
  });

  async function cluster() {
    const [pages, members] = await Promise.all([get("./status/overview?scope=cluster", { signal }), get("./cluster", { signal })]);
    const known = new Set(pages.nodes.map((of) => of.node));
    const silent = members.nodes.filter((of) => !known.has(of.node)).map((of) => ({ node: of.node, name: of.name, error: of.alive ? "does not answer" : "is gone", status: null }));
    fill(nodes, [nodeTable([...pages.nodes, ...silent], pages.unreachable)]);
  }
}

/// Rows of a name, a share of the largest, and the figure.
function meters(rows, empty) {
  if (!rows.length) return h("p.empty", empty);
  const most = Math.max(...rows.map(([, n, , max]) => max ?? n), 1);
  return h("div.meter", rows.map(([title, n, text, max]) => {
    const fillBar = h("i");
    fillBar.style.width = `${Math.min(100, (100 * n) / (max ?? most))}%`;
    return [h("span", title), h("span.track", { "aria-hidden": true }, fillBar), h("span.n", text)];
  }));
}

function memoryMeters({ memory }) {
  const of = (title, { bytes, max }) => [title, bytes, max ? `${fmt.bytes(bytes)} of ${fmt.bytes(max)}` : fmt.bytes(bytes), max];
  const max = memory.max ?? memory.resident;
  return meters([
    of("Resident", { bytes: memory.resident, max }),
    of("Histories", memory.history),
    of("Outboxes", { ...memory.outboxes }),
    of("Buffers", memory.buffers),
    of("Filters", memory.filters),
    of("Held for engines", memory.engines),
  ].map(([title, bytes, text, bound]) => [title, bytes, text, bound ?? max]), "");
}

function workerTable({ workers }) {
  const most = (n, limit, text) => (n > limit ? h("b.bad", text) : text);
  return table([
    ["Worker", (of) => String(of.worker)],
    ["Busy", (of) => most(of.busy, 0.9, fmt.percent(of.busy)), "num"],
    ["Turn p50", (of) => fmt.us(of.turn_us.p50), "num"],
    ["Turn p99", (of) => most(of.turn_us.p99, 50_000, fmt.us(of.turn_us.p99)), "num"],
    ["Sessions", (of) => fmt.int(of.sessions), "num"],
    ["Subscriptions", (of) => fmt.int(of.subscriptions), "num"],
    ["Channels at home", (of) => fmt.int(of.channels), "num"],
    ["Outboxes", (of) => fmt.bytes(of.outbox_bytes), "num"],
    ["Descriptors", (of) => fmt.int(of.connections), "num"],
    ["Revision", (of) => fmt.int(of.revision), "num"],
    ["Restarts", (of) => most(of.restarts, 0, fmt.int(of.restarts)), "num"],
  ], workers);
}

function nodeTable(nodes, unreachable) {
  const figure = (key, format) => ({ status }) => (status?.figures?.[key] === undefined ? "–" : format(status.figures[key]));
  const health = ({ status, error }) => {
    const alarm = status?.alarms.some((of) => of.level === "urgent");
    const kind = error || alarm ? "bad" : status.alarms.length || status.state !== "serving" ? "wait" : "good";
    return h("span", h("span.dot", { class: `dot ${kind}` }), ` ${error ?? (status.alarms[0]?.what || status.state)}`);
  };
  const rows = [...nodes, ...unreachable.filter((of) => !nodes.some((node) => node.name === of)).map((of) => ({ node: "–", name: of, error: "does not answer", status: null }))];
  return table([
    ["Node", (of) => String(of.node)],
    ["Name", (of) => name(of.name, 80), "name"],
    ["Health", health],
    ["Version", ({ status }) => status?.version ?? "–"],
    ["Up", ({ status }) => (status ? fmt.duration(status.uptime_s) : "–"), "num"],
    ["Revision", ({ status }) => (status ? fmt.int(status.revision) : "–"), "num"],
    ["Connections", ({ status }) => (status ? fmt.int(status.connections.open) : "–"), "num"],
    ["In /s", figure("messages_in_per_s", fmt.short), "num"],
    ["Out /s", figure("messages_out_per_s", fmt.short), "num"],
    ["Memory", ({ status }) => (status ? fmt.bytes(status.memory.resident) : "–"), "num"],
  ], rows);
}
