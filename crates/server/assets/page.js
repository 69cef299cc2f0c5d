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

/// What is to be drawn before the next frame.
const due = new Set();
/// Longest time in milliseconds after which a frame leaves the rest to the next.
const FRAME_MS = 6;

/// Calls `draw` before one of the next frames, however often it is asked for until then.
function eachFrame(draw) {
  return () => {
    if (due.size === 0) nextFrame();
    due.add(draw);
  };
}

function nextFrame() {
  // A tab in the background has no frames.
  (document.hidden ? setTimeout : requestAnimationFrame)(() => {
    const began = performance.now();
    for (const draw of due) {
      due.delete(draw);
      draw();
      if (performance.now() - began > FRAME_MS) break;
    }
    if (due.size > 0) nextFrame();
  }, 250);
}

const clockTime = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

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
    /// The last of them.
    this.latencies = [];
    /// Offsets of this epoch below `last` that have not come.
    this.missing = new Set();
    this.last = 0;
    /// Lines that the next frame shows, newest last; more than a list holds are not made.
    this.waiting = [];
    this.draw = eachFrame(() => this.show());
    this.node = document.importNode($("#column").content, true).firstElementChild;
    this.node.dataset.transport = key;
    this.list = $("ol", this.node);
    $("h2", this.node).textContent = title;
    $("code", this.node).textContent = watcher.endpoint;
    this.watcher = new watcher(channel, $("#token").value.trim(), {
      state: (state, detail) => this.showState(state, detail),
      publication: (publication) => this.showPublication(publication),
      note: (text, bad) => this.showNote(text, bad),
      skipped: ({ epoch, offset }, lost) => {
        strip.skipTo(this.key, epoch, offset, lost);
        // What is missing has been said.
        this.last = offset;
        this.epoch = epoch;
      },
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
    if (epoch !== this.epoch) this.missing.clear();
    if (offset > 0 && epoch === this.epoch && this.last > 0) {
      if (offset <= this.last && !this.missing.delete(offset)) this.showNote(`duplicate offset ${offset}`, true);
      if (offset > this.last + 1) {
        this.showNote(`offsets ${this.last + 1}–${offset - 1} are missing`, true);
        strip.skip(this.key, epoch, this.last + 1, offset - 1);
        for (let at = Math.max(this.last + 1, offset - LAGGING_MAX); at < offset; at += 1) this.missing.add(at);
      }
    }
    this.last = offset;
    this.epoch = epoch;

    const message = { offset, data, recovered, at: new Date(), ms: null, line: null };
    this.add(message);
    if (!recovered) {
      clock.arrive(id, (ms) => {
        message.ms = ms;
        if (message.line) $(".latency", message.line).textContent = duration(ms);
        this.latencies.push(ms);
        if (this.latencies.length > 100) this.latencies.shift();
        this.draw();
      });
    }
    strip.mark(this.key, id, offset, epoch);
  }

  add(entry) {
    this.waiting.push(entry);
    if (this.waiting.length > 2 * LINES_MAX) this.waiting.splice(0, this.waiting.length - LINES_MAX);
    this.draw();
  }

  /// Shows what has come since the last frame.
  show() {
    const lines = this.waiting.slice(-LINES_MAX).map((entry) => entry.note ?? lineOf(entry));
    this.waiting = [];
    this.list.prepend(...lines.reverse());
    while (this.list.childElementCount > LINES_MAX) this.list.lastElementChild.remove();
    this.showFigures();
  }

  showNote(text, bad = false) {
    this.add({ note: element("li", bad ? "note bad" : "note", text) });
  }

  showFigures() {
    const recent = [...this.latencies].sort((a, b) => a - b);
    $(".received", this.node).textContent = this.received.toLocaleString("en");
    $(".last", this.node).textContent = this.last || "–";
    $(".median", this.node).textContent = recent.length ? duration(recent[Math.floor(recent.length / 2)]) : "–";
  }
}

/// The line of a message.
function lineOf(message) {
  const { offset, data, recovered, at, ms } = message;
  const line = document.createElement("li");
  line.dataset.offset = offset;
  const text = typeof data === "string" ? data : JSON.stringify(data);
  line.append(
    element("span", "offset", offset || "–"),
    element("span", "data", text),
    element("time", "latency", ms === null ? clockTime.format(at) : duration(ms)),
  );
  if (recovered) line.classList.add("recovered");
  message.line = line;
  return line;
}

