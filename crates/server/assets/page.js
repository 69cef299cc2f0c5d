import { EventSourceWatcher, LongPollWatcher, WebSocketWatcher, count, publish } from "./transports.js";

const LINES_MAX = 200;
const STRIP_MAX = 96;
/// Messages that some transport has not delivered are remembered up to here.
const LAGGING_MAX = 10000;

const TRANSPORTS = [
  { key: "websocket", title: "WebSocket", watcher: WebSocketWatcher },
  { key: "sse", title: "Server-sent events", watcher: EventSourceWatcher },
  { key: "poll", title: "Long-poll", watcher: LongPollWatcher },
];

const $ = (selector, root = document) => root.querySelector(selector);

/// When this page sent its messages, by "epoch/offset"; latency is measured from there.
class Clock {
  constructor() {
    this.sent = new Map();
    this.arrived = new Map();
  }

  // A push can overtake the answer that has its offset, so both ends meet here whichever comes first.
  published(id, at) {
    this.sent.set(id, at);
    for (const { at: arrival, notify } of this.arrived.get(id) ?? []) notify(arrival - at);
    this.arrived.delete(id);
  }

  arrive(id, notify) {
    const at = performance.now();
    if (this.sent.has(id)) notify(at - this.sent.get(id));
    else if (inFlight > 0) this.arrived.set(id, [...(this.arrived.get(id) ?? []), { at, notify }]);
  }
}

let clock = new Clock();
let inFlight = 0;
let columns = [];

/// One transport's column: its watcher, its figures and its messages.
class Column {
  constructor({ key, title, watcher }, channel) {
    this.key = key;
    this.received = 0;
    this.latencies = [];
    this.seen = new Set();
    this.last = 0;
    this.node = document.importNode($("#column").content, true).firstElementChild;
    this.node.dataset.transport = key;
    this.list = $("ol", this.node);
    $("h2", this.node).textContent = title;
    $("code", this.node).textContent = watcher.endpoint;
    this.watcher = new watcher(channel, $("#token").value.trim(), {
      state: (state, detail) => this.showState(state, detail),
      publication: (publication) => this.showPublication(publication),
      note: (text, bad) => this.showNote(text, bad),
      unauthorized: askForCredentials,
    });
    $(".drop", this.node).addEventListener("click", () => this.watcher.drop());
    this.watcher.open();
  }

  showState(state, detail = "") {
    this.node.dataset.state = state;
    $(".state b", this.node).textContent = state;
    $(".state", this.node).title = detail;
  }

  showPublication({ offset, epoch, data, recovered }) {
    const id = `${epoch}/${offset}`;
    this.received += 1;
    if (offset > 0 && this.seen.has(id)) this.showNote(`duplicate offset ${offset}`, true);
    if (offset > 0 && epoch === this.epoch && this.last > 0 && offset > this.last + 1) {
      this.showNote(`offsets ${this.last + 1}–${offset - 1} are missing`, true);
    }
    this.seen.add(id);
    this.last = offset;
    this.epoch = epoch;

    const line = document.createElement("li");
    line.dataset.offset = offset;
    const text = typeof data === "string" ? data : JSON.stringify(data);
    line.append(
      element("span", "offset", offset || "–"),
      element("span", "data", text),
      element("time", "latency", new Date().toLocaleTimeString([], { hour12: false })),
    );
    if (recovered) line.classList.add("recovered");
    this.prepend(line);
    if (!recovered) {
      clock.arrive(id, (ms) => {
        this.latencies.push(ms);
        $(".latency", line).textContent = duration(ms);
        this.showFigures();
      });
    }
    this.showFigures();
    strip.mark(this.key, id, offset, epoch);
  }

  showNote(text, bad = false) {
    const line = element("li", bad ? "note bad" : "note", text);
    this.prepend(line);
  }

  prepend(line) {
    this.list.prepend(line);
    while (this.list.childElementCount > LINES_MAX) this.list.lastElementChild.remove();
  }

  showFigures() {
    const recent = this.latencies.slice(-100).sort((a, b) => a - b);
    $(".received", this.node).textContent = this.received.toLocaleString("en");
    $(".last", this.node).textContent = this.last || "–";
    $(".median", this.node).textContent = recent.length ? duration(recent[Math.floor(recent.length / 2)]) : "–";
  }
}

