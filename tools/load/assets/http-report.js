"use strict";
const runs = JSON.parse(document.getElementById("runs").textContent);
const page = document.getElementById("page");
const main = runs[runs.length - 1];
const color = (index) => `var(--c${index % 6})`;

const grouped = (n) => Math.round(n).toLocaleString("en-US");
const short = (n) => {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(n) >= size) return trim(n / size) + " " + unit;
  }
  return trim(n);
};
const trim = (n) => (Math.abs(n) >= 100 ? n.toFixed(0) : Math.abs(n) >= 10 ? n.toFixed(1) : n.toFixed(2)).replace(/\.0+$|(\.\d*[1-9])0+$/, "$1");
const time = (us) => (us < 1000 ? `${Math.round(us)} µs` : us < 1e6 ? `${trim(us / 1e3)} ms` : `${trim(us / 1e6)} s`);
const size = (bytes) => (bytes < 1e6 ? `${trim(bytes / 1e3)} kB` : bytes < 1e9 ? `${trim(bytes / 1e6)} MB` : `${trim(bytes / 1e9)} GB`);
/* The last span may be a sliver, whose rate says nothing. */
for (const run of runs) {
  const longest = Math.max(...run.timeline.map((moment) => moment.span_s));
  run.whole = run.timeline.filter((moment) => moment.span_s >= longest * 0.5);
}
const bad = (run) => run.wrong + run.failed + run.uncertain + run.unanswered;

/* An element; children are text or elements, never markup. */
function el(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "rect", "text", "circle"].includes(name);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const W = 540, H = 230, LEFT = 58, RIGHT = 12, TOP = 10, BOTTOM = 26;

function niceSteps(most, count) {
  const raw = most / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= raw);
  const ticks = [];
  for (let at = 0; at <= most + step * 0.001; at += step) ticks.push(at);
  return ticks;
}

/* A plot: series of points, axes, a cursor with a label of what lies under it. */
function plot({ title, note, series, width = W, xFormat, yFormat, yLog = false, xTicks, xOf = (x) => x, xMax, area = false }) {
  series = series.filter((one) => one.points.length > 0);
  const card = el("section", { class: "plot" }, el("h2", {}, title), el("p", {}, note));
  if (series.length === 0) { card.append(el("p", {}, "Nothing was measured.")); return card; }
  const all = series.flatMap((one) => one.points);
  const xs = all.map((point) => xOf(point[0]));
  const xLow = Math.min(0, ...xs), xHigh = xMax === undefined ? Math.max(...xs, 1e-9) : xMax;
  const ys = all.map((point) => point[1]);
  let yTicks, yAt;
  const bottom = H - BOTTOM, inner = bottom - TOP;
  if (yLog) {
    const positive = ys.filter((y) => y > 0);
    const low = Math.log10(Math.min(...positive)), high = Math.log10(Math.max(...positive));
    const from = Math.floor(low), to = Math.max(Math.ceil(high), from + 1);
    yTicks = []; for (let power = from; power <= to; power++) yTicks.push(10 ** power);
    yAt = (y) => bottom - ((Math.log10(Math.max(y, 10 ** from)) - from) / (to - from)) * inner;
  } else {
    const most = Math.max(...ys, 1e-9) * 1.08;
    yTicks = niceSteps(most, 4);
    yAt = (y) => bottom - (y / Math.max(most, yTicks[yTicks.length - 1])) * inner;
  }
  const xAt = (x) => LEFT + ((xOf(x) - xLow) / (xHigh - xLow || 1)) * (width - LEFT - RIGHT);
  const svg = el("svg", { viewBox: `0 0 ${width} ${H}`, role: "img", "aria-label": title });
  for (const tick of yTicks) {
    svg.append(el("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: yAt(tick), y2: yAt(tick) }),
      el("text", { class: "axis", x: LEFT - 8, y: yAt(tick) + 4, "text-anchor": "end" }, yFormat(tick)));
  }
  const ticks = xTicks || niceSteps(xHigh, 6).map((tick) => [tick, xFormat(tick)]);
  for (const [tick, label] of ticks) {
    if (xOf(tick) <= xHigh * 1.001) svg.append(el("text", { class: "axis", x: xAt(tick), y: H - 6, "text-anchor": "middle" }, label));
  }
  for (const one of series) {
    const path = one.points.map((point, index) => `${index ? "L" : "M"}${xAt(point[0]).toFixed(1)} ${yAt(point[1]).toFixed(1)}`).join("");
    if (area && one.points.length > 1) {
      const end = one.points[one.points.length - 1][0];
      svg.append(el("path", { d: `${path}L${xAt(end).toFixed(1)} ${bottom}L${xAt(one.points[0][0]).toFixed(1)} ${bottom}Z`, fill: one.color, "fill-opacity": .1 }));
    }
    svg.append(one.points.length > 1
      ? el("path", { class: "curve", d: path, stroke: one.color, "stroke-opacity": one.faint ? .55 : 1 })
      : el("circle", { cx: xAt(one.points[0][0]), cy: yAt(one.points[0][1]), r: 4, fill: one.color }));
  }
  const cursor = el("line", { class: "cursor", y1: TOP, y2: bottom });
  const tip = el("div", { class: "tip" });
  svg.append(cursor);
  card.append(svg, tip);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    const nearest = (one) => one.points.reduce((best, point) => (Math.abs(xAt(point[0]) - at) < Math.abs(xAt(best[0]) - at) ? point : best));
    const x = xAt(nearest(series[0])[0]);
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); cursor.style.visibility = "visible";
    tip.replaceChildren(el("div", {}, xFormat(nearest(series[0])[0])), ...series.map((one) => el("div", {}, `${one.name}: ${yFormat(nearest(one)[1])}`)));
    tip.style.display = "block";
    const left = box.left - card.getBoundingClientRect().left + (x / width) * box.width;
    tip.style.left = `${left > box.width * 0.6 ? left - tip.offsetWidth - 10 : left + 12}px`;
    tip.style.top = "52px";
  });
  const leave = () => { cursor.style.visibility = "hidden"; tip.style.display = "none"; };
  svg.addEventListener("pointerleave", leave);
  /* It stands where it stood, which in a smaller window may be outside. */
  window.addEventListener("resize", leave);
  if (series.length > 1) card.append(legend(series));
  return card;
}

