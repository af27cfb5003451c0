// From figures to places: axes with round ticks, straight or logarithmic, and the three things curves go over.

/** Round values inside low..high, about `wanted` of them. */
function ticks(low, high, wanted) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted;
  let step = 10 ** Math.floor(Math.log10(rough));
  for (const multiple of [1, 2, 2.5, 5, 10]) {
    if (step * multiple >= rough * 0.999) {
      step *= multiple;
      break;
    }
  }
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i++) found.push(+(i * step).toPrecision(12));
  return found;
}

/** Round values of a logarithmic axis from low to high, powers of ten over wide ranges. */
function logTicks(low, high) {
  for (const digits of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const digit of digits) {
        const value = +(digit * 10 ** power).toPrecision(6);
        if (value >= low && value <= high) found.push(value);
      }
    }
    if (found.length >= 3) {
      const every = Math.ceil(found.length / 6);
      return found.filter((_, i) => i % every === 0);
    }
  }
  return ticks(low, high, 4).filter((value) => value > 0);
}

/** {at(value), values, low, high} of the vertical axis over `values`; places count from `bottom` up to `top`. */
function verticalAxis(values, log, top, bottom) {
  const usable = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  if (!usable.length) return null;
  let low = usable[0], high = usable[0];
  for (const value of usable) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (log) {
    const pad = Math.max(0.03, (Math.log10(high) - Math.log10(low)) * 0.06);
    const from = Math.log10(low) - pad, to = Math.log10(high) + pad;
    const at = (value) => bottom - ((Math.log10(value) - from) / (to - from)) * (bottom - top);
    return {at, values: logTicks(10 ** from, 10 ** to), low, high};
  }
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  let from = low - pad;
  const to = high + pad;
  if (low >= 0 && from < 0) from = 0;
  const at = (value) => bottom - ((value - from) / (to - from)) * (bottom - top);
  return {at, values: ticks(from, to, 4), low, high};
}

/** What curves go over: the name of the axis, and its values as text. */
const AXES = {
  s: {name: "steps", text: (value) => `step ${count(value)}`, unit: () => [1, "steps"]},
  tokens: {name: "tokens", text: (value) => `${short(value)} tokens`, unit: () => [1, "tokens"]},
  time: {
    name: "times",
    text: (value) => duration(value),
    unit: (span) => (span > 4 * 86400 ? [86400, "days"] : span > 7200 ? [3600, "hours"] : span > 240 ? [60, "minutes"] : [1, "seconds"]),
  },
};

/** Piecewise linear: where `x` lies among rising `xs`, as the same place among `ys`. */
function between(x, xs, ys) {
  const last = xs.length - 1;
  if (last < 0) return x;
  if (x <= xs[0]) return ys[0];
  if (x >= xs[last]) return ys[last];
  let low = 0, high = last;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  const width = xs[high] - xs[low];
  return ys[low] + (width ? (x - xs[low]) / width : 0) * (ys[high] - ys[low]);
}

/** The runs shown that have a place on the chosen axis: not every record has tokens or times. */
const placed = () => views().filter(({view}) => view.axis.s.length && view.axis[state.axis].length);

/** A run's step as a place on the chosen axis. */
function along(view, step) {
  return state.axis === "s" ? step : between(step, view.axis.s, view.axis[state.axis]);
}

function stepAt(view, x) {
  return state.axis === "s" ? x : between(x, view.axis[state.axis], view.axis.s);
}

/** Index of the value of rising `xs` nearest to `x`. */
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  return high >= 0 && Math.abs(xs[high] - x) < Math.abs(xs[low] - x) ? high : low;
}

/** Exponential average over steps, without the pull of the first value; `reach` in steps. */
function smoothed(steps, values, reach) {
  let sum = 0, weight = 0;
  return values.map((value, i) => {
    const keep = i ? Math.exp(-(steps[i] - steps[i - 1]) / reach) : 0;
    sum = sum * keep + value * (1 - keep || 1);
    weight = weight * keep + (1 - keep || 1);
    return sum / weight;
  });
}
