// Clients: a search goes through the sessions a bounded page at a time, so that a million of them cost no worker a pause.

import { Refusal, api, apiCurl, session } from "./api.js";
import { callLine, dialog, fmt, h, name, table, toast } from "./dom.js";

const LIMIT = 100;
/// Requests of one search before a person is asked to go on.
const REQUESTS_MAX = 40;
const TRANSPORTS = ["websocket", "uni_websocket", "sse", "uni_sse", "http_stream", "uni_http_stream", "poll", "pusher", "own"];

export function open(root, argument, signal) {
  const field = (key, title, placeholder = "") => h("label.field", h("span", title), h("input", { name: key, placeholder, spellcheck: "false", autocomplete: "off" }));
  const results = h("section.card");
  const form = h("form.fields", { "aria-label": "Search", onsubmit: (event) => (event.preventDefault(), search()) },
    field("user", "User"), field("channel", "Subscribed to channel"), field("address", "IP address"), field("client", "Client id"), field("label", "Label", "name=value"),
    h("label.field", h("span", "Transport"), h("select", { name: "transport" }, h("option", { value: "" }, "any"), TRANSPORTS.map((of) => h("option", of)))),
    field("age_min_s", "Connected for at least", "seconds"), field("outbox_bytes_min", "Outbox at least", "bytes"),
    h("button.primary", "Search"));
  root.append(h("div.head", h("h1", "Clients")), h("div.stack", h("section.card", form), results));
  if (argument) {
    const at = argument.indexOf("=");
    const input = form.elements[argument.slice(0, at)];
    if (input) input.value = argument.slice(at + 1);
  }
  let searching = new AbortController();
  signal.addEventListener("abort", () => searching.abort());

  function wanted() {
    const of = (key) => form.elements[key].value.trim();
    const params = { limit: LIMIT };
    for (const key of ["user", "channel", "address", "client", "transport"]) if (of(key)) params[key] = of(key);
    for (const key of ["age_min_s", "outbox_bytes_min"]) if (of(key)) params[key] = Number(of(key));
    const label = of("label");
    if (label) {
      const at = label.indexOf("=");
      params.label_filter = at < 0 ? { key: label, cmp: "ex" } : { key: label.slice(0, at), cmp: "eq", val: label.slice(at + 1) };
    }
    return params;
  }

  async function search() {
    searching.abort();
    searching = new AbortController();
    const params = wanted();
    const rows = [];
    const said = h("span.quiet.small", { role: "status" });
    const more = h("button", { hidden: true, onclick: () => turn() }, "Go on");
    const place = h("div");
    results.replaceChildren(place, h("div.bar", more, said), callLine(apiCurl("connections", params)));
    let cursor = "";
    let shown = 0;

    async function turn() {
      more.hidden = true;
      shown += LIMIT;
      const mine = searching.signal;
      try {
        for (let at = 0; at < REQUESTS_MAX && rows.length < shown; at += 1) {
          said.textContent = rows.length ? `${fmt.int(rows.length)} so far …` : "Searching …";
          const page = await api("connections", { ...params, ...(cursor && { cursor }) }, { signal: mine });
          rows.push(...Object.entries(page.connections).map(([client, of]) => ({ client, ...of })));
          cursor = page.cursor ?? "";
          if (!cursor) break;
        }
      } catch (error) {
        if (mine.aborted) return;
        place.replaceChildren(h("p.bad", error.message));
        said.textContent = "";
        return;
      }
      place.replaceChildren(clientTable(rows, search));
      more.hidden = !cursor;
      said.textContent = rows.length ? `${fmt.int(rows.length)}${cursor ? " so far; there may be more" : rows.length === 1 ? " connection" : " connections"}` : cursor ? "None so far; there may be more." : "";
    }
    await turn();
  }

  search();
}

function clientTable(rows, again) {
  return table([
    ["Client", (of) => h("button.plain.mono", { onclick: () => details(of, again), title: of.client }, of.client)],
    ["User", (of) => (of.user ? name(of.user, 60) : h("span.quiet", "anonymous")), "name"],
    ["Address", (of) => of.address ?? "–"],
    ["Transport", (of) => `${of.transport}${of.protocol === "json" ? "" : `, ${of.protocol}`}`],
    ["Connected", (of) => (of.age < 60 ? "< 1 min" : fmt.duration(of.age)), "num"],
    ["Channels", (of) => fmt.int(Object.keys(of.channels).length), "num"],
    ["Outbox", (of) => fmt.bytes(of.outbox_bytes), "num"],
    ["Memory", (of) => fmt.bytes(of.memory_bytes), "num"],
  ], rows, { empty: "No connection fits. Leave fields empty to find more." });
}

/// One connection, and what can be done about it.
function details(of, again) {
  const may = session.may("operate");
  const target = { user: of.user ?? "", client: of.client };
  const said = h("p.bad.small", { role: "alert" });
  const line = callLine(apiCurl("disconnect", target));
  const act = async (method, params, done) => {
    said.textContent = "";
    line.say(apiCurl(method, params));
    try {
      await api(method, params);
      toast(done);
      again();
      if (method === "disconnect") box.close();
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      said.textContent = error.message;
    }
  };
  const labels = Object.entries(of.labels ?? {});
  const channels = Object.keys(of.channels).sort();
  const box = dialog(`Client ${of.client}`,
    h("dl.facts",
      h("dt", "User"), h("dd", of.user ? name(of.user) : "anonymous"),
      h("dt", "Address"), h("dd", of.address ?? "not known"),
      h("dt", "Transport"), h("dd", `${of.transport}, ${of.protocol}`),
      h("dt", "Connected for"), h("dd", of.age < 60 ? "less than a minute" : fmt.duration(of.age)),
      h("dt", "Outbox"), h("dd", `${fmt.bytes(of.outbox_bytes)} wait to be read`),
      h("dt", "Memory"), h("dd", fmt.bytes(of.memory_bytes)),
      labels.length ? [h("dt", "Labels"), h("dd", labels.map(([key, value]) => `${name(key, 60)}=${name(value, 60)}`).join(", "))] : null,
      of.info ? [h("dt", "Info"), h("dd", h("code", name(JSON.stringify(of.info), 600)))] : null),
    h("h3", channels.length ? `Subscribed to ${fmt.int(channels.length)}` : "No subscriptions"),
    channels.length ? table([
      ["Channel", (channel) => h("a", { href: `#/channels/${encodeURIComponent(channel)}`, onclick: () => box.close() }, name(channel)), "name"],
      ["", (channel) => (may ? h("button", { onclick: (event) => ((event.target.disabled = true), act("unsubscribe", { ...target, channel }, "Unsubscribed.")) }, "Unsubscribe") : ""), "act"],
    ], channels.slice(0, 500)) : null,
    said,
    may ? null : h("p.quiet.small", "Acting on a client takes the role operate."),
    line,
    h("div.foot",
      may ? h("button", { title: "The client must show a fresh token", onclick: () => act("refresh", { ...target, expired: true }, "Expired: the client has to show a new token.") }, "Expire") : null,
      may ? h("button.danger", { onclick: () => act("disconnect", target, "Disconnected.") }, "Disconnect") : null,
      h("button", { onclick: () => box.close() }, "Close")));
}
