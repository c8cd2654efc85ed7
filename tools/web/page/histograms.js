// Histograms of a tensor in FP32 and INT8 over each other, and a weight's channels with the outlier marked.

import { LOW, isNumber } from "./format.js";
import { axis, draw } from "./plot.js";
import { colour } from "./theme.js";

const LEVELS = 127;

export function drawHistogram(element, tensor) {
  const { low, high, fp32, int8 } = tensor.histogram;
  const width = (high - low) / Math.max(1, fp32.length);
  const x = fp32.map((_, place) => low + (place + 0.5) * width);
  const steps = (y, name, paint) => ({
    x,
    y: y.map((size) => size || null),
    name,
    type: "bar",
    width,
    marker: { color: paint, line: { width: 0 } },
    opacity: 0.6,
    hovertemplate: `%{x:.4g}: %{y} values<extra>${name}</extra>`,
  });
  const rounded = int8.length
    ? [steps(int8, tensor.scale === null ? `${LOW}` : `${LOW}, rounded`, colour("int8"))]
    : [];
  draw(element, [steps(fp32, "FP32", colour("high")), ...rounded], {
    height: 190,
    barmode: "overlay",
    bargap: 0,
    margin: { l: 58, t: 26, b: 34, r: 8 },
    showlegend: true,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
    xaxis: axis("value", { nticks: 6 }),
    yaxis: axis("count", { type: "log", dtick: 1, exponentformat: "SI" }),
    shapes: limits(tensor),
  });
}

// Where INT8's range ends, if that is in sight.
function limits({ scale, scales, histogram }) {
  if (!isNumber(scale) || scales) return [];
  const ends = [-LEVELS * scale, LEVELS * scale].filter((end) => histogram.low <= end && end <= histogram.high);
  const style = { color: colour("culprit"), width: 1.5, dash: "dash" };
  return ends.map((end) => ({ type: "line", yref: "paper", y0: 0, y1: 1, x0: end, x1: end, line: style }));
}

export function drawChannels(element, { min, max, outlier }) {
  const x = min.map((_, place) => place);
  const paints = x.map((place) => colour(place === outlier ? "culprit" : "int8"));
  const marked = isNumber(outlier) ? [mark(outlier, max[outlier])] : [];
  const bars = {
    x,
    y: max.map((value, place) => value - min[place]),
    base: min,
    type: "bar",
    marker: { color: paints, line: { width: 0 } },
    customdata: min.map((value, place) => [value, max[place]]),
    hovertemplate: "channel %{x}: %{customdata[0]:.4g} … %{customdata[1]:.4g}<extra></extra>",
  };
  draw(element, [bars], {
    height: 180,
    bargap: min.length > 64 ? 0 : 0.2,
    margin: { l: 58, t: 18, b: 34, r: 8 },
    xaxis: axis("output channel, min to max", { nticks: 8 }),
    yaxis: axis("", { nticks: 5 }),
    annotations: marked,
  });
}

function mark(channel, top) {
  return {
    x: channel,
    y: top,
    text: `channel ${channel}`,
    yshift: 10,
    showarrow: false,
    font: { size: 12, color: colour("culprit") },
  };
}
