// A chart that answers: read-out under the pointer or the arrow keys, the same step in every chart, zoom by dragging.

const HEIGHT = 216, WIDE_HEIGHT = 420;

/** A figure for a panel {id, title, unit, log}; `update()` draws it anew. */
function makeChart(panel) {
  const id = `chart-${panel.id}`;
  const picture = svg("svg", {role: "img", tabindex: "0", "aria-labelledby": `${id}-title`, "aria-describedby": `${id}-read`});
  const legend = el("ul", {class: "legend"});
  const reading = el("p", {class: "reading", id: `${id}-read`, "aria-live": "polite"});
  const logButton = el("button", {type: "button", class: "small", title: "logarithmic axis", onclick: () =>
    change({logs: {...state.logs, [panel.id]: !panelLog(panel)}})}, "log");
  const wideButton = el("button", {type: "button", class: "small", title: "whole width", onclick: () =>
    change({wide: state.wide === panel.id ? null : panel.id})}, "wide");
  const figure = el("figure", {class: "chart", id},
    el("figcaption", {}, el("div", {}, el("b", {id: `${id}-title`}, panel.title), " ", el("span", {}, panel.unit)), logButton, wideButton),
    picture, reading, legend);
  let plot = null, width = 0, drag = null;

  /** All charts are laid out first, then measured, then drawn: each alone would have the page laid out again. */
  function layOut() {
    const wide = state.wide === panel.id;
    figure.classList.toggle("wide", wide);
    logButton.setAttribute("aria-pressed", String(panelLog(panel)));
    wideButton.setAttribute("aria-pressed", String(wide));
  }

  const measure = () => Math.max(240, Math.round(picture.clientWidth || 360));

  function draw(wanted) {
    const height = state.wide === panel.id ? WIDE_HEIGHT : HEIGHT;
    width = wanted;
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("height", height);
    plot = drawChart(picture, panel, width, height);
    figure.classList.toggle("nothing", !plot);
    read();
  }

  /** Values at the cursor, else the last ones, in the legend; the cursor's place and the events there above it. */
  function read() {
    if (!plot) {
      legend.replaceChildren();
      reading.textContent = state.span ? "nothing recorded in these steps" : placed().length ? "nothing recorded" : `no ${AXES[state.axis].name} are recorded`;
      return;
    }
    reading.classList.toggle("still", state.cursor == null);
    const cursor = picture.querySelector(".cursor"), at = state.cursor;
    const hits = plot.curves.map((curve) => {
      const x = at == null ? curve.xs.at(-1) : at;
      const index = nearest(curve.xs, x);
      return {curve, index, near: at == null || (x >= curve.xs[0] - 1e-9 && x <= curve.xs.at(-1) + 1e-9)};
    });
    const items = hits.map(({curve, index, near}) => {
      const swatch = svg("svg", {viewBox: "0 0 16 8", class: "swatch", "aria-hidden": "true"},
        coloured(svg("path", {d: "M0 4H16", "stroke-dasharray": curve.dash || null, class: curve.line.faint ? "line faint" : "line"}), "stroke", curve.colour));
      return el("li", {}, swatch, el("span", {}, curve.name), el("b", {}, near ? exact(curve.ys[index]) : "–"));
    });
    // With several runs the lines of each stand together under its name.
    const headed = views().length > 1 && plot.curves.some((curve) => !curve.alone);
    legend.replaceChildren(...items.flatMap((item, i) => {
      const {run, colour: ink} = plot.curves[i], first = headed && (i === 0 || plot.curves[i - 1].run !== run);
      return first ? [el("li", {class: "run"}, swatch(ink), el("b", {}, run.view.name)), item] : [item];
    }));
    if (at == null) {
      cursor.replaceChildren();
      reading.textContent = `over ${AXES[state.axis].unit(plot.high - plot.low)[1]}`;
      return;
    }
    const x = plot.px(at), shown = hits.filter((hit) => hit.near);
    cursor.replaceChildren(
      svg("path", {d: `M${x.toFixed(1)} ${plot.top}V${plot.bottom}`}),
      ...shown.map(({curve, index}) => coloured(svg("circle", {r: 3.5, cx: plot.px(curve.xs[index]).toFixed(1),
        cy: plot.py(curve.ys[index]).toFixed(1)}), "fill", curve.colour)));
    const first = shown[0], there = plot.events.filter((one) => Math.abs(one.x - x) <= 5).slice(-3);
    const place = first ? AXES[state.axis].text(first.curve.xs[first.index]) : AXES[state.axis].text(at);
    const step = first && state.axis !== "s" ? `, step ${count(first.curve.steps[first.index])}` : "";
    reading.textContent = [place + step, ...there.map(({event}) => `${event.title}: ${event.text.split("\n")[0]}`)].join(" · ");
  }

  function placeOf(event) {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * width;
    const share = Math.min(1, Math.max(0, (x - plot.left) / (plot.right - plot.left)));
    return plot.low + share * (plot.high - plot.low);
  }

  /** To the recorded point nearest to a place. */
  function settle(x) {
    const {xs} = plot.curves.reduce((most, curve) => (curve.xs.length > most.xs.length ? curve : most));
    const near = xs[nearest(xs, x)];
    return plot.high > plot.low && Math.abs(plot.px(near) - plot.px(x)) > 40 ? x : near;
  }

  function zoom(from, to) {
    const {view} = plot.curves[0], ends = [stepAt(view, from), stepAt(view, to)].map(Math.round);
    if (ends[1] > ends[0]) change({span: ends, cursor: null});
  }

  picture.addEventListener("pointermove", (event) => {
    if (!plot) return;
    const x = placeOf(event);
    if (drag) {
      const [a, b] = [plot.px(drag.from), plot.px(x)].sort((p, q) => p - q);
      picture.querySelector(".cursor").replaceChildren(
        svg("rect", {class: "drag", x: a, width: b - a, y: plot.top, height: plot.bottom - plot.top}));
      drag.to = x;
      return;
    }
    change({cursor: settle(x)});
  });
  picture.addEventListener("pointerdown", (event) => {
    if (!plot) return;
    const x = placeOf(event);
    if (event.pointerType !== "mouse") {
      change({cursor: settle(x)}); // a finger reads; what it read stays until the next touch
    } else if (event.button === 0) {
      drag = {from: x, to: x};
      picture.setPointerCapture(event.pointerId);
    }
  });
  picture.addEventListener("pointerup", () => {
    if (!drag) return;
    const [from, to] = [drag.from, drag.to].sort((a, b) => a - b);
    drag = null;
    if (plot.px(to) - plot.px(from) > 6) zoom(from, to);
    else read();
  });
  picture.addEventListener("pointerleave", (event) => !drag && event.pointerType === "mouse" && change({cursor: null}));
  picture.addEventListener("dblclick", () => change({span: null}));
  picture.addEventListener("keydown", (event) => {
    if (!plot) return;
    const {xs} = plot.curves.reduce((most, curve) => (curve.xs.length > most.xs.length ? curve : most));
    const here = state.cursor == null ? xs.length - 1 : nearest(xs, state.cursor), jump = event.shiftKey ? 20 : 1;
    const to = {ArrowLeft: here - jump, ArrowRight: here + jump, Home: 0, End: xs.length - 1}[event.key];
    if (to !== undefined) change({cursor: xs[Math.max(0, Math.min(xs.length - 1, to))]});
    else if (event.key === "Escape") change({cursor: null, span: null});
    else if (event.key === "+" || event.key === "=") {
      const middle = xs[here], half = (plot.high - plot.low) / 4;
      zoom(Math.max(plot.low, middle - half), Math.min(plot.high, middle + half));
    } else if (event.key === "-") change({span: null});
    else return;
    event.preventDefault();
  });
  picture.addEventListener("blur", () => change({cursor: null}));
  // A width of its own per chart: drawn when it is first seen, and again when the page is made wider or narrower.
  new ResizeObserver(() => {
    const now = Math.round(picture.clientWidth);
    if (now && Math.abs(now - width) > 1) draw(now);
  }).observe(figure);
  return {panel, figure, layOut, measure, draw, read};
}

function drawAll(charts) {
  for (const chart of charts) chart.layOut();
  const widths = charts.map((chart) => chart.measure());
  charts.forEach((chart, i) => chart.draw(widths[i]));
}
