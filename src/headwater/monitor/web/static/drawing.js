// One chart as SVG: axes, lines, events, marks of values that were no numbers. What is drawn is kept for the read-out.

const DASHES = ["", "7 4", "2 3", "9 3 2 3", "1 3", "12 4"];
const MARGIN = {left: 52, right: 12, top: 16, bottom: 22};
const EVENTS_WITH_LINES = 60;
const SMOOTHING = [0, 0.01, 0.03, 0.1];

/** The curves of a panel over all runs shown: [{name, run, view, colour, dash, line}]. */
function curvesOf(panelId) {
  const all = placed(), several = views().length > 1, curves = [];
  for (const run of all) {
    const panel = run.view.panels.find((one) => one.id === panelId);
    const lines = panel ? panel.lines : [];
    const behind = lines.some((one) => one.faint) ? 1 : 0; // a faint line shares the colour of the one it lies behind
    lines.forEach((line, place) => {
      const index = Math.max(0, place - behind);
      if (several && line.faint) return;
      const name = several && lines.length === 1 ? run.view.name : line.name;
      curves.push({
        name, run, view: run.view, line, alone: lines.length === 1,
        colour: several ? runColour(run.id) : colour(index),
        dash: several ? DASHES[index % DASHES.length] : "",
      });
    });
  }
  return curves;
}

/** What is drawn of a curve: `xs`, `ys` to read out, `raw` points behind them where those are averages. */
function pathsOf(curve, log) {
  const {line, view} = curve, inside = spanFilter(line.s, line.y, log), paths = {raw: null, xs: [], ys: [], steps: []};
  let {steps, values} = inside;
  const dense = !line.marks && steps.length > 30;
  if (!line.faint && dense && (line.my || state.smooth)) {
    paths.raw = {steps, values};
    if (line.my) ({steps, values} = spanFilter(line.ms, line.my, log));
    if (state.smooth && steps.length) {
      values = smoothed(steps, values, Math.max(1e-9, SMOOTHING[state.smooth] * (steps.at(-1) - steps[0])));
    }
  }
  paths.steps = steps;
  paths.ys = values;
  paths.xs = steps.map((step) => along(view, step));
  return paths;
}

function spanFilter(steps, values, log) {
  const keep = [];
  for (let i = 0; i < steps.length; i++) {
    const inside = !state.span || (steps[i] >= state.span[0] && steps[i] <= state.span[1]);
    if (inside && Number.isFinite(values[i]) && (!log || values[i] > 0)) keep.push(i);
  }
  return {steps: keep.map((i) => steps[i]), values: keep.map((i) => values[i])};
}

/** Draw into `holder`, `width` x `height` pixels; returns what a pointer needs, or null if there is nothing to draw. */
function drawChart(holder, panel, width, height) {
  const log = panelLog(panel);
  const curves = curvesOf(panel.id).map((curve) => ({...curve, ...pathsOf(curve, log)})).filter((curve) => curve.xs.length);
  if (!curves.length) {
    holder.replaceChildren();
    return null;
  }
  const right = width - MARGIN.right, bottom = height - MARGIN.bottom;
  // All charts span the same: what the runs shown have recorded, or the steps looked at.
  const ends = placed().flatMap(({view}) =>
    (state.span || [view.axis.s[0], view.axis.s.at(-1)]).map((step) => along(view, step)));
  const low = Math.min(...ends), high = Math.max(...ends);
  const px = (x) => (high > low ? MARGIN.left + ((x - low) / (high - low)) * (right - MARGIN.left) : (MARGIN.left + right) / 2);
  const vertical = verticalAxis(curves.flatMap(({ys, raw}) => (raw ? [...ys, ...raw.values] : ys)), log, MARGIN.top, bottom);
  const plot = {curves, px, py: vertical.at, low, high, left: MARGIN.left, right, top: MARGIN.top, bottom, events: [], panel};
  const parts = [gridOf(vertical, plot), horizontalOf(plot), state.events && eventsOf(plot), ...curves.map((curve) => lineOf(curve, plot)),
    badOf(plot), svg("g", {class: "cursor"})];
  holder.replaceChildren(...parts.filter(Boolean));
  return plot;
}

