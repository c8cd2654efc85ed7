// Plots of one tensor in the panel: its histograms in FP32 and INT8 over each other, a weight's channels with the outlier
// marked, and a heat map of how the values of each channel are spread.

import { h } from "./dom.js";
import { LOW, clamp, count, isNumber, number } from "./format.js";
import { LEGEND, axis, bars, draw, label, upright } from "./plot.js";
import { colour } from "./theme.js";

const LEVELS = 127;
const LEAST = 0.14;
const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Enter: 0, " ": 0 };
const ABOUT = "The darker, the more values of the channel. A click shows the histogram of a channel.";

function plotOf(height, make) {
  const plot = h("div.plot.small");
  draw(plot, height, make);
  return plot;
}

// Counts of values, on a logarithmic axis.
function counted(traces, title, { margin, ...settings } = {}) {
  const layout = {
    bargap: 0,
    margin: { l: 58, b: 34, r: 8, ...margin },
    xaxis: axis(title, { nticks: 6 }),
    yaxis: axis("count", { type: "log", dtick: 1, exponentformat: "SI" }),
    ...settings,
  };
  return [traces, layout];
}

export function histogramOf(tensor) {
  const { low, high, fp32, int8 } = tensor.histogram;
  const width = (high - low) / Math.max(1, fp32.length);
  const parts = { x: (_, place) => low + (place + 0.5) * width, y: (size) => size || null };
  const steps = (sizes, name, tone) => {
    const hovertemplate = `%{x:.4g}: %{y} values<extra>${name}</extra>`;
    return bars(sizes, colour(tone), parts, { name, width, opacity: 0.6, hovertemplate });
  };
  return plotOf(190, () => {
    const rounded = int8.length ? [steps(int8, tensor.scale === null ? LOW : `${LOW}, rounded`, "int8")] : [];
    return counted([steps(fp32, "FP32", "high"), ...rounded], "value", {
      barmode: "overlay",
      margin: { t: 26 },
      showlegend: true,
      legend: { ...LEGEND, y: 1.02, font: { size: 12 } },
      shapes: limits(tensor),
    });
  });
}

// Where INT8's range ends, if that is in sight.
function limits({ scale, scales, histogram: { low, high } }) {
  if (!isNumber(scale) || scales) return [];
  const ends = [-LEVELS * scale, LEVELS * scale].filter((end) => low <= end && end <= high);
  return ends.map((end) => upright(end, { color: colour("culprit"), width: 1.5, dash: "dash" }));
}

export function channelsOf({ min, max, outlier }) {
  const parts = {
    x: (_, place) => place,
    y: (low, place) => max[place] - low,
    base: (low) => low,
    customdata: (low, place) => [low, max[place]],
  };
  return plotOf(180, () => {
    const paints = min.map((_, place) => colour(place === outlier ? "culprit" : "int8"));
    const hovertemplate = "channel %{x}: %{customdata[0]:.4g} … %{customdata[1]:.4g}<extra></extra>";
    const mark = label(`channel ${outlier}`, "culprit", { x: outlier, y: max[outlier], yshift: 10 });
    const settings = {
      bargap: min.length > 64 ? 0 : 0.2,
      margin: { l: 58, t: 18, b: 34, r: 8 },
      xaxis: axis("output channel, min to max", { nticks: 8 }),
      yaxis: axis("", { nticks: 5 }),
      annotations: isNumber(outlier) ? [mark] : [],
    };
    return [[bars(min, paints, parts, { hovertemplate })], settings];
  });
}

// How the values of each channel of a weight are spread: a heat map with a column for each channel, as a canvas, and
// the histogram of a channel that is chosen on it, by a click or with the arrow keys.
export function mapOf(map) {
  const levels = map.rows.map((row) => [...row].map((digit) => parseInt(digit, 36))); // a digit to the base of 36 a bin
  const width = levels.length;
  const channels = width * map.step;
  const canvas = h("canvas", {
    width,
    height: levels[0].length,
    role: "slider",
    tabindex: 0,
    "aria-valuemin": 0,
    "aria-valuemax": width - 1,
    "aria-valuenow": 0,
    "aria-label": `How the values of ${channels} channels are spread from ${number(map.low)} to ${number(map.high)}`,
  });
  const plot = h("div.plot.small");
  const choose = (place) => {
    canvas.setAttribute("aria-valuenow", place);
    canvas.setAttribute("aria-valuetext", channelsAt(map, place));
    box.append(plot);
    draw(plot, 170, () => channel(map, levels[place], place));
  };
  const inside = (share, parts) => clamp(Math.floor(share * parts), 0, parts - 1);
  const columnAt = ({ offsetX }) => inside(offsetX / canvas.clientWidth, width);
  canvas.addEventListener("click", (event) => choose(columnAt(event)));
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    const now = Number(canvas.getAttribute("aria-valuenow"));
    choose(clamp(now + (plot.isConnected ? STEPS[event.key] : 0), 0, width - 1));
  });
  const said = h("p.under", ABOUT);
  canvas.addEventListener("pointermove", (event) => {
    const place = columnAt(event);
    const bins = levels[place].length;
    const bin = bins - 1 - inside(event.offsetY / canvas.clientHeight, bins);
    const [low, high] = [edgeOf(map, bins, bin), edgeOf(map, bins, bin + 1)].map((edge) => number(edge));
    said.textContent = `${channelsAt(map, place)}, ${low} … ${high}: ${valuesOf(levels[place][bin])}`;
  });
  canvas.addEventListener("pointerleave", () => (said.textContent = ABOUT));
  const box = h(
    "div.map",
    h("span.map-high", number(map.high)),
    h("span.map-low", number(map.low)),
    canvas,
    h("span.map-first", "channel 0"),
    h("span.map-last", map.step > 1 ? `about ${count(channels - 1)}` : count(channels - 1)),
    said,
  );
  paintMap(canvas.getContext("2d"), levels);
  return box;
}

function paintMap(paint, levels) {
  const most = Math.max(1, ...levels.flat());
  paint.fillStyle = colour("int8");
  levels.forEach((column, x) =>
    column.forEach((level, bin) => {
      if (!level) return;
      paint.globalAlpha = LEAST + ((1 - LEAST) * level) / most;
      paint.fillRect(x, column.length - 1 - bin, 1, 1);
    }),
  );
}

const edgeOf = ({ low, high }, bins, bin) => low + (bin * (high - low)) / bins;

function channelsAt({ step }, place) {
  return step > 1 ? `channels ${place * step} to ${(place + 1) * step - 1}` : `channel ${place}`;
}

// A level is the number of bits of a count.
function valuesOf(level) {
  if (level < 2) return level ? "1 value" : "no value";
  return `${count(2 ** (level - 1))} to ${count(2 ** level - 1)} values`;
}

function channel(map, levels, place) {
  const bins = levels.length;
  const parts = {
    x: (_, bin) => edgeOf(map, bins, bin + 0.5),
    y: (level) => (level ? Math.sqrt(2 ** (level - 1) * (2 ** level - 1)) : null),
    text: valuesOf,
  };
  const look = { width: (map.high - map.low) / bins, hovertemplate: "%{x:.4g}: %{text}<extra></extra>" };
  return counted([bars(levels, colour("int8"), parts, look)], `value in ${channelsAt(map, place)}`);
}
