"use strict";
// Draws a snapshot, and asks for the next one. Text from outside is only ever set as textContent.
(() => {
  const embedded = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [14, 5], [5, 3, 2, 3, 2, 3]];
  const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"];
  const MOST_LINES = 6;
  const WHOLE = [1, 2, 5].flatMap((digit) => [0, 1, 2, 3, 4, 5, 6].map((power) => digit * 10 ** power)).sort((one, other) => one - other);
  const charts = new Map();
  const sorting = new Map();
  let chosen = null;
  let shown = null;

  function make(tag, given = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) {
      if (name === "class") element.className = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value);
    }
    element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
    return element;
  }

  function drawn(tag, given = {}, text = null) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
    if (text !== null) element.textContent = text;
    return element;
  }

  // Numbers as people read them.
  function number(value, digits = 4) {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7)) return value.toExponential(2);
    if (Number.isInteger(value)) return value.toLocaleString("en");
    return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.trunc(Math.abs(value)).toString().length) });
  }
  function seconds(value) {
    if (value === null || value === undefined) return "–";
    if (value < 1) return value === 0 ? "0 s" : value >= 1e-3 ? `${number(value * 1000, 3)} ms` : `${number(value * 1e6, 3)} µs`;
    if (value < 60) return `${number(value, 3)} s`;
    const whole = Math.round(value), parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
    return parts[0] ? `${parts[0]} h ${parts[1]} min` : `${parts[1]} min ${parts[2]} s`;
  }
  function bytes(value) {
    if (value === null || value === undefined) return "–";
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (value < 1000) return `${number(value, 3)} ${unit}`;
      value /= 1000;
    }
    return `${number(value, 3)} TB`;
  }
  const percent = (value) => `${number(100 * value, 3)} %`;
  const colour = (index) =>
    getComputedStyle(document.documentElement).getPropertyValue(COLOURS[index % COLOURS.length]).trim();
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // A chart: lines over a common x, a legend of buttons, and values at the place that mouse or arrow keys choose.
  function chart(id, title, xlabel, lines, format = number, hint = "", scale = "") {
    const log = scale === "log";
    if (log) lines = lines.map((line) => ({ ...line, y: line.y.map((value) => (value > 0 ? value : null)) }));
    lines = lines.filter((line) => line.y.some((value) => value !== null && value !== undefined));
    const kept = charts.get(id);
    if (!lines.length) {
      if (kept) { kept.card.remove(); kept.plot.destroy(); charts.delete(id); }
      return;
    }
    const tables = lines.map((line) => [line.x, line.y]);
    const data = uPlot.join(tables);
    const names = JSON.stringify(lines.map((line) => [line.name, line.style, line.kind]));
    if (kept && kept.names === names) {
      kept.lines = lines;
      kept.plot.setData(data);
      values(kept, kept.plot.cursor.idx);
      return;
    }
    if (kept) { kept.plot.destroy(); }
    const heading = `${id}-heading`;
    const card = make("figure", { class: "card", id, "aria-labelledby": heading });
    const place = make("div", { class: "plot", tabindex: "0", role: "group", "aria-labelledby": heading,
      "aria-description": "Arrow keys move through the points, Escape leaves them." });
    const legend = make("ul", { class: "legend" });
    card.append(make("h2", { id: heading }, title), place, legend);
    if (hint) card.append(make("p", {}, hint));
    const one = { card, names, lines, format, outputs: [], plot: null };
    for (const [index, line] of lines.entries()) {
      const button = make("button", { type: "button", "aria-pressed": "true" }, sample(line), line.name, " ");
      const output = make("output", {});
      button.append(output);
      button.addEventListener("click", () => {
        const show = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(show));
        one.plot.setSeries(index + 1, { show });
      });
      one.outputs.push(output);
      legend.append(make("li", {}, button));
    }
    const where = make("li", { "aria-live": "polite" });
    one.where = where;
    legend.append(where);
    if (kept) kept.card.replaceWith(card); else $("charts").append(card);
    one.plot = new uPlot(options(one, lines, xlabel, format, place, scale), data, place);
    one.plot.over.setAttribute("aria-hidden", "true");
    charts.set(id, one);
    place.addEventListener("keydown", (event) => walk(one, event));
    new ResizeObserver(() => one.plot.setSize(size(place))).observe(place);
    values(one, null);
  }
  const size = (place) => ({ width: Math.max(200, place.clientWidth), height: 224 });

  function options(one, lines, xlabel, format, place, scale) {
    const axis = () => ink("--faint");
    const grid = { stroke: () => ink("--grid"), width: 1 };
    const whole = lines.every((line) => line.x.every(Number.isInteger));
    const series = lines.map((line) => ({
      label: line.name,
      stroke: () => colour(line.style),
      width: line.kind === "thin" ? 1 : 2,
      dash: line.kind === "points" || line.kind === "hollow" ? undefined : DASHES[line.style % DASHES.length],
      paths: line.kind === "points" || line.kind === "hollow" ? () => null
        : line.kind === "step" ? uPlot.paths.stepped({ align: 1 }) : undefined,
      spanGaps: true,
      points: {
        show: line.kind !== "thin" && line.kind !== "step",
        size: line.kind === "points" ? 8 : line.kind === "hollow" ? 7 : 5,
        fill: () => (line.kind === "hollow" || line.style % 2 ? ink("--panel") : colour(line.style)),
      },
    }));
    return {
      ...size(place),
      padding: [8, 10, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 9 } },
      scales: { x: { time: false }, y: scale === "log" ? { distr: 3 } : scale === "zero" ? { range: (_, low, high) => [0, high * 1.1 || 1] } : {} },
      axes: [
        { stroke: axis, grid, ticks: grid, label: xlabel, labelSize: 20, labelFont: "12px system-ui, sans-serif", size: 32,
          font: "11px system-ui, sans-serif", ...(whole ? { incrs: WHOLE } : {}) },
        { stroke: axis, grid, ticks: grid, size: 64, font: "11px system-ui, sans-serif",
          values: (_, splits) => splits.map((value) => (value === null ? null : format(value, 3))) },
      ],
      series: [{ label: xlabel }, ...series],
      hooks: { setCursor: [(plot) => values(one, plot.cursor.idx)] },
    };
  }

  // The values in the legend: those at a point, or else the last ones.
  function values(one, index) {
    if (!one.plot) return;
    const data = one.plot.data;
    one.card.dataset.points = data[0].length;
    one.where.textContent = index === null || index === undefined ? "" : `at ${number(data[0][index])}`;
    for (const [line, output] of one.outputs.entries()) {
      let found = null;
      for (let at = index ?? data[0].length - 1; at >= 0 && found === null; at -= 1) found = data[line + 1][at] ?? null;
      output.textContent = one.format(found);
    }
  }

  function walk(one, event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") one.plot.setCursor({ left: -10, top: -10 });
    if (step === undefined) return;
    event.preventDefault();
    const x = one.plot.data[0], last = x.length - 1;
    const from = one.plot.cursor.idx ?? (step > 0 ? -1 : last + 1);
    const index = Math.min(last, Math.max(0, from + step));
    one.plot.setCursor({ left: one.plot.valToPos(x[index], "x"), top: 8 });
  }

  function sample(line) {
    const picture = drawn("svg", { width: 34, height: 12, "aria-hidden": "true" });
    const stroke = `var(${COLOURS[line.style % COLOURS.length]})`;
    const marks = line.kind === "points" || line.kind === "hollow";
    if (!marks) {
      picture.append(drawn("line", { x1: 0, x2: 34, y1: 6, y2: 6, stroke, "stroke-width": line.kind === "thin" ? 1 : 2.5,
        "stroke-dasharray": DASHES[line.style % DASHES.length].join(" ") }));
    }
    if (line.kind !== "thin" && line.kind !== "step") {
      const hollow = line.kind === "hollow" || line.style % 2;
      picture.append(drawn("circle", { cx: 17, cy: 6, r: marks ? 4 : 3, stroke, "stroke-width": 1.5,
        fill: hollow ? "var(--panel)" : stroke }));
    }
    return picture;
  }

  // A table whose columns can be sorted. columns: [title, value of a row, text of a value, is text].
  function table(id, title, columns, rows, marks = () => "", hint = "", act = null) {
    let card = $(id);
    const focused = document.activeElement?.closest?.(`#${id}`) ? document.activeElement.dataset.key : null;
    const top = card ? card.querySelector(".scroll").scrollTop : 0, left = card ? card.querySelector(".scroll").scrollLeft : 0;
    if (!rows.length) { card?.remove(); return; }
    const order = sorting.get(id);
    if (order) {
      const value = columns[order.column]?.[1] ?? (() => 0);
      const rank = (row) => { const found = value(row); return found === null || found === undefined ? null : found; };
      rows = [...rows].sort((one, other) => {
        const a = rank(one), b = rank(other);
        if (a === null || b === null) return (a === null) - (b === null);
        const by = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
        return order.down ? -by : by;
      });
    }
    const head = columns.map(([name, , , text], column) => {
      const sorted = order && order.column === column;
      const button = make("button", { type: "button", "data-key": `head-${column}` }, name, sorted ? (order.down ? " ▼" : " ▲") : "");
      button.addEventListener("click", () => {
        sorting.set(id, { column, down: sorted ? !order.down : false });
        draw(shown);
      });
      return make("th", { scope: "col", class: text ? "text" : "", "aria-sort": sorted ? (order.down ? "descending" : "ascending") : "none" }, button);
    });
    const body = rows.map((row) => {
      const cells = columns.map(([, value, format, text], column) => {
        const content = format ? format(value(row)) : number(value(row));
        const cell = make("td", { class: text ? "text" : "" });
        if (act && column === 0) cell.append(make("button", { type: "button", "data-key": `row-${value(row)}`, onclick: () => act(row) }, content));
        else cell.textContent = content;
        if (text) cell.title = content;
        return cell;
      });
      return make("tr", { class: marks(row) }, ...cells);
    });
    const heading = `${id}-heading`;
    const fresh = make("div", { class: "card", id },
      make("h2", { id: heading }, title),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": heading, "data-key": "scroll" },
        make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body))));
    if (hint) fresh.append(make("p", {}, hint));
    if (card) card.replaceWith(fresh); else $("tables").append(fresh);
    Object.assign(fresh.querySelector(".scroll"), { scrollTop: top, scrollLeft: left });
    if (focused) [...fresh.querySelectorAll("[data-key]")].find((element) => element.dataset.key === focused)?.focus();
  }

  function summary(given, facts, done) {
    const list = make("dl", {});
    for (const [name, value] of facts) list.append(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
    const about = Object.entries(given.about).map(([name, value]) => `${name} ${value}`).join(" · ");
    const bar = make("progress", { max: "1", value: String(done), "aria-label": "Part that is done" });
    $("summary").replaceChildren(bar, list, make("p", {}, about));
    if (given.error) $("summary").append(make("p", { class: "error" }, given.error));
  }

  // Pictures of a fit.
  function fit(given) {
    const share = given.rows && given.epochs ? given.curve.x.length ? Math.min(1, Math.max(...given.curve.x.slice(-1)) / given.epochs) : 0 : 0;
    const facts = [["Epoch", `${given.epoch} of ${given.epochs}`], ["Time left", given.left === null ? "–" : `about ${seconds(given.left < 60 ? Math.ceil(given.left) : given.left)}`],
      ["Elapsed", seconds(given.elapsed)], ["Samples/s", number(given.rate, 3)], ["Rounds", number(given.rounds)],
      ...Object.entries(given.last)];
    summary(given, facts, given.status === "finished" ? 1 : share);
    const { metrics, curve } = given;
    const groups = new Map();
    for (const name of Object.keys(metrics.values)) {
      const base = name.startsWith("val_") ? name.slice(4) : name;
      groups.set(base, [...(groups.get(base) ?? []), name]);
    }
    if (!groups.has("loss") && curve.values.loss) groups.set("loss", []);
    const hint = curve.each > 1 ? `Each point of rounds is the mean of ${curve.each}.` : "";
    const ordered = [...groups].sort(([one], [other]) => (other === "loss") - (one === "loss"));
    for (const [index, [base, names]] of ordered.entries()) {
      const lines = names.sort().map((name) => {
        const held = name.startsWith("val_");
        return { name, x: metrics.x, y: metrics.values[name], style: held ? 1 : 0, kind: "line" };
      });
      if (base === "loss" && curve.values.loss) {
        lines.push({ name: "loss of rounds", x: curve.x, y: curve.values.loss, style: 2, kind: "thin" });
      }
      chart(`metric-${index}`, base, "epoch", lines, number, base === "loss" ? hint : "");
    }
    const parts = ["train", "wait", "transfer", "aggregate"];
    const line = (name, style, title = name) => ({ name: title, x: curve.x, y: curve.values[name] ?? [], style, kind: "line" });
    chart("seconds", "Seconds per round", "epoch", parts.map((name, index) => line(name, index)), seconds,
      curve.values.transfer ? "train: a worker's training, on average. wait: until the slowest was done. transfer: states and updates on their way. aggregate: the driver's work."
        : "train: a worker's training. The rest is not measured here.", "log");
    chart("bytes", "Bytes per round", "epoch", [line("up", 0, "updates to the driver"), line("down", 1, "states to workers")], bytes, "", "zero");
    chart("drift", "Do the updates agree?", "epoch", [line("drift", 0), line("cosine", 1)], number,
      "drift: how far the updates of workers go apart. Above 0.2 rounds become shorter under frequency=\"auto\".");
    if ((curve.values.staleness ?? []).some((value) => value > 0)) {
      chart("staleness", "Staleness", "epoch", [line("staleness", 0, "updates of others in between")], number, "", "zero");
    }
    table("workers", "Workers", [
      ["worker", (row) => row.worker], ["host", (row) => row.host, String, true], ["rows", (row) => row.rows],
      ["samples/s", (row) => row.rate, (value) => number(value, 3)], ["rounds", (row) => row.rounds],
      ["samples", (row) => row.samples], ["training", (row) => row.seconds, seconds],
      ["staleness", (row) => row.staleness, (value) => number(value, 3)], ["most", (row) => row.most_stale],
      ["dropped", (row) => row.dropped],
      ["last seen", (row) => row.seen, (value) => (value === null ? "–" : `${seconds(Math.round(value * 10) / 10)} ago`)],
      ["retries", (row) => row.retries],
    ], given.workers, () => "", "samples/s: while the worker trains. staleness: updates of others that came in between, on average, and the most.");
    const totals = parts.filter((name) => given.totals[name] !== undefined && given.totals[name] !== null);
    const all = totals.reduce((sum, name) => sum + given.totals[name], 0);
    table("totals", "Where the time of rounds went", [
      ["part", (row) => row[0], String, true], ["seconds", (row) => row[1], seconds], ["share", (row) => row[2], percent],
    ], totals.length > 1 ? totals.map((name) => [name, given.totals[name], all ? given.totals[name] / all : 0]) : []);
    const moved = ["up", "down"].filter((name) => given.totals[name] !== undefined);
    table("moved", "Bytes moved", [
      ["direction", (row) => row[0], String, true], ["all rounds", (row) => row[1], bytes],
    ], moved.map((name) => [name === "up" ? "updates to the driver" : "states to workers", given.totals[name]]));
    const names = Object.keys(metrics.values);
    const epochs = metrics.x.map((x, at) => [x, ...names.map((name) => metrics.values[name][at])]).slice(-200).reverse();
    table("epochs", "Epochs", [["epoch", (row) => row[0]], ...names.map((name, at) => [name, (row) => row[at + 1]])], epochs);
  }

  // Pictures of a search or an ensemble.
  function runs(given) {
    const what = given.kind === "search" ? "trial" : "member";
    const counts = Object.entries(given.counts).map(([status, count]) => `${count} ${status}`).join(", ");
    const running = given.runs.filter((run) => run.status === "running").length;
    const facts = [[`${what[0].toUpperCase()}${what.slice(1)}s`, `${given.done} of ${given.total}`],
      ["Time left", given.left === null ? "–" : `about ${seconds(given.left < 60 ? Math.ceil(given.left) : given.left)}`], ["Elapsed", seconds(given.elapsed)],
      ["Ended", counts || "–"], ["Running", number(running)]];
    if (given.best && given.kind === "search") {
      facts.push([`Best ${given.objective}`, given.best[1]], ["In trial", String(given.best[0])]);
    }
    summary(given, facts, given.status === "finished" ? 1 : given.total ? given.done / given.total : 0);
    const best = given.best && given.kind === "search" ? given.best[0] : null;
    if (given.kind === "search") {
      const dots = (name, status, style, kind) => {
        const own = given.runs.filter((run) => run.value !== null && status(run));
        return { name, x: own.map((run) => run.number), y: own.map((run) => run.value), style, kind };
      };
      chart("objective", `${given.objective} of trials`, "trial", [
        dots("finished", (run) => run.status !== "pruned", 0, "points"), dots("pruned", (run) => run.status === "pruned", 1, "hollow"),
      ]);
      chart("best", `Best ${given.objective} so far`, "trials that have ended",
        [{ name: "best so far", x: given.best_values.x, y: given.best_values.values.best ?? [], style: 0, kind: "step" }]);
    }
    const curves = given.runs.filter((run) => run.x.length && run.number !== best).slice(best === null ? -MOST_LINES : 1 - MOST_LINES);
    const marked = given.runs.find((run) => run.number === best && run.x.length);
    const lines = [...(marked ? [marked] : []), ...curves].map((run, index) => ({
      name: `${what} ${run.number}${run.number === best ? " ★" : ""}`, x: run.x, y: run.y, style: index, kind: "line" }));
    chart("curves", `${given.objective} by epoch`, "epoch", lines, number,
      lines.length < given.runs.filter((run) => run.x.length).length ? marked ? `The best one and the newest ${lines.length - 1}.` : `The newest ${lines.length}.` : "");
    const names = [...new Set(given.runs.flatMap((run) => Object.keys(run.params)))];
    if (given.kind === "search" && names.length) parallel(given, names, best);
    const columns = [[what, (run) => run.number], ["status", (run) => run.status, String, true]];
    if (given.kind === "search") columns.push([given.objective, (run) => run.value], ["best epoch", (run) => run.best_epoch]);
    columns.push(["epochs", (run) => run.epochs], ["seconds", (run) => run.seconds, seconds],
      ...names.map((name) => [name, (run) => run.params[name], (value) => number(value), typeof (given.runs.find((run) => run.params[name] !== undefined)?.params[name]) === "string"]),
      ...(given.kind === "search" ? [["host", (run) => run.host, String, true]] : []), ["error", (run) => run.error, String, true]);
    table("runs", `${what[0].toUpperCase()}${what.slice(1)}s`, columns, [...given.runs].reverse(),
      (run) => `${run.number === best ? "best" : ""} ${run.number === chosen ? "chosen" : ""}`.trim(),
      given.left_out ? `${given.left_out} more are counted, and not shown.` : "",
      given.kind === "search" ? (run) => { chosen = chosen === run.number ? null : run.number; draw(shown); } : null);
  }

  // One line for each trial through all parameters to the objective. The best one is thick, pruned ones are dotted.
  function parallel(given, names, best) {
    const all = given.runs.filter((run) => run.value !== null);
    const old = $("parallel");
    if (!all.length) { old?.remove(); return; }
    const axes = [...names.map((name) => [name, (run) => run.params[name] ?? null]), [given.objective, (run) => run.value]];
    const room = (document.querySelector("#charts .card")?.clientWidth ?? 360) - 24;
    const width = Math.max(room, axes.length * 84), height = 230, top = 34, bottom = 200;
    const step = axes.length > 1 ? (width - 110) / (axes.length - 1) : 0;
    const picture = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `Parallel coordinates of ${all.length} trials; the table below has the numbers.` });
    const heights = axes.map(([, value]) => scale(all.map(value))), groups = [];
    for (const [index, [name]] of axes.entries()) {
      const x = 30 + index * step, group = drawn("g", { class: "axis" });
      group.append(drawn("line", { x1: x, x2: x, y1: top, y2: bottom }), drawn("text", { x, y: 16, "text-anchor": index ? "middle" : "start" }, short(name, 14)));
      for (const [share, text] of heights[index].marks) {
        group.append(drawn("text", { x: x + 4, y: bottom - share * (bottom - top) + 3 }, short(text, 11)));
      }
      groups.push(group);
    }
    const rank = (run) => (run.number === chosen ? 2 : run.number === best ? 1 : 0);
    for (const run of [...all].sort((one, other) => rank(one) - rank(other))) {
      const places = axes.map(([, value], index) => [30 + index * step, heights[index].of(value(run))]).filter(([, share]) => share !== null);
      const way = drawn("polyline", {
        points: places.map(([x, share]) => `${x.toFixed(1)},${(bottom - share * (bottom - top)).toFixed(1)}`).join(" "),
        class: `way ${/^[a-z]+$/.test(run.status) ? run.status : ""} ${run.number === best ? "best" : ""} ${run.number === chosen ? "chosen" : ""}` });
      way.append(drawn("title", {}, `trial ${run.number}: ${number(run.value)}`));
      picture.append(way);
    }
    picture.append(...groups);
    const card = make("figure", { class: "card", id: "parallel" }, make("h2", {}, "Parallel coordinates"),
      make("div", { class: "plot scroll", tabindex: "0", role: "region", "aria-label": "Parallel coordinates" }, picture),
      make("p", {}, "Thick: the best trial. Dotted: pruned. Choose a trial in the table to see its line."));
    picture.style.minWidth = `${width}px`;
    if (old) old.replaceWith(card); else $("charts").append(card);
  }
  const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  // Where values lie on an axis from 0 to 1: numbers by size (or logarithm), everything else in the order of its text.
  function scale(found) {
    const known = found.filter((value) => value !== null);
    if (known.every((value) => typeof value === "number")) {
      const low = Math.min(...known), high = Math.max(...known), log = low > 0 && high > 30 * low;
      const place = (value) => (log ? Math.log(value) : value);
      const span = place(high) - place(low);
      const of = (value) => (value === null ? null : span ? (place(value) - place(low)) / span : 0.5);
      return { of, marks: low === high ? [[0.5, number(low, 3)]] : [[0, number(low, 3)], [1, number(high, 3)]] };
    }
    const options = [...new Set(known.map(String))].sort();
    const of = (value) => (value === null ? null : options.length > 1 ? options.indexOf(String(value)) / (options.length - 1) : 0.5);
    return { of, marks: options.slice(0, 12).map((text) => [of(text), text]) };
  }

  function draw(given) {
    shown = given;
    const names = { fit: "fit", search: "search", ensemble: "ensemble" };
    const title = given.about.model ?? given.about.title ?? "";
    $("title").textContent = `elephas_like ${names[given.kind] ?? ""}${title ? `: ${title}` : ""}`;
    document.title = given.kind === "fit" && given.status === "training" ? `${given.epoch}/${given.epochs} ${title}` : `${given.status} ${title}`;
    if (given.kind === "fit") fit(given); else runs(given);
    $("notes").replaceChildren(...(given.unknown ?? []).map((text) => make("p", {}, text)));
    if (given.began_at !== null) {
      const from = new Date(given.began_at * 1000).toLocaleString(), until = new Date(given.now_at * 1000).toLocaleTimeString();
      $("notes").append(make("p", {}, `Begun ${from}, as of ${until}.`));
    }
    state(given.status, given.status === "finished" ? "good" : ["failed", "interrupted"].includes(given.status) ? "bad" : "");
  }

  function state(text, kind) {
    if ($("status").textContent === text && $("status").className === kind) return;
    $("status").textContent = text;
    $("status").className = kind;
  }

  // The theme: as the system has it, or as the button says.
  const system = matchMedia("(prefers-color-scheme: dark)");
  let asked = "automatic";
  try { asked = localStorage.getItem("elephas_like-theme") ?? asked; } catch { /* files may have no storage */ }
  function theme() {
    document.documentElement.dataset.theme = asked === "automatic" ? (system.matches ? "dark" : "light") : asked;
    $("theme").textContent = `Theme: ${asked}`;
    for (const one of charts.values()) one.plot.redraw(false);
  }
  $("theme").addEventListener("click", () => {
    asked = { automatic: "light", light: "dark", dark: "automatic" }[asked] ?? "automatic";
    try { localStorage.setItem("elephas_like-theme", asked); } catch { /* likewise */ }
    theme();
  });
  system.addEventListener("change", theme);
  theme();

  // The server holds a request until there is something new, so that the last snapshot of a fit arrives as well.
  async function watch() {
    let after = -1, failures = 0;
    for (;;) {
      try {
        const reply = await fetch(`snapshot?after=${after}`, { cache: "no-store", signal: AbortSignal.timeout(30000) });
        if (!reply.ok) throw new Error(String(reply.status));
        const given = await reply.json();
        after = given.version;
        failures = 0;
        draw(given);
        if (["finished", "failed", "interrupted"].includes(given.status)) return;
      } catch (error) {
        failures += 1;
        if (!(error instanceof TypeError || error.name === "TimeoutError" || /^\d+$/.test(error.message))) console.error(error);
        state(failures > 1 ? "no answer from the driver: this is what it said last" : $("status").textContent, failures > 1 ? "bad" : $("status").className);
        await new Promise((resolve) => setTimeout(resolve, Math.min(10000, 1000 * failures)));
      }
    }
  }
  if (embedded === null) watch(); else draw(embedded);
})();
