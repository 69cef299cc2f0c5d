// Broadcasts under way: messages to so many subscribers that they are written over several turns, or paced.

import { call, curl, get, poll, session } from "./api.js";
import { callLine, fmt, h, name, table, toast } from "./dom.js";

const LOOK_MS = 1500;

export function open(root, _, signal) {
  const list = h("div");
  const line = callLine(curl("GET", "./broadcasts"));
  root.append(h("div.head", h("h1", "Broadcasts"), h("span.quiet", "messages that are being written to many subscribers")), h("section.card", list, line));
  const may = session.may("operate");

  async function look() {
    const { broadcasts } = await get("./broadcasts", { signal });
    // A person who is about to press a button keeps it.
    if (list.contains(document.activeElement) && broadcasts.length) return;
    list.replaceChildren(table([
      ["Channel", (of) => h("a", { href: `#/channels/${encodeURIComponent(of.channel)}` }, name(of.channel)), "name"],
      ["Since", (of) => fmt.time(of.started_unix_ms)],
      ["Messages", (of) => fmt.int(of.publications), "num"],
      ["Written", (of) => fmt.int(of.written), "num"],
      ["Waiting", (of) => fmt.int(of.waiting), "num"],
      ["Sent", (of) => fmt.bytes(of.written_bytes), "num"],
      ["", (of) => (may ? h("span", action(of, of.paused ? "resume" : "pause"), " ", action(of, "cancel")) : of.paused ? h("span.tag", "paused") : ""), "act"],
    ], broadcasts, { empty: "No broadcast is under way. One is listed while a message is being written to more subscribers than a turn takes, or as long as its namespace paces it." }));
  }

  function action({ channel }, verb) {
    const path = `./broadcasts/${encodeURIComponent(channel)}/${verb}`;
    return h(verb === "cancel" ? "button.danger" : "button", { onclick: async (event) => {
      event.target.disabled = true;
      event.target.blur();
      line.say(curl("POST", path, { body: {} }));
      try {
        const done = await call("POST", path, { body: {} });
        toast({ pause: "Paused.", resume: "It goes on.", cancel: `Cancelled; ${fmt.int(done.discarded ?? 0)} messages were taken back.` }[verb]);
      } catch (error) {
        toast(error.message, { bad: true });
      }
      look().catch(() => {});
    } }, { pause: "Pause", resume: "Resume", cancel: "Cancel" }[verb]);
  }

  poll(LOOK_MS, signal, look);
}
