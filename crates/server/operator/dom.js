// Elements, and how numbers read. Whatever a server, a client or a person named becomes text here, never markup.

/// h("div.card", { onclick }, "text", child, ...): an element. Children that are null or false are left out.
export function h(selector, ...rest) {
  return build(document.createElement(selector.split(".")[0]), selector, rest);
}

/// The same in SVG.
export function s(selector, ...rest) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", selector.split(".")[0]), selector, rest);
}

function build(node, selector, rest) {
  const [, ...classes] = selector.split(".");
  if (classes.length) node.setAttribute("class", classes.join(" "));
  const attributes = rest.length && isAttributes(rest[0]) ? rest.shift() : {};
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "open") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...rest.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function isAttributes(value) {
  return value !== null && typeof value === "object" && !(value instanceof Node) && !Array.isArray(value);
}

/// Shows `text` in `node`, which is left alone if it shows it already.
export function show(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/// Replaces what a place shows, unless it would show the same: what has the focus keeps it.
export function fill(place, children) {
  const next = children.map((child) => child.outerHTML ?? child).join("");
  if (place.dataset.shown === String(hash(next))) return;
  place.dataset.shown = String(hash(next));
  place.replaceChildren(...children);
}

function hash(text) {
  let value = 0;
  for (let at = 0; at < text.length; at += 1) value = (value * 31 + text.charCodeAt(at)) | 0;
  return value;
}

/// A table. `columns`: [title, cell(row), "num" | ""]; a cell is text or an element.
export function table(columns, rows, { empty = "" } = {}) {
  if (rows.length === 0) return h("p.empty", empty);
  return h("div.scroll",
    h("table",
      h("thead", h("tr", columns.map(([title, , kind]) => h("th", { scope: "col", class: kind || null }, title)))),
      h("tbody", rows.map((row) => h("tr", columns.map(([, cell, kind]) => h("td", { class: kind || null }, cell(row)))))),
    ));
}

/// A message that goes by itself; an error stays until it is closed.
export function toast(text, { bad = false, action = null } = {}) {
  const node = h(bad ? "div.toast.bad" : "div.toast", { role: bad ? "alert" : null }, h("span", text));
  if (action) node.append(h("button", { onclick: () => (node.remove(), action.run()) }, action.text));
  node.append(h("button", { onclick: () => node.remove() }, "Close"));
  document.querySelector("#toasts").append(node);
  if (!bad) setTimeout(() => node.remove(), 9000);
}

/// Opens a dialog with this content; `close()` of the returned object ends it.
export function dialog(title, ...content) {
  const node = h("dialog", { "aria-label": title }, h("h2", title), ...content);
  node.addEventListener("close", () => node.remove());
  document.body.append(node);
  node.showModal();
  return node;
}

/// How to do it without this page: the call as a line for a terminal.
export function callLine(line) {
  const code = h("code", line);
  const copy = h("button", { type: "button", onclick: async () => {
    await navigator.clipboard?.writeText(code.textContent).catch(() => {});
    show(copy, "copied");
  } }, "copy");
  const node = h("details.call", h("summary", "API call"), h("pre", code, copy));
  node.say = (next) => (show(code, next), show(copy, "copy"));
  return node;
}

const whole = new Intl.NumberFormat("en");

export const fmt = {
  int: (n) => whole.format(Math.round(n)),
  /// 12.3 k, 4.56 M.
  short(n) {
    for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) if (Math.abs(n) >= size) return `${(n / (unit === "k" ? 1e3 : size)).toPrecision(3)} ${unit}`;
    return n !== 0 && Math.abs(n) < 10 && !Number.isInteger(n) ? n.toFixed(n < 1 ? 2 : 1) : whole.format(Math.round(n));
  },
  bytes(n) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    for (; n >= 1024 && at < units.length - 1; at += 1) n /= 1024;
    return `${at === 0 || n >= 100 ? Math.round(n) : n.toPrecision(3)} ${units[at]}`;
  },
  us: (n) => (n < 1000 ? `${n < 10 && n > 0 ? n.toFixed(1) : Math.round(n)} µs` : n < 1e6 ? `${(n / 1000).toPrecision(3)} ms` : `${(n / 1e6).toPrecision(3)} s`),
  percent: (share) => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`,
  duration(s) {
    for (const [unit, size, next, part] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]]) {
      if (s >= size) return `${Math.floor(s / size)} ${unit}${Math.floor((s % size) / part) ? ` ${Math.floor((s % size) / part)} ${next}` : ""}`;
    }
    return `${Math.round(s)} s`;
  },
  clock: (ms) => new Date(ms).toLocaleTimeString([], { hour12: false }),
  hour: (ms) => new Date(ms).toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit" }),
  time: (text) => new Date(text).toLocaleString([], { hour12: false }),
};

/// What the schema says of a key: `words` in backquotes become code.
export function prose(text) {
  return text.replaceAll("\n", " ").split("`").map((part, at) => (at % 2 ? h("code", part) : part));
}

/// A name as a person can read it whatever is in it: cut, and with control characters shown.
export function name(text, length = 200) {
  const plain = String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
  return plain.length > length ? `${plain.slice(0, length)}… (${whole.format(plain.length)} characters)` : plain;
}
