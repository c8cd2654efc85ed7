// Plotly with the page's colours, and with strangers' text made harmless: Plotly reads <b>, <a> and entities in labels.
// A plot is drawn when it comes near the window, and all are before the page is printed.

import { afterPaint, byId, h, onPrint, whenIdle } from "./dom.js";
import { fixed, isNumber } from "./format.js";
import { colour } from "./theme.js";

export const LEGEND = { orientation: "h", x: 0, y: 1, yanchor: "bottom" };

export function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

export function axis(title, settings = {}) {
  return {
    gridcolor: colour("grid"),
    linecolor: colour("line"),
    zerolinecolor: colour("line"),
    tickfont: { size: 12 },
    title: { text: plain(title), font: { size: 12 }, standoff: 10 },
    ...settings,
  };
}

// By element what is still to be drawn.
const waiting = new WeakMap();
const painted = new Promise(afterPaint);
const watcher = new IntersectionObserver(
  (entries) => {
    const near = entries.filter(({ isIntersecting }) => isIntersecting);
    // A click between two plots is not kept waiting.
    for (const { target } of near) whenIdle(() => drawNow(target));
  },
  { rootMargin: "50%" },
);

// Draws a plot of `height` pixels once it is near the window: what `make` returns then, traces and settings. `choose`
// gets the custom data of a point that is clicked.
export function draw(element, height, make, choose = null) {
  element.style.minHeight = `${height}px`;
  element.setAttribute("aria-busy", "true");
  waiting.set(element, { height, make, choose });
  watcher.unobserve(element);
  painted.then(() => watcher.observe(element));
}

export function drawAll() {
  document.querySelectorAll("main .plot[aria-busy]").forEach(drawNow);
}

// A plot that is hidden goes on waiting.
function drawNow(element) {
  if (!waiting.has(element) || !element.offsetParent) return;
  const { height, make, choose } = waiting.get(element);
  waiting.delete(element);
  watcher.unobserve(element);
  element.removeAttribute("aria-busy");
  const [traces, { margin, ...settings }] = make();
  const font = { family: colour("font"), size: 13, color: colour("text") };
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font,
    hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("line"), font, align: "left" },
    margin: { l: 56, r: 12, t: 8, b: 40, ...margin },
    showlegend: false,
    height,
    ...settings,
  };
  plotly().react(element, traces, layout, { displaylogo: false, responsive: true, displayModeBar: false });
  if (!choose) return;
  element.removeAllListeners("plotly_click"); // Plotly keeps them when it draws again.
  element.on("plotly_click", ({ points: [point] }) => choose(point.customdata));
}

// Puts another mark on what is selected; a plot that is still to be drawn has it from `make`.
export function markSelected(element, marks) {
  if (!element.layout || waiting.has(element)) return;
  const others = element.layout.shapes.filter(({ name }) => name !== "selected");
  window.Plotly.relayout(element, { shapes: [...others, ...marks] });
}

// Plotly's script stands in the page as text and runs for the first plot: most of its work is done at its start.
function plotly() {
  if (!window.Plotly) document.head.append(h("script", byId("plotly").textContent));
  return window.Plotly;
}

// Of rows what Plotly draws: by name of each part, such as "x", its value for every row.
export function over(rows, parts) {
  return Object.fromEntries(Object.entries(parts).map(([name, part]) => [name, rows.map(part)]));
}

const TEXT_SHOWN = "%{text}<extra></extra>";

// A point for each row; the part `text` is shown on it, and Plotly may read markup there.
export function points(rows, parts, settings) {
  return { mode: "markers", hovertemplate: TEXT_SHOWN, ...over(rows, parts), ...settings };
}

// A bar for each row, of one colour, or of one each.
export function bars(rows, paint, parts, settings) {
  const marker = { color: paint, line: { width: 0 } };
  return { type: "bar", textposition: "none", marker, hovertemplate: TEXT_SHOWN, ...over(rows, parts), ...settings };
}

// What has to be reached: a line across.
export function targetLine(height, tone = "good", dash = "dash") {
  const line = { color: colour(tone), width: 1.5, dash };
  return { type: "line", xref: "paper", x0: 0, x1: 1, y0: height, y1: height, line };
}

// A line from the bottom to the top.
export function upright(x, line) {
  return { type: "line", yref: "paper", y0: 0, y1: 1, x0: x, x1: x, line };
}

// What is selected.
export function selectedAt(x) {
  return { ...upright(x, { color: colour("accent"), width: 4 }), layer: "below", opacity: 0.55, name: "selected" };
}

// Words on the plot; `place` says where.
export function label(text, tone, place) {
  return { text: plain(text), showarrow: false, font: { size: 12, color: colour(tone) }, ...place };
}

// From a figure to where it is drawn, and the axis that says so: plain, or the loss on a logarithm, downwards. `part`
// is the same as a share of the axis, from its lower end, and `label` the place of an annotation as Plotly wants it.
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

// On paper: all plots, as wide as the page, drawn before it is printed and put back after; what to do is unfolded.
const PAPER = 690;

export function startPrint() {
  let kept = [];
  let opened = [];
  const before = () => {
    drawAll();
    kept = [...document.querySelectorAll("main .js-plotly-plot")]
      .filter((plot) => plot.offsetParent)
      .map((plot) => [plot, plot.layout.width]);
    opened = [...document.querySelectorAll("#advice details.action:not([open])")];
    for (const details of opened) details.open = true;
    for (const [plot] of kept) window.Plotly.relayout(plot, { width: PAPER });
  };
  onPrint(before, () => {
    for (const [plot, width] of kept) window.Plotly.relayout(plot, { width, autosize: width === undefined });
    for (const details of opened) details.open = false;
    kept = opened = [];
  });
}
