// Plots of a table's columns over the rows shown: panels of figures, ranges of both runs, the distribution of a column.

import { h, show } from "./dom.js";
import { isNumber, number } from "./format.js";
import { LEGEND, axis, bars, draw, plain, points, reshape, upright } from "./plot.js";
import { colour } from "./theme.js";

const PANEL = 105;
const BINS = 30;
const WIDE = 1000;
const MOST_VALUES = 24;
const TONES = ["int8", "high", "good", "culprit", "accent"];
const MARKERS = ["circle", "square", "diamond", "triangle-up", "x"];

// By kind the pixels of a plot's height, and its traces and settings.
const KINDS = {
  panels: [(plot) => 60 + PANEL * figuresOf(plot).length, panels],
  ranges: [({ section }) => (runsOf(section).length > 1 ? 400 : 240), ranges],
  distribution: [() => 250, distribution],
};

// What draws one plot of a section, and marks the selected row in it.
export function startPlot(box, about, section) {
  const plot = { about, section, column: about.column };
  const element = box.querySelector(".plot");
  const [height, make] = KINDS[about.kind];
  const choose = (customdata) => {
    const row = section.rows[[customdata].flat()[0]];
    if (row) section.choose(row);
  };
  const draws = () => {
    const made = () => {
      const [traces, settings] = make(plot);
      return [traces, { shapes: marks(plot), ...settings }];
    };
    draw(element, height(plot), made, choose);
  };
  if (about.kind === "distribution") offerColumns(box, plot, draws);
  return { draw: draws, mark: () => reshape(element, () => marks(plot)) };
}

function offerColumns(box, plot, draws) {
  const columns = plot.section.columns.filter(({ kind }) => kind !== "name" && kind !== "index");
  const options = columns.map(({ key, title }) => h("option", { value: key, selected: key === plot.column }, title));
  const change = ({ target }) => {
    plot.column = target.value;
    draws();
  };
  if (!columns.some(({ key }) => key === plot.column)) plot.column = columns[0].key;
  show(box.querySelector(".choice"), h("select", { "aria-label": "Column", on: { change } }, options));
}

// Rows stand at their place in execution order, or in that of the file.
function places({ columns, shown }) {
  const index = columns.find(({ kind }) => kind === "index");
  return shown.map((row) => (index && isNumber(index.value(row)) ? index.value(row) : row.index));
}

function below({ columns }, settings) {
  const isIndexed = columns.some(({ kind }) => kind === "index");
  const title = isIndexed ? "layer, in execution order" : "row, in the order of the file";
  return axis(title, { zeroline: false, ...settings });
}

// The selected row.
function marks({ about, section }) {
  if (about.kind === "distribution") return [];
  const at = section.shown.findIndex(section.isChosen);
  const line = { color: colour("accent"), width: 1.5, dash: "dot" };
  return at < 0 ? [] : [upright(places(section)[at], line)];
}

const called = ({ columns }, wanted) => columns.find(({ key }) => key === wanted);
const axisName = (letter, place) => `${letter}${place ? place + 1 : ""}`;

function figuresOf({ about, section }) {
  return about.columns
    .map((key) => called(section, key))
    .filter((column) => column && section.rows.some((row) => isNumber(column.value(row))));
}

function panels(plot) {
  const { about, section } = plot;
  const columns = figuresOf(plot);
  const parts = groups(section, about.split);
  const several = parts.length > 1;
  const traces = columns.flatMap((column, panel) =>
    parts.map(({ name, rows, x }, part) =>
      points(
        x,
        rows.map(column.value),
        rows.map((row) => `${plain(section.name.text(row))}<br>${plain(column.title)} ${column.text(row)}`),
        {
          customdata: rows.map((row) => row.index),
          type: "scatter",
          name,
          legendgroup: name,
          showlegend: panel === 0 && several,
          marker: { color: colour(TONES[part % TONES.length]), symbol: MARKERS[part % MARKERS.length], size: 6 },
          yaxis: axisName("y", panel),
        },
      ),
    ),
  );
  const height = 1 / columns.length;
  const axes = columns.map((column, panel) => [
    axisName("yaxis", panel),
    axis(column.title, {
      domain: [1 - (panel + 0.86) * height, 1 - panel * height],
      type: about.log.includes(column.key) ? "log" : "linear",
      nticks: 4,
      zeroline: false,
      tickformat: column.unit === "percent" ? ".3~%" : "",
      exponentformat: "e",
    }),
  ]);
  const settings = {
    margin: { l: 76, t: several ? 26 : 8 },
    showlegend: several,
    legend: LEGEND,
    xaxis: below(section, { anchor: axisName("y", columns.length - 1) }),
    ...Object.fromEntries(axes),
  };
  return [traces, settings];
}

// The rows shown, apart by the values of a column.
function groups(section, key) {
  const at = places(section);
  const column = called(section, key);
  const found = new Map();
  section.shown.forEach((row, place) => {
    const name = column ? plain(column.text(row)) : "";
    if (!found.has(name)) found.set(name, { name, rows: [], x: [] });
    found.get(name).rows.push(row);
    found.get(name).x.push(at[place]);
  });
  return [...found.values()];
}

