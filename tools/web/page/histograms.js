// Histograms of a tensor in FP32 and INT8 over each other, and a weight's channels with the outlier marked.

import { LOW, isNumber } from "./format.js";
import { LEGEND, axis, bars, counted, draw, label, upright } from "./plot.js";
import { colour } from "./theme.js";

const LEVELS = 127;

export function drawHistogram(element, tensor) {
  draw(element, 190, () => histogram(tensor));
}

function histogram(tensor) {
  const { low, high, fp32, int8 } = tensor.histogram;
  const width = (high - low) / Math.max(1, fp32.length);
  const x = fp32.map((_, place) => low + (place + 0.5) * width);
  const steps = (sizes, name, tone) =>
    bars(
      x,
      sizes.map((size) => size || null),
      colour(tone),
      { name, width, opacity: 0.6, hovertemplate: `%{x:.4g}: %{y} values<extra>${name}</extra>` },
    );
  const rounded = int8.length ? [steps(int8, tensor.scale === null ? LOW : `${LOW}, rounded`, "int8")] : [];
  return counted([steps(fp32, "FP32", "high"), ...rounded], "value", {
    barmode: "overlay",
    margin: { t: 26 },
    showlegend: true,
    legend: { ...LEGEND, y: 1.02, font: { size: 12 } },
    shapes: limits(tensor),
  });
}

// Where INT8's range ends, if that is in sight.
function limits({ scale, scales, histogram }) {
  if (!isNumber(scale) || scales) return [];
  const ends = [-LEVELS * scale, LEVELS * scale].filter((end) => histogram.low <= end && end <= histogram.high);
  return ends.map((end) => upright(end, { color: colour("culprit"), width: 1.5, dash: "dash" }));
}

export function drawChannels(element, tensor) {
  draw(element, 180, () => channels(tensor));
}

function channels({ min, max, outlier }) {
  const x = min.map((_, place) => place);
  const paints = x.map((place) => colour(place === outlier ? "culprit" : "int8"));
  const spans = max.map((value, place) => value - min[place]);
  const drawn = bars(x, spans, paints, {
    base: min,
    customdata: min.map((value, place) => [value, max[place]]),
    hovertemplate: "channel %{x}: %{customdata[0]:.4g} … %{customdata[1]:.4g}<extra></extra>",
  });
  const mark = label(`channel ${outlier}`, "culprit", { x: outlier, y: max[outlier], yshift: 10 });
  const settings = {
    bargap: min.length > 64 ? 0 : 0.2,
    margin: { l: 58, t: 18, b: 34, r: 8 },
    xaxis: axis("output channel, min to max", { nticks: 8 }),
    yaxis: axis("", { nticks: 5 }),
    annotations: isNumber(outlier) ? [mark] : [],
  };
  return [[drawn], settings];
}
