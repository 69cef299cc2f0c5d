// Settings: a form made from the schema, with its documentation. Edits are kept until they are reviewed: a dry run says
// what they would do, then they are applied as one revision.

import { Refusal, call, curl, get, session } from "./api.js";
import { callLine, dialog, fmt, h, name, prose, toast } from "./dom.js";

const PATCH = "application/json-patch+json";
const FOUND_MAX = 60;
const DEFAULTS_SHOWN = 60;

export function open(root, argument, signal) {
  const page = new Settings(root, signal);
  page.load(argument).catch((error) => {
    if (!signal.aborted) root.replaceChildren(h("div.head", h("h1", "Settings")), h("p.bad", error.message));
  });
  return page;
}

class Settings {
  /// JSON pointers with what they are to be; `undefined`: back to the default, or gone.
  draft = new Map();

  constructor(root, signal) {
    Object.assign(this, { root, signal, mayChange: session.may("change") });
    this.search = h("input", { type: "search", placeholder: "Search keys and what they do", "aria-label": "Search settings", spellcheck: "false", oninput: () => this.render() });
    this.sections = h("nav.sections", { "aria-label": "Sections of the settings" });
    this.form = h("div.card");
    this.bar = h("div.drafts", { hidden: true, role: "region", "aria-label": "Edits" });
    addEventListener("beforeunload", (event) => this.draft.size && event.preventDefault(), { signal });
  }

  async load(argument) {
    [this.schema, this.base] = await Promise.all([this.schema ?? get("./config/schema", { signal: this.signal }), get("./config", { signal: this.signal })]);
    this.revision = Number(this.base.etag.replaceAll('"', ""));
    this.working = structuredClone(this.base);
    this.draft.clear();
    this.root.replaceChildren(
      h("div.head", h("h1", "Settings"), h("span.quiet", `revision ${this.revision}`), h("span.end", this.search)),
      this.mayChange ? "" : h("p.quiet.small.above", `Your token has the role ${session.who.role}; editing takes the role change.`),
      h("div.settings", this.sections, h("div", this.form, this.bar)),
    );
    this.go(argument || "server");
  }

  /// Shows the section of a pointer. Answers `true`: the page stays.
  go(argument) {
    if (!this.schema) return true;
    const section = argument.split("/").filter(Boolean)[0];
    this.section = section in this.schema.properties ? section : "server";
    this.search.value = "";
    this.render();
    return true;
  }

  render() {
    const changed = new Set([...this.draft.keys()].map((pointer) => pointer.split("/")[1]));
    this.sections.replaceChildren(...Object.keys(this.schema.properties).map((key) =>
      h("a", { href: `#/settings/${key}`, "aria-current": key === this.section && !this.search.value ? "true" : null, class: changed.has(key) ? "changed" : null }, key)));
    this.form.replaceChildren(...(this.search.value.trim() ? this.found(this.search.value.trim().toLowerCase()) : this.whole()));
    this.showBar();
  }

  whole() {
    const schema = this.resolve(this.schema.properties[this.section]);
    const pointer = `/${this.section}`;
    return [h("h2", this.section), h("p.quiet.small", prose(schema.description ?? "")), this.inside(pointer, schema, at(this.working, pointer))];
  }