// In FP32 and in INT8, as far as the table has them.
function runsOf(section) {
  const range = (low, high, look) => low && high && { low: low.value, high: high.value, title: low.title, ...look };
  const find = (key) => called(section, key);
  const fp32 = { tone: "high", width: 0.9 };
  return [
    range(find("fp32_min") ?? find("min"), find("fp32_max") ?? find("max"), fp32),
    range(find("int8_min"), find("int8_max"), { tone: "int8", width: 0.4 }),
  ].filter(Boolean);
}

function ranges({ section }) {
  const { shown, name } = section;
  const runs = runsOf(section);
  const x = places(section);
  const text = shown.map((row) => plain(name.text(row)));
  const both = runs.length > 1;
  const drawn = runs.map(({ low, high, title, tone, width }) =>
    bars(
      x,
      shown.map((row) => (isNumber(low(row)) ? high(row) - low(row) : null)),
      colour(tone),
      {
        base: shown.map(low),
        customdata: shown.map((row) => [row.index, low(row), high(row)]),
        text,
        hovertemplate: "%{text}<br>%{customdata[1]:.4g} … %{customdata[2]:.4g}<extra></extra>",
        name: both ? title.replace(/ min$/, "") : "range",
        width,
      },
    ),
  );
  const settings = {
    barmode: "overlay",
    margin: { l: 76, t: both ? 26 : 8 },
    showlegend: both,
    legend: LEGEND,
    xaxis: below(section, { anchor: both ? "y2" : "y" }),
    yaxis: axis("min to max", { domain: [both ? 0.46 : 0, 1], exponentformat: "e" }),
    ...(both ? { yaxis2: axis("difference of the width", { domain: [0, 0.36], ticksuffix: "%" }) } : {}),
  };
  return [both ? [...drawn, difference(shown, runs, x, text)] : drawn, settings];
}

// How much wider the range is than in FP32, in per cent of FP32's.
function difference(shown, [fp32, int8], x, text) {
  const width = (row, { low, high }) => high(row) - low(row);
  const shares = shown.map((row) => {
    const before = width(row, fp32);
    const share = (100 * (width(row, int8) - before)) / before;
    return isNumber(share) ? share : null;
  });
  const paints = shares.map((share) => colour(share < 0 ? "good" : "culprit"));
  return bars(x, shares, paints, {
    customdata: shown.map((row) => row.index),
    text,
    hovertemplate: "%{text}<br>%{y:+.3g}%<extra></extra>",
    showlegend: false,
    yaxis: "y2",
  });
}

function distribution({ section, column: key }) {
  const column = called(section, key);
  const values = section.shown.map(column.value);
  const isNumeric = section.rows.some((row) => isNumber(column.value(row)));
  return isNumeric ? bins(column, values.filter(isNumber)) : counts(column, values);
}

// Equal bins from the least to the largest value; of its logarithm where the values are positive and far apart.
function bins(column, values) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const isLog = least > 0 && most / least > WIDE;
  const to = isLog ? Math.log10 : (value) => value;
  const back = isLog ? (value) => 10 ** value : (value) => value;
  const [low, high] = least === most ? [to(least) - 0.5, to(most) + 0.5] : [to(least), to(most)];
  const sizes = new Array(least === most ? 1 : BINS).fill(0);
  const width = (high - low) / sizes.length;
  values.forEach((value) => (sizes[Math.min(sizes.length - 1, Math.floor((to(value) - low) / width))] += 1));
  const edge = (place) => number(back(low + place * width));
  const drawn = bars(
    sizes.map((_, place) => low + (place + 0.5) * width),
    sizes,
    colour("int8"),
    {
      width,
      text: sizes.map((size, place) => `${edge(place)} … ${edge(place + 1)}: ${size}`),
      marker: { color: colour("int8"), line: { width: 1, color: colour("background") } },
    },
  );
  const ticks = isLog ? logTicks(low, high) : {};
  const title = isLog ? `${column.title}, logarithmic` : column.title;
  return distributed(drawn, axis(title, { zeroline: false, ...ticks }));
}

function logTicks(low, high) {
  const step = Math.max(1, Math.ceil((high - low) / 8));
  const tickvals = [];
  for (let at = Math.ceil(low); at <= high; at += step) tickvals.push(at);
  return { tickvals, ticktext: tickvals.map((at) => number(10 ** at)) };
}

function counts(column, values) {
  const found = new Map();
  values.forEach((value) => found.set(value || "(none)", (found.get(value || "(none)") ?? 0) + 1));
  const most = [...found].sort((one, other) => other[1] - one[1]).slice(0, MOST_VALUES);
  const drawn = bars(
    most.map(([value]) => plain(value)),
    most.map(([, size]) => size),
    colour("int8"),
    { hovertemplate: "%{x}: %{y}<extra></extra>" },
  );
  return distributed(drawn, axis(column.title, { type: "category", automargin: true }), 60);
}

function distributed(drawn, xaxis, b = 40) {
  return [[drawn], { margin: { l: 76, b }, xaxis, yaxis: axis("rows", { rangemode: "tozero" }) }];
}
