// Channels: those with subscribers, and one channel with who is in it and what was said.

import { api, apiCurl, poll, session } from "./api.js";
import { callLine, fill, fmt, h, name, show, table } from "./dom.js";

const LIMIT = 100;
const REQUESTS_MAX = 40;
const HISTORY = 20;
const PRESENT_MAX = 200;
const LOOK_MS = 5000;

export function open(root, argument, signal) {
  if (argument) one(root, argument, signal);
  else all(root, signal);
}

function all(root, signal) {
  const pattern = h("input", { placeholder: "chat:*", spellcheck: "false", autocomplete: "off", "aria-label": "Pattern of the name" });
  const idle = h("input", { type: "checkbox" });
  const results = h("section.card");
  const form = h("form.bar", { onsubmit: (event) => (event.preventDefault(), search()) },
    h("label.field", h("span", "Name or pattern: * any characters, ? one, [a-z], {a,b}"), pattern),
    h("label.check", idle, "also without subscribers"), h("button.primary", "Search"),
    h("button", { type: "button", title: "Shows the channel of exactly this name, whether anybody is subscribed or not", onclick: () => pattern.value && (location.hash = `#/channels/${encodeURIComponent(pattern.value)}`) }, "Open this name"));
  root.append(h("div.head", h("h1", "Channels")), h("div.stack", h("section.card", form), results));
  let searching = new AbortController();
  signal.addEventListener("abort", () => searching.abort());

  async function search() {
    searching.abort();
    searching = new AbortController();
    const mine = searching.signal;
    const params = { limit: LIMIT, ...(pattern.value && { pattern: pattern.value }), ...(idle.checked && { without_subscribers: true }) };
    const rows = new Map();
    const place = h("div");
    const said = h("span.quiet.small", { role: "status" });
    const more = h("button", { hidden: true, onclick: () => turn() }, "Go on");
    results.replaceChildren(place, h("div.bar", more, said), callLine(apiCurl("channels", params)));
    let cursor = "";
    let wanted = 0;

    async function turn() {
      more.hidden = true;
      wanted += LIMIT;
      try {
        for (let at = 0; at < REQUESTS_MAX && rows.size < wanted; at += 1) {
          said.textContent = rows.size ? `${fmt.int(rows.size)} so far …` : "Searching …";
          const page = await api("channels", { ...params, ...(cursor && { cursor }) }, { signal: mine });
          // In a cluster a channel may be on several pages, each with the subscribers of some nodes.
          for (const [channel, { num_clients }] of Object.entries(page.channels)) rows.set(channel, (rows.get(channel) ?? 0) + num_clients);
          cursor = page.cursor ?? "";
          if (!cursor) break;
        }
      } catch (error) {
        if (mine.aborted) return;
        said.textContent = "";
        return place.replaceChildren(h("p.bad", error.message));
      }
      const list = [...rows].sort(([a], [b]) => (a < b ? -1 : 1));
      place.replaceChildren(table([
        ["Channel", ([channel]) => h("a", { href: `#/channels/${encodeURIComponent(channel)}` }, name(channel)), "name"],
        ["Subscribers", ([, clients]) => fmt.int(clients), "num"],
      ], list, { empty: pattern.value ? "No channel has such a name." : "Nobody is subscribed to a channel. To try one, write a name above and open it." }));
      more.hidden = !cursor;
      said.textContent = list.length ? `${fmt.int(list.length)}${cursor ? " so far; there may be more" : list.length === 1 ? " channel" : " channels"}` : "";
    }
    await turn();
  }
  search();
}