/// The strip: one stack of three marks per message, each lit when its transport has delivered it.
///
/// The oldest stacks make room. A message that lacks a mark is counted until it has it, whether its stack is shown or not.
const strip = {
  messages: new Map(),
  shown: [],
  total: 0,
  /// The last offset by epoch that is complete and not shown any more.
  past: new Map(),

  clear() {
    this.messages.clear();
    this.past.clear();
    this.shown = [];
    this.total = 0;
    $("#strip").replaceChildren();
    this.summarize();
  },

  mark(key, id, offset, epoch) {
    if (!offset || (!this.messages.has(id) && offset <= (this.past.get(epoch) ?? 0))) return;
    const message = this.messages.get(id) ?? this.add(id, offset, epoch);
    message.keys.add(key);
    $(`.${key}`, message.node).classList.add("here");
    if (message.gone) this.forget(message);
    this.summarize();
  },

  add(id, offset, epoch) {
    const node = element("span", "stack");
    node.title = `offset ${offset}`;
    for (const transport of TRANSPORTS) node.append(element("i", transport.key));
    $("#strip").append(node);
    const message = { id, offset, epoch, node, keys: new Set(), gone: false };
    this.messages.set(id, message);
    this.total += 1;
    this.shown.push(message);
    if (this.shown.length > STRIP_MAX) {
      const oldest = this.shown.shift();
      oldest.node.remove();
      oldest.gone = true;
      this.forget(oldest);
    }
    return message;
  },

  /// Forgets a message that every transport has delivered, or that is too old to wait for.
  forget({ id, offset, epoch, keys }) {
    if (keys.size < TRANSPORTS.length && this.messages.size <= LAGGING_MAX) return;
    this.messages.delete(id);
    this.past.set(epoch, Math.max(offset, this.past.get(epoch) ?? 0));
  },

  summarize() {
    const lagging = TRANSPORTS.map(({ key, title }) => ({ title, missing: [...this.messages.values()].filter(({ keys }) => !keys.has(key)).length })).filter(({ missing }) => missing > 0);
    $("#agreement").textContent =
      this.total === 0
        ? "Nothing yet. Publish something above, or from a terminal."
        : lagging.length === 0
          ? `${count(this.total, "message")}, each on all three transports with the same offset.`
          : lagging.map(({ title, missing }) => `${title} is ${missing} behind`).join(", ") + ".";
  },
};

/// Shows where a token and a key go: this server lets nobody in without.
function askForCredentials() {
  $("#credentials").hidden = false;
}

function watch(channel) {
  for (const column of columns) column.watcher.close();
  clock = new Clock();
  strip.clear();
  columns = TRANSPORTS.map((transport) => new Column(transport, channel));
  $("#columns").replaceChildren(...columns.map(({ node }) => node));
  const key = $("#key").value.trim() ? "-H 'X-API-Key: KEY' " : "";
  $("#shell").textContent = `curl ${key}-d '${JSON.stringify({ channel, data: { text: "hello" } })}' ${location.origin}/api/publish`;
  document.title = `${channel} · Dunlin`;
}

async function send(event) {
  event.preventDefault();
  const channel = $("#channel").value;
  const copies = Number($("#copies").value);
  const items = Array.from({ length: copies }, () => parse($("#data").value));
  const outcome = $("#outcome");
  const at = performance.now();
  inFlight += 1;
  try {
    const results = await publish(channel, items, $("#key").value.trim());
    const took = performance.now() - at;
    for (const { offset, epoch } of results) clock.published(`${epoch}/${offset}`, at);
    const { offset, epoch } = results.at(-1);
    const offsets = results.length === 1 ? `offset ${offset}` : `offsets ${results[0].offset}–${offset}`;
    outcome.className = "";
    outcome.textContent = offset ? `Published as ${offsets}, epoch ${epoch}, in ${duration(took)}.` : `Published in ${duration(took)}.`;
  } catch (error) {
    outcome.className = "bad";
    outcome.textContent = `Not published: ${error.message}`;
    if (error.code === 401) askForCredentials();
  } finally {
    inFlight -= 1;
  }
}

/// What was typed, as JSON if it is JSON, else as a string.
function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function element(tag, className, text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

function duration(ms) {
  return ms < 10 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

$("#watch").addEventListener("submit", (event) => {
  event.preventDefault();
  const channel = $("#channel").value;
  history.replaceState(null, "", `#${encodeURIComponent(channel)}`);
  watch(channel);
});
$("#credentials").addEventListener("submit", (event) => {
  event.preventDefault();
  watch($("#channel").value);
});
$("#publish").addEventListener("submit", send);
$("#data").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("#publish").requestSubmit();
});

if (location.hash.length > 1) $("#channel").value = decodeURIComponent(location.hash.slice(1));
watch($("#channel").value);
