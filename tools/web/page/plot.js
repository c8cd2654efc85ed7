// Plotly with the page's colours, and with strangers' text made harmless: Plotly reads <b>, <a> and entities in labels.
// A plot is drawn when it comes near the window, and all are before the page is printed.

import { afterPaint, byId, h, whenIdle } from "./dom.js";
import { colour } from "./theme.js";

const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };
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
  plot(element, ...make(), height, choose);
}

// Puts other shapes on a plot; where it is still to be drawn, `make` gives them.
export function reshape(element, change) {
  if (!element.layout || waiting.has(element)) return;
  window.Plotly.relayout(element, { shapes: change(element.layout.shapes) });
}

// Plotly's script stands in the page as text and runs for the first plot: most of its work is done at its start.
function plotly() {
  if (!window.Plotly) document.head.append(h("script", byId("plotly").textContent));
  return window.Plotly;
}

// Plotly keeps listeners when it draws again.
function plot(element, traces, { margin, ...settings }, height, choose) {
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
  plotly().react(element, traces, layout, CONFIG);
  if (!choose) return;
  element.removeAllListeners("plotly_click");
  element.on("plotly_click", ({ points: [point] }) => choose(point.customdata));
}

// Points, each with the text that is shown on it; Plotly may read markup in the texts.
export function points(x, y, text, settings) {
  return { x, y, text, mode: "markers", hovertemplate: "%{text}<extra></extra>", ...settings };
}

// Bars of one colour, or of one each.
export function bars(x, y, paint, settings) {
  const marker = { color: paint, line: { width: 0 } };
  return { x, y, type: "bar", textposition: "none", marker, hovertemplate: "%{text}<extra></extra>", ...settings };
}

// In the panel of what is selected: counts of a tensor's values, on a logarithmic axis.
export function counted(traces, title, { margin, ...settings } = {}) {
  const layout = {
    bargap: 0,
    margin: { l: 58, b: 34, r: 8, ...margin },
    xaxis: axis(title, { nticks: 6 }),
    yaxis: axis("count", { type: "log", dtick: 1, exponentformat: "SI" }),
    ...settings,
  };
  return [traces, layout];
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

// Words on the plot; `place` says where.
export function label(text, tone, place) {
  return { text: plain(text), showarrow: false, font: { size: 12, color: colour(tone) }, ...place };
}