  /// Keys whose name, pointer or description has the words.
  found(text) {
    const words = text.split(/\s+/);
    const hits = [];
    const walk = (pointer, node, value) => {
      const schema = this.resolve(node);
      if (schema.properties) {
        for (const [key, of] of Object.entries(schema.properties)) walk(`${pointer}/${escape(key)}`, of, value?.[key]);
      } else if (isMap(schema) && value && this.resolve(schema.additionalProperties).properties) {
        for (const key of Object.keys(value)) walk(`${pointer}/${escape(key)}`, schema.additionalProperties, value[key]);
      } else {
        const key = pointer.toLowerCase();
        const all = `${key} ${(schema.description ?? "").toLowerCase()}`;
        if (words.every((word) => all.includes(word))) hits.push({ pointer, schema, rank: words.every((word) => key.includes(word)) ? 0 : 1 });
      }
    };
    walk("", this.schema, this.working);
    hits.sort((a, b) => a.rank - b.rank);
    if (!hits.length) return [h("p.empty", `No key and no description has “${name(text, 60)}”.`)];
    const more = hits.length > FOUND_MAX ? h("p.quiet.small", `and ${hits.length - FOUND_MAX} more; search for more words`) : null;
    return [h("h2", `${hits.length} found`), h("fieldset", hits.slice(0, FOUND_MAX).map(({ pointer, schema }) => this.setting(pointer, schema, true))), more].filter(Boolean);
  }

  /// What an object or a map holds.
  inside(pointer, schema, value) {
    if (isMap(schema)) return this.entries(pointer, schema, value ?? {});
    return h("fieldset", { disabled: false }, Object.entries(schema.properties ?? {}).map(([key, of]) => {
      const child = `${pointer}/${escape(key)}`;
      const resolved = this.resolve(of);
      return resolved.properties || isMap(resolved) ? this.group(child, key, resolved) : this.setting(child, resolved);
    }));
  }

  group(pointer, key, schema) {
    const value = at(this.working, pointer);
    const count = isMap(schema) ? Object.keys(value ?? {}).length : 0;
    const node = h("details.group", { open: isMap(schema) && count > 0 && count < 9 },
      h("summary", key, isMap(schema) ? h("span.tag", count === 1 ? "1 entry" : `${count} entries`) : null, h("span.doc", prose(firstSentence(schema.description)))));
    // Filled in when it is opened: a configuration may have ten thousand namespaces.
    const fill = () => node.open && !node.dataset.full && (node.dataset.full = "1", node.append(h("div.inside", this.inside(pointer, schema, at(this.working, pointer)))));
    node.addEventListener("toggle", fill);
    fill();
    return node;
  }

  entries(pointer, schema, value) {
    const of = this.resolve(schema.additionalProperties);
    const names = Object.keys(value);
    const list = h("div");
    const showSome = (from) => {
      for (const key of names.slice(from, from + DEFAULTS_SHOWN)) {
        const child = `${pointer}/${escape(key)}`;
        const remove = this.mayChange && h("button.plain.danger", { onclick: () => this.set(child, undefined) || this.render() }, "Remove");
        if (of.properties) {
          const group = this.group(child, name(key, 60), of);
          group.querySelector("summary .doc").replaceChildren(remove || "");
          list.append(group);
        } else {
          list.append(this.setting(child, of, false, name(key, 60), remove));
        }
      }
      if (names.length > from + DEFAULTS_SHOWN) list.append(h("button.plain", { onclick: (event) => (event.target.remove(), showSome(from + DEFAULTS_SHOWN)) }, `Show ${Math.min(DEFAULTS_SHOWN, names.length - from - DEFAULTS_SHOWN)} of ${names.length - from - DEFAULTS_SHOWN} more`));
    };
    showSome(0);
    const field = h("input", { placeholder: "name", "aria-label": `Name of a new entry of ${pointer.slice(1).replaceAll("/", ".")}`, spellcheck: "false", maxlength: 255 });
    const add = h("form.bar", { onsubmit: (event) => {
      event.preventDefault();
      const key = field.value;
      if (!key || key in value) return;
      this.set(`${pointer}/${escape(key)}`, of.properties ? {} : of.type === "string" ? "" : null);
      this.render();
    } }, field, h("button", "Add"));
    return h("div", list, names.length ? null : h("p.empty", "None yet."), this.mayChange ? add : null);
  }

