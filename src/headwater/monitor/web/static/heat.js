// Heat maps of what was sampled of every tensor and head: rows from the first layer down, columns over the steps.

const RAMP = ["#2d1160", "#51127c", "#822681", "#b63679", "#e65164", "#fb8861", "#fec287", "#fcfdbf"];

function mix(share) {
  const at = Math.max(0, Math.min(0.9999, share)) * (RAMP.length - 1), first = Math.floor(at), rest = at - first;
  const channel = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
  return [0, 1, 2].map((i) => Math.round(channel(RAMP[first], i) * (1 - rest) + channel(RAMP[first + 1], i) * rest));
}

/** A section with a map; `fetchMap(run, metric)` gives {metrics, metric, unit, log, s, rows, note}. */
function makeHeat(fetchMap) {
  const holder = el("div", {});
  const canvas = el("canvas", {tabindex: "0", role: "img", "aria-label": "heat map", "aria-describedby": "heat-read"});
  const names = svg("svg", {class: "rows", "aria-hidden": "true"}), steps = svg("svg", {class: "steps", "aria-hidden": "true"});
  const reading = el("p", {class: "reading", id: "heat-read", "aria-live": "polite"});
  const bar = el("canvas", {class: "bar", width: 160, height: 1, "aria-hidden": "true"}), ends = [el("span", {}), el("span", {})];
  const pick = {run: null, metric: null, kind: ""};
  const selects = el("div", {class: "selects"}), note = el("p", {class: "note"});
  const map = el("figure", {class: "heat"}, selects, el("div", {class: "map"}, names, el("div", {}, canvas, steps)),
    el("div", {class: "ramp"}, ends[0], bar, ends[1]), reading, note);
  let data = null, rows = [], cell = null, height = 8, scale = null;
  const node = section("heat", "Layers and heads", el("p", {class: "note"},
    "Sampled of every tensor, from the first layer down; every column is one sample, or the most telling one of several."), map, holder);

  async function update() {
    const runs = views();
    if (!runs.some((run) => run.id === pick.run)) pick.run = runs.length ? runs[0].id : null;
    const run = state.runs.get(pick.run);
    const found = run && (await fetchMap(run, pick.metric));
    node.hidden = !found || !found.metrics.length;
    if (node.hidden) return;
    data = found;
    pick.metric = found.metric;
    const kinds = [...new Set(found.rows.filter((row) => row.layer != null).map((row) => row.kind))];
    if (pick.kind && !kinds.includes(pick.kind)) pick.kind = "";
    renew(selects, JSON.stringify([runs.map((one) => [one.id, one.view.name]), pick, found.metrics, kinds]), () => [
      runs.length > 1 && select("run", runs.map((one) => [one.id, one.view.name]), pick.run, (value) => (pick.run = value)),
      select("figure", found.metrics.map(({key, title}) => [key, title]), pick.metric, (value) => (pick.metric = value)),
      select("of", [["", kinds.length && kinds[0].startsWith("head") ? "all heads" : "all tensors"], ...kinds.map((kind) => [kind, kind])],
        pick.kind, (value) => (pick.kind = value)),
    ]);
    draw();
  }

  function select(label, options, value, set) {
    const menu = el("select", {"data-focus": label, onchange: () => (set(menu.value), update())},
      options.map(([key, text]) => el("option", {value: key, selected: key === value}, text)));
    return el("label", {}, label, menu);
  }

  function draw() {
    rows = data.rows.filter((row) => !pick.kind || row.kind === pick.kind);
    if (!rows.length || !data.s.length) return;
    const values = rows.flatMap((row) => row.v).filter((value) => value != null && (!data.log || value > 0)).sort((a, b) => a - b);
    const low = values[0], high = values.at(-1), from = data.log ? Math.log10(low) : low, to = data.log ? Math.log10(high) : high;
    scale = (value) => (to > from ? ((data.log ? Math.log10(value) : value) - from) / (to - from) : 0.5);
    height = Math.max(3, Math.min(18, Math.round(420 / rows.length)));
    const image = new ImageData(data.s.length, rows.length);
    rows.forEach((row, y) => row.v.forEach((value, x) => {
      const at = 4 * (y * data.s.length + x);
      if (value == null) return;
      image.data.set([...(data.log && value <= 0 ? mix(0) : mix(scale(value))), 255], at);
    }));
    canvas.width = data.s.length;
    canvas.height = rows.length;
    canvas.style.height = `${height * rows.length}px`;
    canvas.getContext("2d").putImageData(image, 0, 0);
    const ramp = new ImageData(160, 1);
    for (let x = 0; x < 160; x++) ramp.data.set([...mix(x / 159), 255], 4 * x);
    bar.getContext("2d").putImageData(ramp, 0, 0);
    ends[0].textContent = short(low);
    ends[1].textContent = `${short(high)} ${data.unit}`;
    note.textContent = data.note;
    labels();
    read();
  }

  function labels() {
    const total = height * rows.length, every = Math.max(1, Math.ceil(13 / height));
    const room = names.clientWidth || 132, letters = Math.floor((room - 6) / 6.2);
    names.setAttribute("viewBox", `0 0 ${room} ${total}`);
    names.setAttribute("height", total);
    let last = -Infinity;
    names.replaceChildren(...rows.map((row, y) => {
      const starts = y === 0 || rows[y - 1].layer !== row.layer;
      if (!(starts || every === 1) || (y - last) * height < 13) return null;
      // What belongs to no layer gives way to the first layer's name.
      if (row.layer == null && rows.slice(y + 1, y + every).some((next) => next.layer != null)) return null;
      last = y;
      const text = row.layer == null ? row.kind : every === 1 ? `${row.layer}  ${row.kind}` : `layer ${row.layer}`;
      return svg("text", {x: room - 6, y: Math.max(10, y * height + Math.min(height, 13) - 2), "text-anchor": "end"},
        text.length > letters ? `…${text.slice(1 - letters)}` : text);
    }).filter(Boolean));
    const width = canvas.clientWidth || 300, count = Math.max(1, Math.floor(width / 80));
    steps.setAttribute("viewBox", `0 0 ${width} 18`);
    steps.setAttribute("height", 18);
    const marks = [...Array(count + 1).keys()].map((i) => Math.round((i / count) * (data.s.length - 1)));
    steps.replaceChildren(...[...new Set(marks)].map((at, i, all) => svg("text", {
      x: ((at + 0.5) / data.s.length) * width, y: 14, "text-anchor": i === 0 ? "start" : i === all.length - 1 ? "end" : "middle",
    }, short(data.s[at]))));
  }

  function read() {
    if (!cell || !data || cell.y >= rows.length || cell.x >= data.s.length) {
      reading.textContent = "";
      return;
    }
    const row = rows[cell.y], value = row.v[cell.x];
    reading.textContent = `${row.name} · step ${count(data.s[cell.x])} · ${value == null ? "nothing sampled" : exact(value)}`;
  }

  function point(event) {
    const box = canvas.getBoundingClientRect();
    cell = {x: Math.floor(((event.clientX - box.left) / box.width) * data.s.length), y: Math.floor((event.clientY - box.top) / height)};
    read();
  }

  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && ((cell = null), read()));
  canvas.addEventListener("keydown", (event) => {
    const move = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (!move || !data) return;
    event.preventDefault();
    const from = cell || {x: data.s.length - 1, y: 0};
    cell = {x: Math.max(0, Math.min(data.s.length - 1, from.x + move[0])), y: Math.max(0, Math.min(rows.length - 1, from.y + move[1]))};
    read();
  });
  new ResizeObserver(() => data && rows.length && labels()).observe(canvas);
  return {node, update};
}
