// The dashboard: asks its own server for runs and figures, again and again, as long as the page is looked at.

const EVERY = 2000;
const SHOWN_AT_FIRST = 1;

async function ask(path) {
  const answer = await fetch(path, {headers: {Accept: "application/json"}});
  if (!answer.ok) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
  return answer.json();
}

/** Once, when the page has drawn itself: for whoever measures or waits. */
function ready() {
  if (document.documentElement.dataset.ready) return;
  document.documentElement.dataset.ready = "yes";
  performance.mark("drawn");
}

function startDashboard() {
  const chosen = new URLSearchParams(location.hash.slice(1));
  let picked = chosen.has("runs") ? chosen.get("runs").split(",").filter(Boolean) : null, drawn = "", busy = false, again = false;
  if (AXES[chosen.get("over")]) state.axis = chosen.get("over");

  function pick(id, on, alone) {
    const others = alone ? [] : state.shown.filter((one) => one !== id);
    picked = on ? [...others, id] : others;
    remember();
    refresh();
  }

  function remember() {
    const parts = new URLSearchParams();
    if (picked) parts.set("runs", picked.join(","));
    if (state.axis !== "s") parts.set("over", state.axis);
    history.replaceState(null, "", `${location.pathname}#${parts}`);
  }

  const page = makePage({
    extra: {},
    onPick: pick,
    fetchMap: async (run, metric) => {
      const key = `${metric}@${run.view.version}`;
      run.heat = run.heat || {};
      if (!run.heat[key]) run.heat = {[key]: await ask(`/api/heat?run=${run.id}${metric ? `&metric=${encodeURIComponent(metric)}` : ""}`)};
      return run.heat[key];
    },
  });

  /** One look at the server; only what changed is fetched and drawn. */
  async function refresh() {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      const runs = await ask("/api/runs");
      for (const {id, version, ...summary} of runs) state.runs.set(id, {...state.runs.get(id), id, newest: version, summary});
      const there = runs.map((run) => run.id);
      const wanted = picked || there.slice(0, SHOWN_AT_FIRST);
      state.shown = there.filter((id) => wanted.includes(id));
      if (!state.shown.every((id) => state.runs.get(id).view)) page.update(); // a long record takes a moment
      const zoom = state.span ? `&from=${state.span[0]}&to=${state.span[1]}` : "";
      await Promise.all(state.shown.map(async (id) => {
        const run = state.runs.get(id), have = `${run.newest}${zoom}`;
        if (run.have === have) return;
        const view = await ask(`/api/view?run=${id}${zoom}`);
        Object.assign(state.runs.get(id), {view, have: `${view.version}${zoom}`});
      }));
      const now = JSON.stringify([runs, state.shown, zoom]);
      if (now !== drawn) page.update();
      drawn = now;
      tell("live", views().some((run) => ["running", "silent"].includes(run.view.status.state)) ? "live" : "up to date");
    } catch (error) {
      tell("away", error instanceof TypeError ? "the dashboard has stopped; what is here is the last it said" : String(error.message));
    } finally {
      busy = false;
      ready();
      if (again) {
        again = false;
        refresh();
      }
    }
  }

  function tell(kind, text) {
    page.live.className = `told ${kind}`;
    if (page.live.textContent !== text) page.live.textContent = text;
  }

  listeners.add((parts) => {
    if ("axis" in parts) remember();
    if ("span" in parts) refresh();
  });
  if (location.search) remember(); // a secret does not stay in the address bar
  refresh();
  setInterval(() => document.hidden || refresh(), EVERY);
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
}

/** A report: everything is in the page already. */
function startReport(data) {
  for (const [index, run] of data.runs.entries()) {
    const id = String(index);
    state.runs.set(id, {id, summary: run.summary, view: run.view, heat: run.heat});
    state.shown.push(id);
  }
  const page = makePage({
    extra: data,
    onPick: (id, on, alone) => {
      state.shown = alone ? [id] : [...state.runs.keys()].filter((one) => (one === id ? on : state.shown.includes(one)));
      page.update();
    },
    fetchMap: (run, metric) => run.heat && (run.heat.find((one) => one.metric === metric) || run.heat[0]),
  });
  page.live.textContent = data.written || "";
  page.update();
  ready();
}