  setting(pointer, schema, whole = false, label = null, extra = null) {
    const value = at(this.working, pointer);
    const key = whole ? pointer.slice(1).split("/").map((step) => name(unescape(step), 40)).join(".") : label ?? unescape(pointer.split("/").at(-1));
    const id = `set-${pointer}`;
    const note = h("div.note");
    const node = h("div.setting", { "data-pointer": pointer },
      h("div.key", h("label", { for: id }, key), schema["x-applies"] && schema["x-applies"] !== "live" ? h("span.tag", schema["x-applies"]) : null, extra),
      h("div.doc", prose(schema.description ?? "")),
      h("div.control", this.control(id, schema, value, (next) => {
        this.set(pointer, next);
        mark();
        this.showBar();
      }), note));
    const mark = () => {
      const isChanged = this.draft.has(pointer);
      node.classList.toggle("changed", isChanged);
      const now = at(this.working, pointer);
      const isDefault = JSON.stringify(now) === JSON.stringify(schema.default);
      note.replaceChildren(
        h("span", isChanged ? `was ${brief(at(this.base, pointer))}` : isDefault || schema.default === undefined ? "" : `default ${brief(schema.default)}`),
        isChanged ? h("button.plain", { onclick: () => (this.undo(pointer), this.render()) }, "Undo") : "");
    };
    mark();
    return node;
  }

  control(id, schema, value, change) {
    const disabled = !this.mayChange;
    const types = [schema.type].flat();
    const consts = schema.oneOf?.map((of) => of.const) ?? [];
    const nullable = types.includes("null");
    if (consts.length && consts.every((of) => of !== undefined)) {
      const options = consts.map((of, at) => h("option", { value: of, title: schema.oneOf[at].description ?? null }, of));
      const select = h("select", { id, disabled, onchange: () => change(select.value === "" && nullable ? null : select.value) }, nullable ? h("option", { value: "" }, "–") : null, options);
      select.value = value ?? "";
      return select;
    }
    if (types.includes("boolean")) return h("input", { id, type: "checkbox", disabled, checked: value === true, onchange: (event) => change(event.target.checked) });
    if (types.includes("integer") || types.includes("number")) {
      const field = h("input", { id, disabled, inputmode: "numeric", spellcheck: "false", value: value ?? "", placeholder: nullable ? "not set" : "", onchange: () => {
        const text = field.value.trim();
        // What is no number goes as it is: the dry run says what is wrong with it.
        change(text === "" && nullable ? null : text !== "" && Number.isFinite(Number(text)) ? Number(text) : text);
      } });
      return field;
    }
    if (types.includes("string")) {
      const secret = schema.format === "password";
      const field = h("input", { id, disabled, type: secret ? "password" : "text", autocomplete: secret ? "new-password" : "off", spellcheck: "false", value: secret ? "" : value ?? "", placeholder: secret && value ? "set; type another to replace it" : nullable ? "not set" : "", onchange: () => change(field.value === "" && nullable ? null : field.value) });
      return field;
    }
    if (types.includes("array") && (this.resolve(schema.items ?? {}).type === "string" || this.resolve(schema.items ?? {}).oneOf)) {
      const area = h("textarea", { id, disabled, rows: Math.min(6, Math.max(2, (value ?? []).length + 1)), spellcheck: "false", placeholder: "one a line", value: (value ?? []).join("\n"), onchange: () => change(area.value.split("\n").map((line) => line.trim()).filter(Boolean)) });
      return area;
    }
    const area = h("textarea", { id, disabled, rows: 3, spellcheck: "false", value: JSON.stringify(value ?? null), onchange: () => {
      try {
        change(JSON.parse(area.value));
        area.setCustomValidity("");
      } catch {
        area.setCustomValidity("This is not JSON.");
        area.reportValidity();
      }
    } });
    return area;
  }

  /// Notes an edit.
  set(pointer, value) {
    if (JSON.stringify(value) === JSON.stringify(at(this.base, pointer)) && value !== undefined) return void this.undo(pointer);
    // What is inside goes with it.
    for (const other of [...this.draft.keys()]) if (other.startsWith(`${pointer}/`)) this.draft.delete(other);
    if (value === undefined && at(this.base, pointer) === undefined) this.draft.delete(pointer);
    else this.draft.set(pointer, value);
    put(this.working, pointer, value);
  }

