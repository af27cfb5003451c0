// The whole page: controls on top, then runs, figures, curves and the rest, in the order they are asked for.

/** Builds the page into #page. `extra`: what a report brings along; `fetchMap`: see heat.js; `onPick`: runs chosen. */
function makePage({extra, fetchMap, onPick}) {
  const charts = new Map(), holders = {};
  const hold = (name) => (holders[name] = el("div", {}));
  const title = el("h1", {}, extra.title || "Headwater"), subtitle = el("p", {}, extra.subtitle || "");
  const live = el("span", {class: "told", role: "status"});
  const curves = el("div", {class: "curves"});
  const heat = makeHeat(fetchMap);
  const controls = [
    choice("over", [["s", "steps"], ["tokens", "tokens"], ["time", "time"]], () => state.axis, (axis) => change({axis, cursor: null})),
    choice("smoothing", [[0, "off"], [1, "light"], [2, "medium"], [3, "strong"]], () => state.smooth, (smooth) => change({smooth})),
    choice("events", [[true, "shown"], [false, "hidden"]], () => state.events, (events) => change({events})),
  ];
  const zoomed = el("button", {type: "button", class: "reset", hidden: true, onclick: () => change({span: null})});
  document.getElementById("page").replaceChildren(
    el("header", {}, el("div", {}, title, subtitle), el("div", {class: "tools"}, live, themeButton())),
    el("main", {id: "main"}, hold("runs"), hold("tiles"), hold("notes"), hold("empty"),
      el("div", {class: "controls", role: "toolbar", "aria-label": "How curves are drawn"}, controls, zoomed),
      curves, hold("events"), heat.node, hold("time"), hold("mixture"), hold("tables"), hold("facts"), hold("samples"), hold("lineage"), hold("recipe")));
  heat.node.hidden = true;

  /** The charts there are now: those of all runs shown, under their headings; what is there already stays. */
  function arrange() {
    const panels = new Map();
    for (const run of views()) for (const panel of run.view.panels) if (!panels.has(panel.id)) panels.set(panel.id, panel);
    const order = ["Learning", "Stability", "Speed and memory", "More figures"];
    const key = [...panels.keys()].join("|");
    renew(curves, key, () => order.map((group) => {
      const own = [...panels.values()].filter((panel) => panel.group === group);
      if (!own.length) return null;
      const columns = {1: 1, 2: 2, 4: 2}[own.length] || 3, lead = own.length > 2 && own.length % 3 === 2; // no holes
      return section(`group-${order.indexOf(group)}`, group, el("div", {class: `charts of-${columns}${lead ? " lead" : ""}`}, own.map((panel) => {
        if (!charts.has(panel.id)) charts.set(panel.id, makeChart(panel));
        return charts.get(panel.id).figure;
      })));
    }));
    for (const id of charts.keys()) if (!panels.has(id)) charts.delete(id);
  }

  function words() {
    const shown = views(), name = shown.map((run) => run.id).join();
    const part = (holder, data, build) => renew(holders[holder], JSON.stringify([name, data]), build);
    part("runs", [...state.runs.values()].map((run) => run.summary), () => runsSection(onPick));
    part("tiles", [extra.headline, shown.map((run) => [run.summary, run.view.version])], () => tilesOf(extra));
    part("notes", shown.map((run) => run.view.notes), notesOf);
    part("empty", [state.runs.size, state.shown.length, shown.map((run) => run.view.panels.length > 0)], emptyOf);
    part("events", shown.map((run) => [run.view.events, [...hiddenLevels], allEvents]), () => eventsSection(words));
    part("time", shown.map((run) => run.view.time), timeSection);
    part("mixture", shown.map((run) => run.view.mixture), mixtureSection);
    part("tables", extra.tables, () => (extra.tables || []).map((one, i) => table(one, `table-${i}`)));
    part("facts", shown.map((run) => run.view.facts), factsSection);
    part("samples", [extra.samples, shown.map((run) => run.view.samples)], () => samplesSection(extra.samples));
    part("lineage", extra.lineage, () => lineageOf(extra.lineage));
    part("recipe", [extra.recipe, shown.map((run) => run.view.recipe)], () => recipeSection(extra.recipe));
  }

  function lineageOf(items) {
    return table({title: "Lineage", columns: ["stage", "fingerprint", ""], rows: (items || []).map((one) => [one.stage, one.fingerprint, one.note || ""])}, "lineage");
  }

  function emptyOf() {
    if (!state.runs.size) return el("p", {class: "nothing"}, "There is no run here yet. It shows by itself as soon as one has begun.");
    if (views().some((run) => run.view.panels.length)) return null;
    if (!state.shown.length) return el("p", {class: "nothing"}, "No run is chosen: tick one above.");
    return el("p", {class: "nothing"}, views().length < state.shown.length ? "Reading the record …"
      : "Nothing is recorded yet. Figures show by themselves after the first step.");
  }

  function control() {
    for (const group of controls) group.update();
    zoomed.hidden = !state.span;
    if (state.span) zoomed.textContent = `steps ${count(state.span[0])} to ${count(state.span[1])}: show all`;
    document.querySelector(".controls").hidden = !views().some((run) => run.view.panels.length);
  }

  listeners.add((parts) => {
    if ("cursor" in parts && Object.keys(parts).length === 1) {
      for (const chart of charts.values()) chart.read();
      return;
    }
    control();
    drawAll([...charts.values()]);
  });

  return {
    live,
    /** After the runs or their figures have changed. */
    update() {
      if (!extra.title) {
        const names = views().map((run) => run.view.name);
        title.textContent = names.length === 1 ? names[0] : "Headwater";
        subtitle.textContent = names.length === 1 ? "" : `${count(state.runs.size)} runs, ${count(names.length)} shown`;
        document.title = names.length === 1 ? `${names[0]} · Headwater` : "Headwater";
      }
      arrange();
      words();
      control();
      drawAll([...charts.values()]);
      heat.update();
    },
  };
}

/** Light, dark, or as the system has it; kept for the next time where the browser allows. */
function themeButton() {
  const names = {"": "as the system", light: "light", dark: "dark"}, order = ["", "light", "dark"];
  let now = "";
  try {
    now = localStorage.getItem("headwater-theme") || "";
  } catch {
    // a page opened from a file may have no storage
  }
  const button = el("button", {type: "button", class: "theme", onclick: () => set(order[(order.indexOf(now) + 1) % 3])});
  function set(value) {
    now = order.includes(value) ? value : "";
    document.documentElement.classList.toggle("light", now === "light");
    document.documentElement.classList.toggle("dark", now === "dark");
    button.textContent = `theme: ${names[now]}`;
    try {
      localStorage.setItem("headwater-theme", now);
    } catch {
      // the same
    }
  }
  set(now);
  return button;
}
