// Changes: who changed what, by which token, from where and why; any revision that is kept can be restored.

import { call, curl, get, session } from "./api.js";
import { callLine, dialog, fmt, h, name, toast } from "./dom.js";
import { describe, diff, refusal } from "./settings.js";

const PAGE = 50;

export function open(root, argument, signal) {
  const list = h("div");
  const head = h("span.quiet");
  const more = h("button", { hidden: true, onclick: () => older() }, "Older");
  root.append(h("div.head", h("h1", "Changes"), head), h("section.card", list, h("div.bar", more)));
  let oldest = null;
  let body = null;

  async function older() {
    const page = await get(`./config/revisions?limit=${PAGE}${oldest ? `&before=${oldest}` : ""}`, { signal });
    head.textContent = `revision ${page.current} runs, ${page.oldest} is the oldest kept`;
    if (!body) {
      body = h("tbody");
      list.replaceChildren(h("div.scroll", h("table", h("thead", h("tr", ["Revision", "When", "Who", "From", "Why", "Keys", ""].map((title) => h("th", { scope: "col" }, title)))), body)));
    }
    for (const revision of page.revisions) body.append(...row(revision, page.current));
    oldest = page.revisions.at(-1)?.revision;
    more.hidden = page.revisions.length < PAGE || oldest <= page.oldest;
  }

  function row(revision, current) {
    const details = h("td", { colspan: 7 });
    const below = h("tr.open", { hidden: true }, details);
    const toggle = h("button.plain", { "aria-expanded": "false", onclick: async () => {
      below.hidden = !below.hidden;
      toggle.setAttribute("aria-expanded", String(!below.hidden));
      if (details.childElementCount) return;
      const path = `./config/revisions/${revision.revision}`;
      const all = await get(path, { signal });
      details.append(all.changes?.length ? diff(all.changes) : h("p.empty", "The settings this server started with."), callLine(curl("GET", path)));
    } }, String(revision.revision));
    const who = [revision.who, revision.token].filter(Boolean).join(", by ") || "without a token";
    const restore = session.may("change") && revision.revision !== current ? h("button", { onclick: () => confirm(revision.revision) }, "Restore") : revision.revision === current ? h("span.tag.accent", "runs") : null;
    return [h("tr", h("td", toggle), h("td", { title: revision.when }, fmt.time(revision.when)), h("td.name", name(who)), h("td.name.quiet", name(revision.from)), h("td.name", name(revision.comment)), h("td.num", String(revision.changes)), h("td.act", restore)), below];
  }

  /// Shows what restoring would do, then does it.
  async function confirm(number) {
    const path = `./config/revisions/${number}/restore`;
    const result = h("div", h("p.quiet", "Trying it …"));
    const apply = h("button.primary", { disabled: true, onclick: async () => {
      apply.disabled = true;
      try {
        const done = await call("POST", `${path}?comment=${encodeURIComponent(`restores revision ${number}`)}`, { body: {} });
        box.close();
        toast(`Revision ${done.revision} runs, with the settings of ${number}.`);
        oldest = body = null;
        dispatchEvent(new Event("settings"));
        await older();
      } catch (error) {
        result.replaceChildren(...refusal(error));
      }
    } }, `Restore revision ${number}`);
    const box = dialog(`Restore revision ${number}`, result, callLine(curl("POST", path, { body: {} })), h("div.foot", h("button", { onclick: () => box.close() }, "Back"), apply));
    try {
      result.replaceChildren(...describe(await call("POST", `${path}?dry_run=1`, { body: {} })));
      apply.disabled = false;
      apply.focus();
    } catch (error) {
      result.replaceChildren(...refusal(error));
    }
  }

  older().then(() => {
    const wanted = Number(argument);
    if (Number.isInteger(wanted) && wanted > 0 && session.may("change")) confirm(wanted);
  }).catch((error) => signal.aborted || list.replaceChildren(h("p.bad", error.message)));
}