  undo(pointer) {
    this.draft.delete(pointer);
    const before = at(this.base, pointer);
    put(this.working, pointer, before === undefined ? undefined : structuredClone(before));
  }

  showBar() {
    const count = this.draft.size;
    this.bar.hidden = count === 0;
    if (!count) return;
    this.bar.replaceChildren(
      h("b", count === 1 ? "1 edit" : `${count} edits`),
      h("span.quiet.small", "nothing is changed yet"),
      h("button.primary", { onclick: () => this.review() }, "Review"),
      h("button", { onclick: () => this.load(this.section) }, "Discard"));
  }

  patch() {
    return [...this.draft].map(([path, value]) => (value === undefined ? { op: "remove", path } : { op: "add", path, value }));
  }

  review() {
    const patch = this.patch();
    const comment = h("input", { maxlength: 200, placeholder: "why, for those who read it later", "aria-label": "Comment" });
    const canary = h("input", { type: "checkbox" });
    const seconds = h("input", { type: "number", min: 1, max: 300, value: 10, "aria-label": "Seconds on one worker" });
    seconds.style.width = "5rem";
    const cluster = h("input", { type: "checkbox" });
    const result = h("div", h("p.quiet", "Trying it …"));
    const apply = h("button.primary", { disabled: true, onclick: () => this.apply(box, apply, result, target(), patch) }, "Apply");
    const target = () => {
      const query = new URLSearchParams();
      if (comment.value.trim()) query.set("comment", comment.value.trim());
      if (canary.checked) query.set("canary", "worker"), query.set("seconds", seconds.value);
      if (cluster.checked) query.set("scope", "cluster");
      return `./config${query.size ? `?${query}` : ""}`;
    };
    const line = callLine("");
    const say = () => line.say(curl("PATCH", target(), { body: patch.map(hideSecret(this)), type: PATCH, headers: { "If-Match": `"${this.revision}"` } }));
    const inCluster = h("label.check", { hidden: true }, cluster, "on all nodes of the cluster");
    get("./cluster").then(({ condition }) => (inCluster.hidden = condition === "alone")).catch(() => {});
    const box = dialog("Review", result,
      h("div.stack",
        h("label.field", h("span", "Comment"), comment),
        h("div.bar", h("label.check", canary, "first on one worker, for"), seconds, h("span.quiet", "seconds; taken back if its clients fail"), inCluster)),
      line,
      h("div.foot", h("button", { onclick: () => box.close() }, "Back"), apply));
    for (const field of [comment, canary, seconds, cluster]) field.addEventListener("input", say);
    say();
    this.try(patch).then((report) => {
      result.replaceChildren(...report);
      apply.disabled = false;
      apply.focus();
    }, (error) => result.replaceChildren(...refusal(error)));
  }

  /// What a dry run says.
  async try(patch) {
    const report = await call("PATCH", "./config?dry_run=1", { body: patch, type: PATCH, headers: { "If-Match": `"${this.revision}"` } });
    return describe(report);
  }

  async apply(box, button, result, target, patch) {
    button.disabled = true;
    try {
      const done = await call("PATCH", target, { body: patch, type: PATCH, headers: { "If-Match": `"${this.revision}"` }, signal: AbortSignal.timeout(330_000) });
      box.close();
      const before = this.revision;
      const workers = done.workers ? ` on ${done.workers.total} workers` : "";
      toast(`Revision ${done.revision} runs${workers}.`, { action: { text: `Restore ${before}`, run: () => (location.hash = `#/changes/${before}`) } });
      this.draft.clear();
      dispatchEvent(new Event("settings"));
      await this.load(this.section);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      result.replaceChildren(...refusal(error));
      button.disabled = error.status === 412;
    }
  }

