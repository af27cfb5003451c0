// The parts of the page that are words and tables: runs, headline figures, notes, facts, samples, lineage, recipe.

const STATES = {running: "running", silent: "silent", finished: "finished", stopped: "stopped", empty: "empty"};

function pill(status) {
  return el("span", {class: `pill ${STATES[status.state] || "empty"}`}, status.words);
}

/** The list of runs. With one run only it is the run's state in one line. */
function runsSection(select) {
  const all = [...state.runs.values()];
  if (all.length < 2) return null;
  return section("runs", "Runs", el("div", {class: "scroll"}, el("table", {class: "runs"},
    el("thead", {}, el("tr", {}, ["", "run", "state", "step", "", "loss", "validation", "tokens/s", "left", "alerts"].map((text, i) =>
      el("th", {scope: "col", class: i > 2 ? "number" : null}, text || el("span", {class: "hidden"}, i ? "progress" : "shown"))))),
    el("tbody", {}, all.map(({id, summary}) => {
      const {status} = summary, shown = state.shown.includes(id);
      const box = el("input", {type: "checkbox", checked: shown, "data-focus": `run-${id}`, "aria-label": `show ${summary.name}`,
        onchange: () => select(id, box.checked)});
      const progress = status.steps ? Math.min(1, status.step / status.steps) : 0;
      const bar = el("i", {});
      bar.style.width = `${100 * progress}%`;
      const dot = swatch(runColour(id));
      return el("tr", {class: shown ? "shown" : null}, el("td", {}, el("label", {class: "pick"}, box, dot)),
        el("th", {scope: "row"}, el("button", {type: "button", class: "name", "data-focus": `only-${id}`, title: "show this run alone",
          onclick: () => select(id, true, true)}, summary.name)),
        el("td", {}, pill(status)),
        el("td", {class: "number"}, count(status.step), status.steps && el("small", {}, ` of ${count(status.steps)}`)),
        el("td", {class: "barcell"}, el("div", {class: "share thin"}, bar)),
        el("td", {class: "number"}, exact(summary.loss)), el("td", {class: "number"}, exact(summary.validation)),
        el("td", {class: "number"}, short(summary.throughput)), el("td", {class: "number"}, status.eta == null ? "–" : duration(status.eta)),
        el("td", {class: "number"}, summary.alerts ? el("span", {class: summary.critical ? "count critical" : "count"}, count(summary.alerts)) : "0"));
    })))));
}

/** The figures shown first: those given with a report, else the newest of the only run shown. */
function tilesOf(extra) {
  const runs = views();
  if (extra.headline && extra.headline.length) return tiles(extra.headline);
  if (runs.length !== 1) return null;
  const {summary, view} = runs[0], {status} = view;
  const of = status.steps ? `of ${count(status.steps)} steps` : "steps";
  const bits = lastOf(view, "bits", ["all, averaged weights", "all"]);
  const found = [
    {label: status.words, value: count(status.step), note: status.eta != null ? `${of}, ${duration(status.eta)} left` : of},
    bits && {label: "bits per byte", value: bits.value.toFixed(3), note: "validation text"},
    summary.validation != null && {label: "validation loss", value: exact(summary.validation), note: "nats per token"},
    summary.loss != null && {label: "training loss", value: exact(summary.loss), note: "moving average"},
    summary.tokens != null && {label: "tokens read", value: short(summary.tokens), note: summary.tokens < 1e4 ? "tokens" : count(summary.tokens)},
    summary.throughput != null && {label: "throughput", value: short(summary.throughput), note: "tokens per second"},
    view.time && view.time.goodput != null && {label: "goodput", value: percent(view.time.goodput), note: `of ${duration(view.time.total)}`},
  ].filter(Boolean);
  return tiles(found);
}

function lastOf(view, panelId, names) {
  const panel = view.panels.find((one) => one.id === panelId);
  for (const name of names) {
    const line = panel && panel.lines.find((one) => one.name === name);
    if (line) return {value: line.y.at(-1), step: line.s.at(-1)};
  }
  return null;
}

function tiles(items) {
  return el("dl", {class: "tiles"}, items.map((item) =>
    el("div", {}, el("dt", {}, item.label), el("dd", {}, el("b", {}, item.value), el("small", {}, item.note || "")))));
}

/** What is odd about the record, in words. */
function notesOf() {
  const lines = views().flatMap((run) => run.view.notes.map((note) => (views().length > 1 ? `${run.view.name}: ${note}` : note)));
  return lines.length ? el("aside", {class: "notes", "aria-label": "About the record"}, el("ul", {}, lines.map((line) => el("li", {}, line)))) : null;
}

const numeric = (value) => typeof value === "number";

function table({title, columns, rows, note}, id) {
  if (!rows || !rows.length) return null;
  const right = columns.map((_, i) => rows.some((row) => numeric(row[i])));
  return section(id, title, el("div", {class: "scroll"}, el("table", {},
    columns.some(Boolean) && el("thead", {}, el("tr", {}, columns.map((column, i) => el("th", {scope: "col", class: right[i] ? "number" : null}, column)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el(i ? "td" : "th", {scope: i ? null : "row", class: right[i] ? "number" : null},
      numeric(cell) ? (Number.isInteger(cell) ? count(cell) : trim(cell.toPrecision(4))) : cell ?? ""))))))),
    note && el("p", {class: "note"}, note));
}

/** Facts of all runs side by side. */
function factsSection() {
  const runs = views();
  const names = [...new Set(runs.flatMap((run) => run.view.facts.map(([name]) => name)))];
  const rows = names.map((name) => [name, ...runs.map((run) => (run.view.facts.find(([key]) => key === name) || [])[1])]);
  return table({title: runs.length > 1 ? "The runs" : "The run", columns: runs.length > 1 ? ["", ...runs.map((run) => run.view.name)] : ["", ""], rows}, "facts");
}

function samplesSection(given) {
  const several = views().length > 1;
  const found = given || views().flatMap((run) => run.view.samples.slice(several ? -3 : undefined).map((sample) => ({...sample,
    note: [several && run.view.name, sample.step != null && `step ${count(sample.step)}`].filter(Boolean).join(" · ")})));
  if (!found.length) return null;
  return section("samples", "Samples", el("p", {class: "note"}, "Prompts are marked; the rest is the model's."), found.map((sample) =>
    el("article", {}, el("small", {}, sample.note || ""), el("pre", {tabindex: "0"}, el("mark", {}, sample.prompt), sample.text))));
}

function recipeSection(given) {
  const found = given ? [["as resolved", given]] : views().filter((run) => run.view.recipe).map((run) =>
    [views().length > 1 ? run.view.name : "as resolved", run.view.recipe]);
  if (!found.length) return null;
  return section("recipe", "Recipe", found.map(([name, text]) => el("details", {}, el("summary", {}, name), el("pre", {tabindex: "0"}, text))));
}
