// From a figure to where it is drawn, and the axis that says so: plain, or the loss on a logarithm, downwards. `part`
// is the same as a share of the axis, from its lower end, and `label` the place of an annotation as Plotly wants it.

import { fixed, isNumber } from "./format.js";

const FLOAT_NOISE = 1e-9;
const MOST_TICKS = 9;

export function scaleOf(drawn, metric, logarithmic) {
  const figures = drawn.filter(isNumber);
  if (!logarithmic) return plainScale(figures);
  const losses = figures.map(metric.loss);
  const noise = metric.perfect === 1 ? FLOAT_NOISE : 0;
  const positive = losses.filter((loss) => loss > noise);
  const low = Math.floor(Math.log10(Math.min(...positive, 1e-2)));
  const high = Math.ceil(Math.log10(Math.max(...positive, 1e-2)));
  const exact = losses.some((loss) => loss < 10 ** low);
  const bottom = exact ? low - 1 : low;
  const step = Math.ceil((high - bottom + 1) / MOST_TICKS);
  const ticks = [];
  for (let power = bottom; power <= high; power += step) ticks.push(power);
  const words = ticks.map((power) => (exact && power === bottom ? "equal" : tickText(metric, power)));
  const [least, most] = [high + 0.15, bottom - 0.15];
  const at = (value) => Math.max(10 ** bottom, metric.loss(value));
  return {
    at,
    label: (value) => Math.log10(at(value)),
    part: (value) => (Math.log10(at(value)) - least) / (most - least),
    axis: { type: "log", range: [least, most], tickvals: ticks.map((power) => 10 ** power), ticktext: words },
  };
}

function plainScale(figures) {
  const [low, high] = [Math.min(...figures), Math.max(...figures)];
  const spare = 0.06 * (high - low || Math.abs(high) || 1);
  const [least, most] = [low - spare, high + spare];
  return {
    at: (value) => value,
    label: (value) => value,
    part: (value) => (value - least) / (most - least),
    axis: figures.length ? { range: [least, most] } : {},
  };
}

function tickText(metric, power) {
  return metric.loss(1) === 0 ? `${fixed(100 * (1 - 10 ** power), Math.max(0, -power - 2))}%` : `1e${power}`;
}
