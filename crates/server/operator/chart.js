// A line over time: one or two traces, the same gutter for every axis so that charts stand under each other.

import { fmt, h, s, show } from "./dom.js";

const GUTTER = 46;
const BOTTOM = 16;
const TOP = 6;
/// Fewest samples that a chart has room for.
const SPAN_MIN = 60;

/// A chart that shows the same span of time whatever it has. `lines`: [{ series, title }], the first is the accent;
/// `format` writes a value, `headline` the figure above.
export class Chart {
  constructor({ title, lines, format = fmt.short, floor = 1, note = "" }) {
    Object.assign(this, { lines, format, floor, title });
    this.value = h(lines.length > 1 ? "span.value.two" : "span.value", "–");
    this.svg = s("svg", { tabindex: 0, role: "img", "aria-label": title });
    const legend = lines.length > 1 && h("span.legend", lines.map((line, at) => h("span", h(at ? "i.second" : "i"), line.title)));
    this.node = h("section.card.chart", h("div.label", h("div", h("h3", { title: note || null }, title), legend || null), this.value), this.svg);
    this.data = null;
    this.at = null;
    this.svg.addEventListener("pointermove", (event) => this.point(event.clientX));
    this.svg.addEventListener("pointerleave", () => this.pick(null));
    this.svg.addEventListener("blur", () => this.pick(null));
    this.svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 }[event.key];
      if (!step || !this.data) return;
      event.preventDefault();
      const last = this.data.length - 1;
      this.pick(Math.max(0, Math.min(last, (this.at ?? last) + step)));
    });
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  /// `rings`: the values of each series, newest last; `kept`: how many the chart has room for.
  show({ series, kept, step_s, newest_unix_ms }) {
    const values = this.lines.map((line) => series[line.series] ?? []);
    // A server that has just started fills its chart from five minutes on.
    const { length } = values[0];
    this.data = { values, kept: Math.min(kept, Math.max(length, SPAN_MIN)), step_s, newest_unix_ms, length };
    this.draw();
  }

  point(clientX) {
    if (!this.data?.length) return;
    const box = this.svg.getBoundingClientRect();
    const share = (clientX - box.left - GUTTER) / (box.width - GUTTER);
    const { kept, length } = this.data;
    const at = Math.round(share * (kept - 1)) - (kept - length);
    this.pick(at >= 0 && at < length ? at : null);
  }

  pick(at) {
    if (this.at === at) return;
    this.at = at;
    this.draw();
  }

  draw() {
    if (!this.data || !this.svg.clientWidth) return;
    const { values, kept, step_s, newest_unix_ms, length } = this.data;
    const [width, height] = [this.svg.clientWidth, this.svg.clientHeight];
    const [w, bottom] = [width - GUTTER, height - BOTTOM];
    const most = values.reduce((most, line) => line.reduce((a, b) => Math.max(a, b), most), 0);
    const top = round(Math.max(most, this.floor), this.format === fmt.bytes ? 1024 : 1000);
    const x = (at) => GUTTER + (w * (at + kept - length)) / (kept - 1);
    const y = (value) => bottom - ((bottom - TOP) * value) / top;
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const line = Math.round(y(top * share)) + 0.5;
      parts.push(s("line.gridline", { x1: GUTTER, x2: width, y1: line, y2: line }), s("text", { x: GUTTER - 6, y: line + 3.5, "text-anchor": "end" }, this.format(top * share)));
    }
    const began = newest_unix_ms - (kept - 1) * step_s * 1000;
    for (const share of [0, 0.5, 1]) {
      const text = newest_unix_ms ? fmt.hour(began + share * (kept - 1) * step_s * 1000) : "";
      parts.push(s("text", { x: GUTTER + w * share, y: height - 3, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" }, text));
    }
    values.forEach((line, index) => {
      if (!line.length) return;
      const points = line.map((value, at) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join("L");
      if (index === 0) parts.push(s("path.area", { d: `M${x(0).toFixed(1)},${bottom}L${points}L${x(length - 1).toFixed(1)},${bottom}Z` }));
      parts.push(s(index ? "path.trace.second" : "path.trace", { d: line.length === 1 ? `M${points}h0.1` : `M${points}` }));
    });
    const at = this.at ?? length - 1;
    if (this.at !== null) parts.push(s("line.cross", { x1: x(at), x2: x(at), y1: TOP, y2: bottom }));
    this.svg.replaceChildren(...parts);
    if (!length) return show(this.value, "–");
    const now = values.map((line) => this.format(line[at])).join(" / ");
    const when = this.at === null ? "" : ` ${fmt.clock(newest_unix_ms - (length - 1 - at) * step_s * 1000)}`;
    this.value.replaceChildren(...(when ? [h("small", `${when.trim()}  `)] : []), now);
    this.svg.setAttribute("aria-label", `${this.title}: ${now}${when ? ` at${when}` : " now"}; at most ${this.format(most)} in this span. Arrow keys read earlier values.`);
  }
}

/// The next number that is round in its unit.
function round(value, thousand) {
  const unit = thousand ** Math.floor(Math.log(value) / Math.log(thousand));
  const size = 10 ** Math.floor(Math.log10(value / unit));
  return [1, 2, 4, 5, 8, 10].map((n) => n * size * unit).find((n) => n >= value * 0.999);
}