const legend = (series) => el("div", { class: "legend" }, ...series.map((one) => el("span", {}, el("i", { style: `background:${one.color}` }), one.name)));

function bars({ title, note, groups, series, xFormat, yFormat }) {
  const card = el("section", { class: "plot" }, el("h2", {}, title), el("p", {}, note));
  if (groups.length === 0) { card.append(el("p", {}, "Nothing was measured.")); return card; }
  const svg = el("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title });
  const bottom = H - BOTTOM, sum = (group) => group.values.reduce((a, b) => a + b, 0);
  const most = Math.max(...groups.map(sum), 1e-9) * 1.08, ticks = niceSteps(most, 4), top = Math.max(most, ticks[ticks.length - 1]);
  const yAt = (y) => bottom - (y / top) * (bottom - TOP);
  for (const tick of ticks) {
    svg.append(el("line", { class: "rule", x1: LEFT, x2: W - RIGHT, y1: yAt(tick), y2: yAt(tick) }),
      el("text", { class: "axis", x: LEFT - 8, y: yAt(tick) + 4, "text-anchor": "end" }, yFormat(tick)));
  }
  const step = (W - LEFT - RIGHT) / groups.length, gap = step > 6 ? 2 : step > 3 ? 1 : 0;
  const every = Math.max(1, Math.ceil(groups.length / 7));
  groups.forEach((group, index) => {
    let base = 0;
    group.values.forEach((value, which) => {
      if (value > 0) {
        const bar = el("rect", { class: "bar", x: (LEFT + index * step + gap / 2).toFixed(2), width: Math.max(step - gap, .8).toFixed(2), y: yAt(base + value), height: Math.max(yAt(base) - yAt(base + value), .8), rx: gap ? 1.5 : 0, fill: series[which].color });
        bar.append(el("title", {}, `${xFormat(group.at)}: ${yFormat(value)} ${series[which].name}`));
        svg.append(bar);
      }
      base += value;
    });
    if (index % every === 0) svg.append(el("text", { class: "axis", x: LEFT + (index + .5) * step, y: H - 6, "text-anchor": "middle" }, xFormat(group.at)));
  });
  card.append(svg);
  if (series.length > 1) card.append(legend(series));
  return card;
}

function table(head, rows) {
  return el("div", { class: "scroll" }, el("table", {}, el("tr", {}, ...head.map((text) => el("th", {}, text))), ...rows));
}

const card = (value, unit, label, kind = "") => el("div", { class: `card ${kind}` }, el("b", {}, value, unit ? el("small", {}, ` ${unit}`) : null), el("span", {}, label));

function build() {
  document.title = `${grouped(main.requests_per_second)} requests/s · ${main.url}`;
  const host = main.host;
  const how = main.rate_asked ? `${grouped(main.rate_asked)} requests a second by a schedule` : `${main.pipeline}${main.depth_most ? ` (${main.depth_most} at most)` : ""} in flight on each`;
  page.append(el("h1", {}, main.url), el("p", { class: "under" }, `${main.protocol} · ${grouped(main.connections)} connection${main.connections > 1 ? "s" : ""} · ${how} · ${main.threads} thread${main.threads > 1 ? "s" : ""} · ${trim(main.seconds)} s · ${host.day}`));

  const wrong = bad(main);
  page.append(el("div", { class: "cards" },
    card(grouped(main.requests_per_second), "/s", "answers"),
    card(time(main.latency_us.p50), "", "latency, median"),
    card(time(main.latency_us.p99), "", "latency, 99 %"),
    card(time(main.latency_us.max), "", "latency, longest"),
    card(grouped(main.answered), "", main.resent ? `answered, ${grouped(main.resent)} sent again` : "answered"),
    card(wrong ? grouped(wrong) : "none", "", wrong ? "wrong, failed or unanswered" : "errors", wrong ? "bad" : "good")));

  const grid = el("div", { class: "grid" });
  page.append(grid);
  const several = runs.length > 1;
  const named = runs.map((run, index) => ({ run, name: run.name, color: color(several ? index : 0), faint: several && run !== main }));
  const add = (node, wide) => { if (wide) node.classList.add("wide"); grid.append(node); };
  const seconds = (s) => `${trim(s)} s`;

  if (several) {
    const best = Math.max(...runs.map((run) => run.requests_per_second));
    const first = runs[0].requests_per_second;
    const rows = named.map(({ run, name, color }) => el("tr", {},
      el("td", {}, el("i", { style: `background:${color}` }), name),
      ...[`${run.connections} × ${run.pipeline}`, grouped(run.requests_per_second), `${trim(run.requests_per_second / first)} ×`, time(run.latency_us.p50), time(run.latency_us.p90), time(run.latency_us.p99), time(run.latency_us.max), bad(run) ? grouped(bad(run)) : "none"].map((text) => el("td", run.requests_per_second === best && text === grouped(best) ? { style: "font-weight:650" } : {}, text))));
    add(el("section", { class: "plot" }, el("h2", {}, "Runs"), el("p", {}, "Beside each other; the ratio is to the first."), table(["", "connections × depth", "answers/s", "ratio", "p50", "p90", "p99", "longest", "errors"], rows)), true);
  }
  add(plot({ title: "Rate", note: "Answers a second, by time.", width: 1084, area: !several, yFormat: short, xFormat: seconds,
    series: named.map((one) => ({ ...one, points: one.run.whole.map((moment) => [moment.at_s, moment.answered / moment.span_s]) })) }), true);
  const filled = main.whole.filter((moment) => moment.answered > 0);
  add(plot({ title: "Latency by time", note: several ? `Of the run “${main.name}”; logarithmic.` : "Percentiles of each span; logarithmic.", yLog: true, yFormat: time, xFormat: seconds,
    series: [["p50", "p50_us", 2], ["p90", "p90_us", 0], ["p99", "p99_us", 1], ["longest", "max_us", 3]].map(([name, key, index]) => ({ name, color: color(index), points: filled.map((moment) => [moment.at_s, moment[key]]) })) }));
  const distance = (quantile) => Math.min(Math.log10(1 / Math.max(1 - quantile, 1e-9)), 8);
  const quantileTicks = [[0, "0"], [.5, "50 %"], [.9, "90 %"], [.99, "99 %"], [.999, "99.9 %"], [.9999, "99.99 %"], [.99999, "99.999 %"]];
  const upTo = runs.map((run) => run.quantiles.filter((point) => point[0] < 1));
  add(plot({ title: "Latency by percentile", note: "How long the slowest take; each step to the right is ten times rarer. Logarithmic.", yLog: true, yFormat: time,
    xOf: distance, xTicks: quantileTicks, xFormat: (quantile) => `${(quantile * 100).toFixed(5).replace(/\.?0+$/, "")} %`,
    series: named.map((one, index) => ({ ...one, points: upTo[index] })) }));
  add(bars({ title: "Distribution", note: several ? `Answers by latency, of the run “${main.name}”.` : "Answers by latency; four steps to each doubling.", xFormat: time, yFormat: short,
    series: [{ name: "answers", color: color(several ? runs.length - 1 : 0) }], groups: main.histogram.map(([at, count]) => ({ at, values: [count] })) }));
  const kinds = [{ name: "connections opened", color: color(2) }, { name: "connections closed", color: color(1) }, { name: "requests sent again", color: color(4) }, { name: "errors", color: "var(--bad)" }];
  const happened = main.timeline.some((moment) => moment.opened + moment.closed + moment.resent + moment.errors > 0);
  const event = main.connection_events;
  add(bars({ title: "Connections and errors", note: happened ? "What happened besides answers, by time." : `All ${grouped(event.opened || main.connections)} connections were open before the first request, and none closed.`, xFormat: seconds, yFormat: short, series: kinds,
    groups: main.timeline.map((moment) => ({ at: moment.at_s, values: [moment.opened, moment.closed, moment.resent, moment.errors] })) }));

  const times = [["latency", main.latency_us, "from when a request " + (main.rate_asked ? "should have left" : "left") + " to the end of its answer"], ["first byte", main.first_byte_us, "to the first byte of its answer"], ["as oldest", main.service_us, "while it was the oldest of its connection: without the wait behind others"]];
  if (main.late_us) times.push(["left late", main.late_us, "how far the generator was behind its schedule"]);
  add(el("section", { class: "plot" }, el("h2", {}, "Times"), el("p", {}, several ? `Of the run “${main.name}”.` : "Where the time went."),
    table(["", "", "p50", "p90", "p99", "p99.9", "longest", "mean"], times.map(([name, of, what]) => el("tr", {}, el("td", {}, name), el("td", { class: "text", style: "color:var(--quiet)" }, what), ...[of.p50, of.p90, of.p99, of.p999, of.max, of.mean].map((us) => el("td", {}, time(us))))))), true);

  const events = [["opened", event.opened], ["connects failed", event.connect_failed], ["closed with notice", event.closed_with_notice], ["closed at their known budget", event.closed_at_budget], ["closed with requests in flight", event.closed_in_flight], ["closed idle", event.closed_idle], ["reset", event.reset], ["timed out", event.timed_out], ["bad answers", event.violated]].filter(([, count]) => count > 0);
  add(el("section", { class: "plot" }, el("h2", {}, "Connections"), el("p", {}, "How they began and ended."), table(["", ""], events.map(([name, count]) => el("tr", {}, el("td", {}, name), el("td", {}, grouped(count)))))));
  const statuses = Object.entries(main.statuses).map(([status, count]) => el("tr", {}, el("td", {}, `status ${status}`), el("td", {}, grouped(count))));
  const errors = Object.entries(main.errors).sort((a, b) => b[1] - a[1]).map(([kind, count]) => el("tr", {}, el("td", { style: "color:var(--bad)" }, kind), el("td", {}, grouped(count))));
  const samples = main.error_samples.map((text) => el("p", {}, text));
  add(el("section", { class: "plot" }, el("h2", {}, "Answers and errors"), el("p", {}, "By status, then by kind of error."), table(["", ""], [...statuses, ...errors]), ...samples));

  const server = main.server ? ` The server had ${Math.round(main.server.idle_share * 100)} % of one core idle.` : "";
  page.append(el("p", { class: "foot" }, `Read ${size(main.read_bytes)}, wrote ${size(main.written_bytes)}. The generator used ${trim(main.generator_cpu_seconds)} s of CPU, ${grouped(main.requests_per_cpu_second)} answers for each, and ${size(main.memory.most_bytes)} of memory at most.${server} ${host.cpu}, ${host.cores} cores, ${host.kernel}.`),
    el("p", { class: "foot" }, el("code", {}, host.command)));
}
build();