  resolve(schema) {
    if (!schema.$ref) return schema;
    return { ...this.schema.$defs[schema.$ref.split("/").at(-1)], ...schema };
  }
}

/// The report of a dry run, for people.
export function describe(report) {
  const nodes = [diff(report.changes ?? [])];
  const notes = [];
  const { sessions } = report;
  if (sessions?.closed > 0) notes.push(h("li", `${fmt.int(sessions.closed)} sessions are closed.`));
  if (sessions?.affected > 0) notes.push(h("li", `${fmt.int(sessions.affected)} sessions are affected.`));
  for (const { pointer, detail, fix } of report.warnings ?? []) notes.push(h("li", h("code", pointer.slice(1).replaceAll("/", ".")), ` ${detail}`, fix ? h("div.quiet", fix) : null));
  if (report.restart_needed?.length) notes.push(h("li", `In effect after a restart: ${report.restart_needed.map((of) => of.slice(1).replaceAll("/", ".")).join(", ")}.`));
  if (notes.length) nodes.push(h("ul.notes", notes));
  return nodes;
}

export function diff(changes) {
  if (!changes.length) return h("p.empty", "Nothing is different.");
  return h("div.scroll", h("table.diff",
    h("thead", h("tr", ["Key", "Before", "After", "In effect"].map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", changes.map(({ pointer, before, after, applies }) => h("tr",
      h("td", pointer.slice(1).split("/").map((step) => name(unescape(step), 60)).join(".")),
      h("td.before", before === undefined ? "" : brief(before, 200)),
      h("td.after", after === undefined ? "removed" : brief(after, 400)),
      h("td.quiet", applies ?? ""))))));
}

export function refusal(error) {
  return [
    h("p.bad", { role: "alert" }, error.errors.length ? error.problem.title ?? "" : error.message),
    h("ul.notes", error.errors.map(({ pointer, detail, fix }) => h("li.error", h("code", (pointer ?? "").slice(1).replaceAll("/", ".")), ` ${detail}`, fix ? h("div.quiet", fix) : null))),
  ];
}

/// A patch may hold a secret that was just typed; the line for the terminal must not.
function hideSecret(page) {
  return (op) => {
    const secret = (pointer, value) => {
      let schema = page.schema;
      for (const step of pointer.split("/").slice(1)) {
        schema = page.resolve(schema);
        schema = schema.properties?.[unescape(step)] ?? schema.additionalProperties ?? {};
      }
      schema = page.resolve(schema);
      if (schema.format === "password" && value) return "$SECRET";
      if (value && typeof value === "object" && !Array.isArray(value)) return Object.fromEntries(Object.entries(value).map(([key, of]) => [key, secret(`${pointer}/${escape(key)}`, of)]));
      return value;
    };
    return op.value === undefined ? op : { ...op, value: secret(op.path, op.value) };
  };
}

function isMap(schema) {
  return schema.type === "object" && !schema.properties && typeof schema.additionalProperties === "object";
}

function at(value, pointer) {
  for (const step of pointer.split("/").slice(1)) value = value === null || value === undefined || !Object.hasOwn(value, unescape(step)) ? undefined : value[unescape(step)];
  return value;
}

function put(value, pointer, next) {
  const steps = pointer.split("/").slice(1).map(unescape);
  const last = steps.pop();
  for (const step of steps) value = value[step] ??= {};
  if (next === undefined) delete value[last];
  else value[last] = next;
}

const escape = (step) => step.replaceAll("~", "~0").replaceAll("/", "~1");
const unescape = (step) => step.replaceAll("~1", "/").replaceAll("~0", "~");

function brief(value, length = 60) {
  if (value === null || value === undefined) return "not set";
  return name(typeof value === "string" ? JSON.stringify(value) : JSON.stringify(value), length);
}

function firstSentence(text = "") {
  const end = text.search(/[.:;](\s|$)/);
  return (end > 0 ? text.slice(0, end) : text).replaceAll("\n", " ");
}
