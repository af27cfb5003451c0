// Shares of a whole: where the time went, and what was read of each domain beside the plan.

/** Names of the parts of time over all runs, each with its colour: the same in every bar. */
const TIME_COLOURS = {
  "forward and backward": 0, "communication": 3, "optimizer": 5, "waiting for data": 1, "sampling of tensors": 10, "rest of the step": 7,
  "checkpoints": 2, "validation and samples": 6, "steps done again": 4, "not running": 8, "unaccounted": 9,
};

const timeColour = (name) => `var(--t${TIME_COLOURS[name] ?? 9})`;

function timeSection() {
  const runs = views().filter((run) => run.view.time);
  if (!runs.length) return null;
  const several = runs.length > 1;
  const used = [...new Set(runs.flatMap((run) => run.view.time.parts.map((part) => part.name)))];
  return section("time", "Where the time went",
    el("p", {class: "note"}, "Goodput is the share of all time since the start in which steps were done that stayed."),
    el("div", {class: "panel"},
      runs.map((run) => el("div", {class: "split"},
        el("p", {}, several && el("b", {}, run.view.name, " "), el("b", {class: "figure"}, percent(run.view.time.goodput)),
          ` goodput of ${duration(run.view.time.total)}`),
        stackedBar(run.view.time.parts.map((part) => [part.name, part.seconds / run.view.time.total, timeColour(part.name),
          `${part.name}: ${duration(part.seconds)}, ${percent(part.seconds / run.view.time.total)}`])),
        !several && el("ul", {class: "keys"}, run.view.time.parts.map((part) =>
          el("li", {}, swatch(timeColour(part.name)), el("span", {}, part.name), el("b", {}, percent(part.seconds / run.view.time.total)),
            el("small", {}, duration(part.seconds))))))),
      several && el("ul", {class: "keys"}, used.map((name) => el("li", {}, swatch(timeColour(name)), el("span", {}, name)))),
      !several && runs[0].view.time.over.s.length > 2 && overTime(runs[0].view.time.over)));
}

function swatch(background) {
  return coloured(el("i", {class: "swatch", "aria-hidden": "true"}), "background", background);
}

/** Parts [[name, share, colour, words]] of one bar. */
function stackedBar(parts) {
  return el("div", {class: "stack", role: "img", "aria-label": parts.map((part) => part[3]).join("; ")},
    parts.map(([, share, background, words]) => {
      const piece = coloured(el("i", {title: words}), "background", background);
      piece.style.flexGrow = Math.max(share, 0.0005);
      return piece;
    }));
}

/** Shares of every stretch of the run, one narrow bar each. */
function overTime(over) {
  const width = 600, height = 90, step = width / over.s.length;
  const bars = [];
  const base = over.s.map(() => 0);
  for (const part of over.parts) {
    const d = part.y.map((share, i) => {
      const top = base[i];
      base[i] += share;
      return `M${(i * step).toFixed(2)} ${((1 - top) * height).toFixed(2)}h${(step * 0.92).toFixed(2)}v${(-share * height).toFixed(2)}h${(-step * 0.92).toFixed(2)}z`;
    });
    bars.push(coloured(svg("path", {d: d.join("")}, svg("title", {}, part.name)), "fill", timeColour(part.name)));
  }
  return el("figure", {class: "over"},
    svg("svg", {viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": "split of the time over the run"}, bars),
    el("figcaption", {}, el("span", {}, "shares of steps and what is between them, over the run"),
      el("span", {}, `step 1 to ${count(over.s.at(-1))}`)));
}

function mixtureSection() {
  const runs = views().filter((run) => run.view.mixture);
  if (!runs.length) return null;
  return section("mixture", "What was read",
    el("p", {class: "note"}, runs.some((run) => run.view.mixture.planned)
      ? "Tokens of each domain; the mark on a bar is the share that was planned." : "Tokens of each domain. No weights were planned: domains come as large as they are."),
    el("div", {class: "panel"}, runs.map((run) => el("div", {class: "mixture"}, runs.length > 1 && el("h3", {}, run.view.name), mixtureTable(run.view.mixture),
      runs.length === 1 && run.view.mixture.over.s.length > 2 && mixtureOver(run.view.mixture)))));
}

function mixtureTable({domains, planned}) {
  const most = Math.max(...domains.flatMap((domain) => [domain.share, domain.plan || 0]));
  return el("div", {class: "scroll"}, el("table", {},
    el("thead", {}, el("tr", {}, ["domain", "", "share", planned && "plan", planned && "difference", "tokens"].filter((x) => x !== false)
      .map((text, i) => el("th", {scope: "col", class: i > 1 ? "number" : null}, text)))),
    el("tbody", {}, domains.map((domain, index) => {
      const bar = coloured(el("i", {}), "background", colour(index));
      bar.style.width = `${(100 * domain.share) / most}%`;
      const mark = planned && el("b", {title: `planned ${percent(domain.plan)}`});
      if (mark) mark.style.left = `${(100 * domain.plan) / most}%`;
      const off = domain.share - domain.plan;
      return el("tr", {}, el("th", {scope: "row"}, domain.name), el("td", {class: "barcell"}, el("div", {class: "share"}, bar, mark)),
        el("td", {class: "number"}, percent(domain.share)), planned && el("td", {class: "number"}, percent(domain.plan)),
        planned && el("td", {class: "number"}, `${off >= 0 ? "+" : "−"}${(Math.abs(off) * 100).toFixed(2)} pt`),
        el("td", {class: "number"}, count(domain.tokens)));
    }))));
}

/** Shares over the run, with the plan dashed. */
function mixtureOver({over}) {
  const width = 600, height = 120, pad = 4;
  const most = Math.max(...over.lines.flatMap((line) => [...line.y, ...(line.plan || [])])) * 1.05 || 1;
  const x = (i) => (over.s.length > 1 ? (i / (over.s.length - 1)) * width : width / 2);
  const y = (share) => pad + (1 - share / most) * (height - 2 * pad);
  const path = (values) => values.map((value, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  return el("figure", {class: "over"},
    svg("svg", {viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": "share of each domain over the run"},
      over.lines.flatMap((line, index) => [
        line.plan && coloured(svg("path", {class: "line plan", d: path(line.plan)}), "stroke", colour(index)),
        coloured(svg("path", {class: "line", d: path(line.y)}, svg("title", {}, line.name)), "stroke", colour(index)),
      ].filter(Boolean))),
    el("figcaption", {}, el("span", {}, over.lines.some((line) => line.plan) ? "share of each stretch; dashed: planned" : "share of each stretch"),
      el("span", {}, `step 1 to ${count(over.s.at(-1))}`)));
}
