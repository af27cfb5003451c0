// What happened, in words: alerts of detectors, interventions, starts and stops. A step leads to its place in the curves.

const LEVELS = [["critical", "critical"], ["warning", "warnings"], ["action", "interventions"], ["info", "starts and stops"]];
const FIRST_SHOWN = 40;
const hiddenLevels = new Set();
let allEvents = false;

function eventsSection(redraw) {
  const runs = views(), several = runs.length > 1;
  const found = runs.flatMap((run) => run.view.events.map((event) => ({...event, run})));
  if (!found.length) return null;
  found.sort((a, b) => (b.step ?? -1) - (a.step ?? -1) || (b.time ?? 0) - (a.time ?? 0));
  const shown = found.filter((event) => !hiddenLevels.has(event.level)), listed = allEvents ? shown : shown.slice(0, FIRST_SHOWN);
  const filters = LEVELS.map(([level, name]) => [level, name, found.filter((event) => event.level === level).length]).filter((one) => one[2])
    .map(([level, name, size]) => el("button", {type: "button", class: "filter", "data-focus": `level-${level}`, "aria-pressed": String(!hiddenLevels.has(level)),
      onclick: () => {
        if (!hiddenLevels.delete(level)) hiddenLevels.add(level);
        redraw();
      }}, eventMark(level), name, el("b", {}, count(size))));
  return section("events", "What happened", el("div", {class: "filters", role: "group", "aria-label": "kinds of events"}, filters),
    el("ol", {class: "happened", reversed: true}, listed.map((event) => el("li", {class: event.level}, eventMark(event.level),
      event.step == null ? el("span", {class: "step"}) : el("button", {type: "button", class: "step", title: "show in the curves",
        onclick: () => showStep(event)}, `step ${count(event.step)}`),
      el("div", {}, el("b", {}, event.title), several && el("small", {}, ` ${event.run.view.name}`),
        event.time != null && el("time", {}, when(event.time)), event.text && el("p", {}, event.text))))),
    shown.length > listed.length && el("button", {type: "button", class: "more", "data-focus": "more", onclick: () => {
      allEvents = true;
      redraw();
    }}, `show all ${count(shown.length)}`));
}

function eventMark(level) {
  return svg("svg", {class: `eventmark ${level}`, viewBox: "0 0 12 12", "aria-hidden": "true"},
    level === "info" ? svg("circle", {cx: 6, cy: 6, r: 3}) : svg("path", {d: `M6 6${MARKS[level] || MARKS.warning}`}));
}

function when(seconds) {
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? "" : date.toLocaleString("sv-SE").slice(0, 16);
}

function showStep(event) {
  document.querySelector("figure.chart svg")?.scrollIntoView({block: "center"});
  if (placed().includes(event.run)) change({span: null, cursor: along(event.run.view, event.step)});
}
