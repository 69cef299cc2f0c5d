// The frame: who is signed in, the sections, and which of them is shown. The address of a section is in the fragment.

import { get, notice, poll, session } from "./api.js";
import { fmt, h, name, s, show, toast } from "./dom.js";

const $ = (selector) => document.querySelector(selector);
const load = (file) => () => import(file);

const TABS = [
  { key: "overview", title: "Overview", load: load("./overview.js") },
  { key: "clients", title: "Clients", load: load("./clients.js") },
  { key: "channels", title: "Channels", load: load("./channels.js") },
  { key: "broadcasts", title: "Broadcasts", load: load("./broadcasts.js") },
  { key: "services", title: "Services", load: load("./services.js") },
  { key: "access", title: "Access", load: load("./access.js") },
  { key: "settings", title: "Settings", load: load("./settings.js") },
  { key: "changes", title: "Changes", load: load("./changes.js") },
];

const LOOK_MS = 5000;

let shown = null;
/// Ends the polls of what is shown.
let leave = new AbortController();
/// Ends the session's own.
let signedIn = new AbortController();

async function start() {
  try {
    session.who = await get("./whoami");
  } catch (error) {
    if (error.status === 0) return unreachable();
    session.remember("");
    return signIn(error.status === 401 ? "" : error.message);
  }
  enter();
}

/// Asks again until the server is there.
function unreachable() {
  frame(false);
  $("#main").replaceChildren(h("div.signin", bird(), h("h1", "The server does not answer"), h("p.quiet", "This page asks again every few seconds.")));
  setTimeout(start, 3000);
}

function signIn(error = "") {
  leave.abort();
  signedIn.abort();
  session.who = null;
  frame(false);
  const field = h("input", { type: "password", autocomplete: "current-password", spellcheck: "false", required: true, id: "token", "aria-describedby": "signin-error" });
  const said = h("p.error.bad.small", { id: "signin-error", role: "alert" }, error);
  const button = h("button.primary", "Sign in");
  const form = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    button.disabled = true;
    show(said, "");
    session.remember(field.value.trim());
    try {
      session.who = await get("./whoami");
      enter();
    } catch (refusal) {
      session.remember("");
      show(said, refusal.status === 401 ? "The server does not know this token." : `Not signed in: ${refusal.message}`);
      field.select();
      field.focus();
    }
    button.disabled = false;
  } }, h("label.field", h("span", "Admin token"), field), button, said);
  $("#main").replaceChildren(
    h("div.signin", bird(), h("h1", "Sign in to this node"), form,
      h("p.quiet.small", "Tokens are those of the admin API:"),
      h("ul.quiet.small",
        h("li", h("code", "admin-token"), " in the state directory: everything"),
        h("li", h("code", "admin.tokens.NAME"), " in the settings: what its role permits")),
      h("p.quiet.small", "The token stays in this tab and ends with it.")),
  );
  field.focus();
}

function bird() {
  const path = $("#brand path").getAttribute("d");
  return s("svg", { viewBox: "0 0 32 18", "aria-hidden": true }, s("path", { d: path }));
}

function signOut() {
  session.remember("");
  location.hash = "";
  start();
}

function frame(inside) {
  document.body.classList.toggle("signed-out", !inside);
  if (inside) return;
  $("#node").replaceChildren();
  $("#who").replaceChildren();
  $("#tabs").replaceChildren();
  shown = null;
}

function enter() {
  signedIn = new AbortController();
  frame(true);
  const { role, token, through } = session.who;
  $("#who").replaceChildren(
    h("span.long", token || (through === "socket" ? "through the socket" : "without a token")),
    h("span.tag.accent", { title: `This token may ${{ see: "look", operate: "look, and act on clients, channels and broadcasts", change: "do everything" }[role]}.` }, role),
    session.token ? h("button", { onclick: signOut }, "Sign out") : h("button", { onclick: () => signIn() }, "Sign in"),
  );
  $("#tabs").replaceChildren(...TABS.map(({ key, title }) => h("a", { href: `#/${key}` }, title)));
  const look = async () => node(await get("./info", { signal: signedIn.signal }));
  poll(LOOK_MS, signedIn.signal, look);
  addEventListener("settings", () => look().catch(() => {}), { signal: signedIn.signal });
  route();
}

function node(info) {
  const kind = { serving: "good", starting: "wait", draining: "wait" }[info.state] ?? "bad";
  $("#node").replaceChildren(h(`span.dot.${kind}`), h("span", { title: info.uid }, name(info.name, 60)), h("span.long", `${info.state} for ${fmt.duration(info.uptime_s)} · ${info.version} · revision ${info.revision}`));
  document.title = `${name(info.name, 40)} · Dunlin`;
}

/// Shows what the fragment names: `#/section/argument`.
async function route() {
  if (!session.who) return;
  const [key, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const tab = TABS.find((of) => of.key === key) ?? TABS[0];
  let argument = "";
  try {
    argument = decodeURIComponent(rest.join("/"));
  } catch {
    // Not written by this page.
  }
  for (const link of $("#tabs").children) {
    const current = link.getAttribute("href") === `#/${tab.key}`;
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (current && document.body.clientWidth < 900) link.scrollIntoView({ block: "nearest", inline: "center" });
  }
  if (shown?.tab === tab && shown.page?.go?.(argument)) return;
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const module = await tab.load();
  if (signal.aborted) return;
  const root = h("div");
  $("#main").replaceChildren(root);
  shown = { tab, page: module.open(root, argument, signal) };
}

let lost = null;
notice.reachable = (is) => {
  if (is) {
    lost?.remove();
    lost = null;
  } else if (!lost && session.who) {
    lost = h("p.lost", { role: "alert" }, "The server does not answer. What stands here is from before; this page asks again every few seconds.");
    $("#main").prepend(lost);
  }
};
notice.unauthorized = () => {
  session.remember("");
  signIn("The server does not take this token any more.");
};

addEventListener("hashchange", () => {
  route();
  $("#main").focus({ preventScroll: true });
  scrollTo(0, 0);
});
addEventListener("unhandledrejection", ({ reason }) => {
  if (reason?.name === "AbortError") return;
  toast(reason?.message ?? String(reason), { bad: true });
});
start();