/// The strip: one stack of three marks per message, each lit when its transport has delivered it.
///
/// The oldest stacks make room. A message that lacks a mark is counted until it has it, whether its stack is shown or not, or
/// until it is given up as too old.
const strip = {
  messages: new Map(),
  /// The messages whose stacks are shown.
  shown: [],
  /// How many of `messages` each transport has yet to deliver, and how many messages it will never deliver.
  behind: new Map(TRANSPORTS.map(({ key }) => [key, 0])),
  missed: new Map(TRANSPORTS.map(({ key }) => [key, 0])),
  /// Up to where each transport delivers nothing any more: { epoch, offset, lost }; `lost`: it should have.
  passed: new Map(),
  total: 0,
  /// The last offset by epoch that is complete and not shown any more.
  past: new Map(),

  clear() {
    this.messages.clear();
    this.past.clear();
    this.passed.clear();
    this.shown = [];
    this.total = 0;
    for (const { key } of TRANSPORTS) {
      this.behind.set(key, 0);
      this.missed.set(key, 0);
    }
    $("#strip").replaceChildren();
    this.draw();
  },

  mark(key, id, offset, epoch) {
    if (!offset || (!this.messages.has(id) && offset <= (this.past.get(epoch) ?? 0))) return;
    const message = this.messages.get(id) ?? this.add(id, offset, epoch);
    message.keys.add(key);
    if (message.node) $(`.${key}`, message.node).classList.add("here");
    this.settle(message, key);
    this.draw();
  },

  /// Notes that a transport has delivered a message, or never will.
  settle(message, key) {
    if (message.settled.has(key)) return;
    message.settled.add(key);
    this.behind.set(key, this.behind.get(key) - 1);
    if (message.gone && message.settled.size === TRANSPORTS.length) this.forget(message);
  },

  /// A transport goes on behind these offsets without having delivered them.
  skip(key, epoch, from, to) {
    this.missed.set(key, this.missed.get(key) + to - from + 1);
    for (let offset = Math.max(from, to - LAGGING_MAX); offset <= to; offset += 1) {
      const message = this.messages.get(`${epoch}/${offset}`);
      if (message) this.settle(message, key);
    }
    this.draw();
  },

  /// A transport goes on in this epoch behind this offset, whatever was before. Not `lost`: it has only begun.
  skipTo(key, epoch, offset, lost) {
    this.passed.set(key, { epoch, offset, lost });
    for (const message of [...this.messages.values()]) {
      if (message.epoch !== epoch || message.offset <= offset) this.giveUp(message, key, lost);
    }
    this.draw();
  },

  giveUp(message, key, lost) {
    if (message.settled.has(key)) return;
    if (lost) this.missed.set(key, this.missed.get(key) + 1);
    this.settle(message, key);
  },

  add(id, offset, epoch) {
    const message = { id, offset, epoch, node: null, keys: new Set(), settled: new Set(), gone: false };
    this.messages.set(id, message);
    for (const { key } of TRANSPORTS) {
      this.behind.set(key, this.behind.get(key) + 1);
      // Another transport still gets from history what this one went past.
      const passed = this.passed.get(key);
      if (passed?.epoch === epoch && offset <= passed.offset) this.giveUp(message, key, passed.lost);
    }
    this.total += 1;
    this.shown.push(message);
    if (this.shown.length > STRIP_MAX) {
      const oldest = this.shown.shift();
      oldest.node?.remove();
      oldest.gone = true;
      if (oldest.settled.size === TRANSPORTS.length) this.forget(oldest);
    }
    // The oldest that a transport still lacks is not waited for any more.
    if (this.messages.size > LAGGING_MAX) this.forget(this.messages.values().next().value);
    return message;
  },

  /// Forgets a message that every transport has delivered, or that is too old to wait for.
  forget({ id, offset, epoch, settled }) {
    if (!this.messages.delete(id)) return;
    for (const { key } of TRANSPORTS) if (!settled.has(key)) this.behind.set(key, this.behind.get(key) - 1);
    this.past.set(epoch, Math.max(offset, this.past.get(epoch) ?? 0));
  },

  /// Asks for `show` before the next frame.
  draw: eachFrame(() => strip.show()),

  show() {
    for (const message of this.shown) {
      if (message.node) continue;
      message.node = element("span", "stack");
      message.node.title = `offset ${message.offset}`;
      for (const { key } of TRANSPORTS) message.node.append(element("i", message.keys.has(key) ? `${key} here` : key));
      $("#strip").append(message.node);
    }
    const said = (counts, word) => TRANSPORTS.filter(({ key }) => counts.get(key) > 0).map(({ key, title }) => `${title} ${word(counts.get(key))}`);
    const differences = [...said(this.behind, (n) => `is ${n} behind`), ...said(this.missed, (n) => `missed ${n}`)];
    $("#agreement").textContent =
      this.total === 0
        ? "Nothing yet. Publish something above, or from a terminal."
        : differences.length === 0
          ? `${count(this.total, "message")}, each on all three transports with the same offset.`
          : `${differences.join(", ")}.`;
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
  const body = JSON.stringify({ channel, data: { text: "hello" } }).replaceAll("'", "'\\''");
  $("#shell").textContent = `curl ${key}-d '${body}' ${location.origin}/api/publish`;
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

/// A fragment as it was before it was escaped; one that a person typed may never have been.
function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
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

if (location.hash.length > 1) $("#channel").value = unescaped(location.hash.slice(1));
watch($("#channel").value);
