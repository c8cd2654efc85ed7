// Plots of a table's columns over the rows shown: panels of figures, ranges of both runs, the distribution of a column.

import { h, show } from "./dom.js";
import { isNumber, number } from "./format.js";
import { axis, draw, plain } from "./plot.js";
import { colour } from "./theme.js";

const PANEL = 105;
const BINS = 30;
const WIDE = 1000;
const MOST_VALUES = 24;
const TONES = ["int8", "high", "good", "culprit", "accent"];
const MARKERS = ["circle", "square", "diamond", "triangle-up", "x"];

const KINDS = { panels: drawPanels, ranges: drawRanges, distribution: drawDistribution };

// What draws one plot of a section, and marks the selected row in it.
export function startPlot(box, about, section) {
  const element = box.querySelector(".plot");
  const plot = { about, section, element, column: about.column };
  if (about.kind === "distribution") offerColumns(box, plot);
  let listens = false;
  const draws = () => {
    KINDS[about.kind](plot);
    if (!listens) element.on("plotly_click", ({ points: [point] }) => chosenBy(plot, point));
    listens = true;
    mark(plot);
  };
  return { draw: draws, mark: () => listens && mark(plot) };
}

function chosenBy({ section }, { customdata }) {
  const row = section.rows[[customdata].flat()[0]];
  if (row) section.choose(row);
}

function offerColumns(box, plot) {
  const columns = plot.section.columns.filter(({ kind }) => kind !== "name" && kind !== "index");
  const options = columns.map(({ key, title }) => h("option", { value: key, selected: key === plot.column }, title));
  const on = {
    change: ({ target }) => {
      plot.column = target.value;
      drawDistribution(plot);
    },
  };
  if (!columns.some(({ key }) => key === plot.column)) plot.column = columns[0].key;
  show(box.querySelector(".choice"), [h("select", { "aria-label": "Column", on }, options)]);
}

// Rows stand at their place in execution order, or in that of the file.
function places({ columns, shown }) {
  const index = columns.find(({ kind }) => kind === "index");
  return shown.map((row) => (index && isNumber(row.cells[index.place]) ? row.cells[index.place] : row.index));
}

function below({ columns }) {
  return columns.some(({ kind }) => kind === "index") ? "layer, in execution order" : "row, in the order of the file";
}

function mark({ about, section, element }) {
  if (about.kind === "distribution") return;
  const all = places(section);
  const at = section.shown.findIndex(section.isChosen);
  const line = { color: colour("accent"), width: 1.5, dash: "dot" };
  const shapes = at < 0 ? [] : [{ type: "line", yref: "paper", y0: 0, y1: 1, x0: all[at], x1: all[at], line }];
  window.Plotly.relayout(element, { shapes });
}

function drawPanels({ about, section, element }) {
  const columns = about.columns
    .map((key) => section.columns.find((column) => column.key === key))
    .filter((column) => column && section.rows.some((row) => isNumber(column.value(row))));
  const parts = groups(section, about.split);
  const traces = columns.flatMap((column, panel) =>
    parts.map(([name, rows, x], part) => ({
      x,
      y: rows.map((row) => column.value(row)),
      customdata: rows.map((row) => row.index),
      text: rows.map((row) => `${plain(section.name.text(row))}<br>${plain(column.title)} ${column.text(row)}`),
      hovertemplate: "%{text}<extra></extra>",
      type: "scatter",
      mode: "markers",
      name,
      legendgroup: name,
      showlegend: panel === 0 && parts.length > 1,
      marker: { color: colour(TONES[part % TONES.length]), symbol: MARKERS[part % MARKERS.length], size: 6 },
      yaxis: `y${panel ? panel + 1 : ""}`,
    })),
  );
  const height = 1 / columns.length;
  const axes = columns.map((column, panel) => [
    `yaxis${panel ? panel + 1 : ""}`,
    axis(column.title, {
      domain: [1 - (panel + 0.86) * height, 1 - panel * height],
      type: about.log.includes(column.key) ? "log" : "linear",
      nticks: 4,
      zeroline: false,
      tickformat: column.unit === "percent" ? ".3~%" : "",
      exponentformat: "e",
    }),
  ]);
  draw(element, traces, {
    height: 60 + PANEL * columns.length,
    margin: { l: 76, t: parts.length > 1 ? 26 : 8 },
    showlegend: parts.length > 1,
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom" },
    xaxis: axis(below(section), { anchor: `y${columns.length > 1 ? columns.length : ""}`, zeroline: false }),
    ...Object.fromEntries(axes),
  });
}

// The rows shown, apart by the values of a column: name, rows, places.
function groups(section, key) {
  const at = places(section);
  const column = section.columns.find((one) => one.key === key);
  const found = new Map();
  section.shown.forEach((row, place) => {
    const name = column ? plain(column.text(row)) : "";
    if (!found.has(name)) found.set(name, [name, [], []]);
    found.get(name)[1].push(row);
    found.get(name)[2].push(at[place]);
  });
  return [...found.values()];
}