function gridOf(vertical, {py, left, right}) {
  return svg("g", {}, vertical.values.map((value) => [
    svg("path", {class: "grid", d: `M${left} ${py(value).toFixed(1)}H${right}`}),
    svg("text", {x: left - 8, y: (py(value) + 4).toFixed(1), "text-anchor": "end"}, short(value)),
  ]));
}

function horizontalOf({px, low, high, left, right, bottom}) {
  const [scale] = AXES[state.axis].unit(high - low);
  const marks = ticks(low / scale, high / scale, Math.max(2, Math.floor((right - left) / 76)));
  const labels = marks.map((mark) => [px(mark * scale), mark]).filter(([x]) => x >= left - 1 && x <= right + 1);
  return svg("g", {}, svg("path", {class: "axis", d: `M${left} ${bottom}H${right}`}),
    labels.map(([x, mark]) => svg("path", {class: "axis", d: `M${x.toFixed(1)} ${bottom}v4`})),
    labels.map(([x, mark]) =>
      svg("text", {x: x.toFixed(1), y: bottom + 18, "text-anchor": x > right - 14 ? "end" : "middle"}, short(mark))));
}

function lineOf(curve, {px, py}) {
  const {line, raw, view} = curve;
  const path = (xs, ys) => xs.map((x, i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(ys[i]).toFixed(1)}`).join("");
  const group = svg("g", {"stroke-dasharray": curve.dash || null});
  if (raw) {
    const behind = path(raw.steps.map((step) => along(view, step)), raw.values);
    group.append(coloured(svg("path", {class: "line behind", d: behind}), "stroke", curve.colour));
  }
  group.append(coloured(svg("path", {class: line.faint ? "line faint" : "line", d: path(curve.xs, curve.ys)}), "stroke", curve.colour));
  if (line.marks || curve.xs.length === 1) {
    group.append(...curve.xs.map((x, i) =>
      coloured(svg("circle", {cx: px(x).toFixed(1), cy: py(curve.ys[i]).toFixed(1), r: 2.5}), "fill", curve.colour)));
  }
  return group;
}

/** Events as thin lines; the worst of several in one place is the one that is seen. */
function eventsOf(plot) {
  const order = ["info", "warning", "action", "critical"], several = views().length > 1;
  const found = [];
  for (const run of placed()) {
    for (const event of run.view.events) {
      if (event.step == null || (several && event.level === "info")) continue;
      const x = along(run.view, event.step);
      if (x >= plot.low && x <= plot.high) found.push({event, run, x: plot.px(x)});
    }
  }
  found.sort((a, b) => order.indexOf(a.event.level) - order.indexOf(b.event.level));
  plot.events = found;
  const lines = found.length <= EVENTS_WITH_LINES;
  const places = new Map(found.map((one) => [Math.round(one.x / 2), one]));
  return svg("g", {class: "events"}, [...places.values()].map(({event, x}) => {
    const at = x.toFixed(1), shape = MARKS[event.level] || MARKS.info;
    return svg("g", {class: `event ${event.level}`},
      lines && svg("path", {class: "at", d: `M${at} ${plot.top}V${plot.bottom}`}),
      event.level !== "info" && svg("path", {class: "mark", d: `M${at} ${plot.top - 5}${shape}`}));
  }));
}

/** Levels differ in shape, not in colour alone. */
const MARKS = {
  info: "",
  warning: "m0-5l5 9h-10z",
  critical: "m-4.5-4.5h9v9h-9z",
  action: "m0-5.5l5.5 5.5l-5.5 5.5l-5.5-5.5z",
};

/** A red foot where a value was NaN or infinite, and so is missing from the line. */
function badOf(plot) {
  const keys = {loss: ["loss"], grad_norm: ["grad_norm"], val_loss: ["val_loss"], bits: ["val_bits_per_byte"]}[plot.panel.id] || [];
  const marks = placed().flatMap((run) => keys.flatMap((key) => run.view.not_finite[key] || []).map((step) => along(run.view, step)))
    .filter((x) => x >= plot.low && x <= plot.high);
  return marks.length && svg("g", {class: "bad"}, marks.map((x) =>
    svg("path", {d: `M${(plot.px(x) - 4).toFixed(1)} ${plot.bottom - 9}l8 8m0-8l-8 8`}, svg("title", {}, "not a finite number"))));
}

function panelLog(panel) {
  return state.logs[panel.id] ?? panel.log;
}