function one(root, channel, signal) {
  const mayAct = session.may("operate");
  const count = h("span.quiet");
  const present = h("div");
  const history = h("div", { "aria-live": "off" });
  const position = h("span.quiet.small");
  const older = h("button", { hidden: true, onclick: () => page(true) }, "Older");
  root.append(
    h("div.head", h("a", { href: "#/channels" }, "Channels"), h("h1", name(channel, 120)), count, h("span.end", h("a", { href: `#/clients/${encodeURIComponent(`channel=${channel}`)}` }, "Its clients"))),
    h("div.stack",
      mayAct ? publisher() : null,
      h("section.card", h("h2", "History"), mayAct ? [history, h("div.bar", older, position), callLine(apiCurl("history", { channel, limit: HISTORY, reverse: true }))] : h("p.quiet", "Reading messages takes the role operate.")),
      h("section.card", h("h2", "Present"), present, callLine(apiCurl("presence", { channel })))));

  function publisher() {
    const data = h("textarea", { rows: 2, spellcheck: "false", value: '{"text": "a test"}', "aria-label": "Message, JSON or plain text" });
    const said = h("span.small", { role: "status" });
    const parsed = () => {
      try {
        return JSON.parse(data.value);
      } catch {
        return data.value;
      }
    };
    const line = callLine(apiCurl("publish", { channel, data: parsed() }));
    data.addEventListener("input", () => line.say(apiCurl("publish", { channel, data: parsed() })));
    return h("section.card", h("h2", "Publish"), h("form.stack", { onsubmit: async (event) => {
      event.preventDefault();
      try {
        const { offset, epoch } = await api("publish", { channel, data: parsed() });
        said.className = "small good";
        show(said, offset ? `Published as offset ${offset} of epoch ${epoch}.` : "Published; the channel keeps no history.");
        if (mayAct) page(false).catch(() => {});
      } catch (error) {
        said.className = "small bad";
        show(said, `Not published: ${error.message}`);
      }
    } }, data, h("div.bar", h("button.primary", "Publish"), said)), line);
  }

  let rows = [];
  async function page(further) {
    const last = rows.at(-1);
    const since = further && last ? { since: { offset: last.offset, epoch } } : {};
    const got = await api("history", { channel, limit: HISTORY, reverse: true, ...since }, { signal });
    epoch = got.epoch;
    const fresh = got.publications;
    rows = further ? [...rows, ...fresh] : fresh;
    show(position, got.offset ? `The stream is at offset ${fmt.int(got.offset)} of epoch ${got.epoch}.` : "");
    older.hidden = fresh.length < HISTORY;
    history.replaceChildren(table([
      ["Offset", (of) => String(of.offset), "num"],
      ["Message", (of) => h("div.message", name(of.b64data === undefined ? JSON.stringify(of.data) : `base64 ${of.b64data}`, 4000)), "wide"],
      ["By", (of) => (of.info ? name(of.info.user || of.info.client, 60) : h("span.quiet", "API")), "name"],
    ], rows, { empty: got.offset ? "The messages of this channel have expired." : "No messages are kept. Whether a channel keeps some is set by history_size and history_ttl_ms of its namespace." }));
  }
  let epoch = "";

  if (mayAct) page(false).catch((error) => signal.aborted || history.replaceChildren(h("p.bad", error.message)));
  poll(LOOK_MS, signal, async () => {
    try {
      const stats = await api("presence_stats", { channel }, { signal });
      show(count, `${fmt.int(stats.num_clients)} ${stats.num_clients === 1 ? "client" : "clients"}, ${fmt.int(stats.num_users)} ${stats.num_users === 1 ? "user" : "users"} present`);
      if (stats.num_clients > PRESENT_MAX * 10) return fill(present, [`${fmt.int(stats.num_clients)} are present, too many for a list; look for clients of this channel instead.`]);
      const list = Object.entries((await api("presence", { channel }, { signal })).presence).slice(0, PRESENT_MAX);
      fill(present, [table([
        ["Client", ([client]) => h("a.mono", { href: `#/clients/${encodeURIComponent(`client=${client}`)}` }, client)],
        ["User", ([, of]) => (of.user ? name(of.user, 80) : h("span.quiet", "anonymous")), "name"],
        ["Info", ([, of]) => h("code", name(JSON.stringify(of.chan_info ?? of.conn_info ?? "") || "", 120)), "name"],
      ], list, { empty: "Nobody is present." })]);
    } catch (error) {
      if (signal.aborted || error.status === 0) throw error;
      show(count, "");
      fill(present, [h("p.empty", error.message.includes("not available") ? "The channel's namespace keeps no presence." : error.message)]);
    }
  });
}