function drawRanges({ section, element }) {
  const find = (key) => section.columns.find((column) => column.key === key);
  const runs = [
    { low: find("fp32_min") ?? find("min"), high: find("fp32_max") ?? find("max"), tone: "high", width: 0.9 },
    { low: find("int8_min"), high: find("int8_max"), tone: "int8", width: 0.4 },
  ].filter(({ low, high }) => low && high);
  const x = places(section);
  const ends = (row, run) => [run.low.value(row), run.high.value(row)];
  const bars = runs.map((run) => ({
    x,
    base: section.shown.map((row) => ends(row, run)[0]),
    y: section.shown.map((row) => (isNumber(ends(row, run)[0]) ? ends(row, run)[1] - ends(row, run)[0] : null)),
    customdata: section.shown.map((row) => [row.index, ...ends(row, run)]),
    text: section.shown.map((row) => plain(section.name.text(row))),
    textposition: "none",
    hovertemplate: "%{text}<br>%{customdata[1]:.4g} … %{customdata[2]:.4g}<extra></extra>",
    type: "bar",
    name: runs.length > 1 ? run.low.title.replace(/ min$/, "") : "range",
    width: run.width,
    marker: { color: colour(run.tone), line: { width: 0 } },
  }));
  const both = runs.length > 1;
  draw(element, both ? [...bars, difference(section, runs, x)] : bars, {
    height: both ? 400 : 240,
    barmode: "overlay",
    margin: { l: 76, t: both ? 26 : 8 },
    showlegend: both,
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom" },
    xaxis: axis(below(section), { anchor: both ? "y2" : "y", zeroline: false }),
    yaxis: axis("min to max", { domain: [both ? 0.46 : 0, 1], exponentformat: "e" }),
    ...(both ? { yaxis2: axis("difference of the width", { domain: [0, 0.36], ticksuffix: "%" }) } : {}),
  });
}

// How much wider the range is than in FP32, in per cent of FP32's.
function difference(section, [fp32, int8], x) {
  const width = (row, { low, high }) => high.value(row) - low.value(row);
  const shares = section.shown.map((row) => {
    const before = width(row, fp32);
    const share = (100 * (width(row, int8) - before)) / before;
    return isNumber(share) ? share : null;
  });
  return {
    x,
    y: shares,
    customdata: section.shown.map((row) => row.index),
    text: section.shown.map((row) => plain(section.name.text(row))),
    textposition: "none",
    hovertemplate: "%{text}<br>%{y:+.3g}%<extra></extra>",
    type: "bar",
    showlegend: false,
    yaxis: "y2",
    marker: { color: shares.map((share) => colour(share < 0 ? "good" : "culprit")), line: { width: 0 } },
  };
}

function drawDistribution({ section, element, column: key }) {
  const column = section.columns.find((one) => one.key === key);
  const values = section.shown.map((row) => column.value(row));
  if (column.numeric) drawBins(element, column, values.filter(isNumber));
  else drawCounts(element, column, values);
}

// Equal bins from the least to the largest value; of its logarithm where the values are positive and far apart.
function drawBins(element, column, values) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const isLog = least > 0 && most / least > WIDE;
  const to = isLog ? Math.log10 : (value) => value;
  const back = isLog ? (value) => 10 ** value : (value) => value;
  const [low, high] = least === most ? [to(least) - 0.5, to(most) + 0.5] : [to(least), to(most)];
  const bins = least === most ? 1 : BINS;
  const width = (high - low) / bins;
  const counts = new Array(bins).fill(0);
  values.forEach((value) => (counts[Math.min(bins - 1, Math.floor((to(value) - low) / width))] += 1));
  const edge = (place) => number(back(low + place * width));
  const bars = {
    x: counts.map((_, place) => low + (place + 0.5) * width),
    y: counts,
    width,
    text: counts.map((size, place) => `${edge(place)} … ${edge(place + 1)}: ${size}`),
    textposition: "none",
    hovertemplate: "%{text}<extra></extra>",
    type: "bar",
    marker: { color: colour("int8"), line: { width: 1, color: colour("background") } },
  };
  const ticks = isLog ? logTicks(low, high) : {};
  draw(element, [bars], {
    height: 240,
    margin: { l: 76 },
    xaxis: axis(isLog ? `${column.title}, logarithmic` : column.title, { zeroline: false, ...ticks }),
    yaxis: axis("rows", { rangemode: "tozero" }),
  });
}

function logTicks(low, high) {
  const step = Math.max(1, Math.ceil((high - low) / 8));
  const tickvals = [];
  for (let at = Math.ceil(low); at <= high; at += step) tickvals.push(at);
  return { tickvals, ticktext: tickvals.map((at) => number(10 ** at)) };
}

function drawCounts(element, column, values) {
  const found = new Map();
  values.forEach((value) => found.set(value || "(none)", (found.get(value || "(none)") ?? 0) + 1));
  const most = [...found].sort((one, other) => other[1] - one[1]).slice(0, MOST_VALUES);
  const bars = {
    x: most.map(([value]) => plain(value)),
    y: most.map(([, size]) => size),
    hovertemplate: "%{x}: %{y}<extra></extra>",
    type: "bar",
    marker: { color: colour("int8"), line: { width: 0 } },
  };
  draw(element, [bars], {
    height: 260,
    margin: { l: 76, b: 60 },
    xaxis: axis(column.title, { type: "category", automargin: true }),
    yaxis: axis("rows", { rangemode: "tozero" }),
  });
}
