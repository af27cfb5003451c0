// What every part of the page uses: elements, numbers as text, and the state that all parts share.
// Text of a run reaches the page through textContent alone, so it is never read as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: el("p", {class: "note"}, "text", child). Functions become listeners: {onclick: f}. */
function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
}

/** Colours go through the style object: the page's policy forbids style attributes. */
function coloured(node, property, colour) {
  node.style.setProperty(property, colour);
  return node;
}

const colour = (index) => `var(--s${index % 8})`;

const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]];

/** A short number for axes and tiles: 12k, 3.5M, 0.02, 3e-4. */
function short(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  for (const [limit, letter] of UNITS) {
    if (size >= limit * 0.99995) return trim((value / (letter === "k" ? 1e3 : limit)).toPrecision(3)) + letter;
  }
  if (size && size < 1e-3) return value.toExponential(1).replace(".0e", "e").replace("e-0", "e-");
  return trim(value.toPrecision(4));
}

function trim(text) {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

/** Five digits, for a read-out. */
function exact(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en-US");
  return Math.abs(value) >= 1e5 ? short(value) : trim(value.toPrecision(5));
}

const count = (value) => (value == null ? "–" : Math.round(value).toLocaleString("en-US"));

const percent = (value) => (value == null ? "–" : `${(100 * value).toFixed(value > 0.0995 && value < 0.9995 ? 0 : 1)} %`);

function duration(seconds) {
  if (seconds == null) return "–";
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60), hours = Math.floor(whole / 3600);
  if (hours >= 72) return `${Math.floor(hours / 24)}d ${hours % 24}h`;
  if (hours) return `${hours}h ${String(minutes % 60).padStart(2, "0")}m`;
  if (minutes) return `${minutes}m ${String(whole % 60).padStart(2, "0")}s`;
  return whole || !seconds ? `${whole}s` : `${seconds.toPrecision(2)}s`;
}

/** Everything that the parts of the page agree on. `runs`: id to {summary, view, heat}; `shown`: ids drawn. */
const state = {
  runs: new Map(),
  shown: [],
  axis: "s",
  smooth: 0,
  events: true,
  span: null, // [from, to] in steps
  logs: {}, // panel id to whether its axis is logarithmic
  cursor: null, // step under the pointer, the same in every chart
  wide: null,
};

const listeners = new Set();

/** Change the state and draw what depends on it. */
function change(parts) {
  Object.assign(state, parts);
  for (const listener of listeners) listener(parts);
}

const views = () => state.shown.map((id) => state.runs.get(id)).filter((run) => run && run.view);

/** A run keeps its colour while the page is open, whichever others are shown. */
function runColour(id) {
  return colour([...state.runs.keys()].indexOf(id));
}

/** Build a part anew only if what it shows has changed, and keep the focus where it was. */
function renew(holder, key, build) {
  if (holder.dataset.key === key) return;
  holder.dataset.key = key;
  const focused = holder.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  holder.replaceChildren(...[build()].flat().filter(Boolean));
  if (focused) [...holder.querySelectorAll("[data-focus]")].find((node) => node.dataset.focus === focused)?.focus();
}

function section(id, title, ...children) {
  return el("section", {id, "aria-labelledby": `${id}-title`}, el("h2", {id: `${id}-title`}, title), ...children);
}

/** Buttons of which one is pressed. */
function choice(label, options, chosen, pick) {
  const buttons = options.map(([value, text]) =>
    el("button", {type: "button", "aria-pressed": String(value === chosen()), onclick: () => pick(value)}, text));
  const group = el("div", {class: "choice", role: "group", "aria-label": label}, el("span", {}, label), ...buttons);
  group.update = () => buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(options[i][0] === chosen())));
  return group;
}
