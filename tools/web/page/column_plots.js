// Plots of a table's columns over the rows shown: panels of figures, ranges of both runs, the distribution of a column.

import { h, options, show } from "./dom.js";
import { grouped, isNumber, number } from "./format.js";
import { LEGEND, axis, bars, draw, markSelected, plain, points, selectedAt } from "./plot.js";
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
  const made = () => {
    const [traces, settings] = make(plot);
    return [traces, { shapes: marks(plot), ...settings }];
  };
  const choose = (index) => section.rows[index] && section.choose(section.rows[index]);
  const draws = () => draw(element, height(plot), made, choose);
  if (about.kind === "distribution") offerColumns(box, plot, draws);
  return { draw: draws, mark: () => markSelected(element, marks(plot)) };
}

function offerColumns(box, plot, draws) {
  const columns = plot.section.columns.filter(({ kind }) => kind !== "name" && kind !== "index");
  const change = ({ target }) => {
    plot.column = target.value;
    draws();
  };
  if (!columns.some(({ key }) => key === plot.column)) plot.column = columns[0].key;
  const titles = columns.map(({ key, title }) => [key, title]);
  show(
    box.querySelector(".choice"),
    h("select", { "aria-label": "Column", on: { change } }, options(titles, plot.column)),
  );
}

// A row stands at its place in execution order, or in that of the file.
function placeIn({ columns }) {
  const index = columns.find(({ kind }) => kind === "index");
  return (row) => index?.value(row) ?? row.index;
}

function below({ columns }, anchor) {
  const isIndexed = columns.some(({ kind }) => kind === "index");
  const title = isIndexed ? "layer, in execution order" : "row, in the order of the file";
  return axis(title, { zeroline: false, anchor });
}

function marks({ about, section }) {
  const row = about.kind === "distribution" ? null : section.shown.find(section.isChosen);
  return row ? [selectedAt(placeIn(section)(row))] : [];
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
  const split = called(section, about.split);
  const parts = [...grouped(section.shown, (row) => (split ? plain(split.text(row)) : ""))];
  const several = parts.length > 1;
  const traces = columns.flatMap((column, panel) =>
    parts.map(([name, rows], part) => {
      const text = (row) => `${plain(section.name.text(row))}<br>${plain(column.title)} ${column.text(row)}`;
      const drawn = { x: placeIn(section), y: column.value, text, customdata: ({ index }) => index };
      return points(rows, drawn, {
        type: "scatter",
        name,
        legendgroup: name,
        showlegend: panel === 0 && several,
        marker: { color: colour(TONES[part % TONES.length]), symbol: MARKERS[part % MARKERS.length], size: 6 },
        yaxis: axisName("y", panel),
      });
    }),
  );
  const height = 1 / columns.length;
  const settings = {
    margin: { l: 76, t: several ? 26 : 8 },
    showlegend: several,
    legend: LEGEND,
    xaxis: below(section, axisName("y", columns.length - 1)),
  };
  columns.forEach((column, panel) => {
    settings[axisName("yaxis", panel)] = axis(column.title, {
      domain: [1 - (panel + 0.86) * height, 1 - panel * height],
      type: about.log.includes(column.key) ? "log" : "linear",
      nticks: 4,
      zeroline: false,
      tickformat: column.unit === "percent" ? ".3~%" : "",
      exponentformat: "e",
    });
  });
  return [traces, settings];
}

// The ranges in FP32 and in INT8, as far as the table has them.
function runsOf(section) {
  const [fp32Min, fp32Max, min, max, int8Min, int8Max] = [
    "fp32_min",
    "fp32_max",
    "min",
    "max",
    "int8_min",
    "int8_max",
  ].map((key) => called(section, key));
  return [
    { low: fp32Min ?? min, high: fp32Max ?? max, tone: "high", width: 0.9 },
    { low: int8Min, high: int8Max, tone: "int8", width: 0.4 },
  ].filter(({ low, high }) => low && high);
}

function ranges({ section }) {
  const { shown, name } = section;
  const runs = runsOf(section);
  const both = runs.length > 1;
  const about = { x: placeIn(section), customdata: ({ index }) => index };
  const drawn = runs.map(({ low, high, tone, width }) => {
    const text = (row) => `${plain(name.text(row))}<br>${low.text(row)} … ${high.text(row)}`;
    const y = (row) => (isNumber(low.value(row)) ? high.value(row) - low.value(row) : null);
    const title = both ? low.title.replace(/ min$/, "") : "range";
    return bars(shown, colour(tone), { ...about, y, base: low.value, text }, { name: title, width });
  });
  if (both) drawn.push(difference(shown, runs, about, name));
  const settings = {
    barmode: "overlay",
    margin: { l: 76, t: both ? 26 : 8 },
    showlegend: both,
    legend: LEGEND,
    xaxis: below(section, both ? "y2" : "y"),
    yaxis: axis("min to max", { domain: [both ? 0.46 : 0, 1], exponentformat: "e" }),
    ...(both && { yaxis2: axis("difference of the width", { domain: [0, 0.36], ticksuffix: "%" }) }),
  };
  return [drawn, settings];
}

// How much wider the range is than in FP32, in per cent of FP32's.
function difference(shown, [fp32, int8], about, name) {
  const width = (row, { low, high }) => high.value(row) - low.value(row);
  const y = (row) => {
    const share = 100 * (width(row, int8) / width(row, fp32) - 1);
    return isNumber(share) ? share : null;
  };
  const paints = shown.map((row) => colour(y(row) < 0 ? "good" : "culprit"));
  const text = (row) => plain(name.text(row));
  const look = { hovertemplate: "%{text}<br>%{y:+.3g}%<extra></extra>", showlegend: false, yaxis: "y2" };
  return bars(shown, paints, { ...about, y, text }, look);
}

function distribution({ section, column: key }) {
  const column = called(section, key);
  const values = section.shown.map(column.value);
  const isNumeric = section.rows.some((row) => isNumber(column.value(row)));
  return isNumeric ? bins(column.title, values.filter(isNumber)) : counts(column.title, values);
}

// Equal bins from the least to the largest value; of its logarithm where the values are positive and far apart.
function bins(title, values) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const isLog = least > 0 && most / least > WIDE;
  const to = isLog ? Math.log10 : (value) => value;
  const back = isLog ? (value) => 10 ** value : (value) => value;
  const [low, high] = least === most ? [to(least) - 0.5, to(most) + 0.5] : [to(least), to(most)];
  const sizes = new Array(least === most ? 1 : BINS).fill(0);
  const width = (high - low) / sizes.length;
  values.forEach((value) => (sizes[Math.min(sizes.length - 1, Math.floor((to(value) - low) / width))] += 1));
  const edge = (place) => back(low + place * width);
  const parts = {
    x: (_, place) => edge(place),
    width: (_, place) => edge(place + 1) - edge(place),
    y: (size) => size,
    text: (size, place) => `${number(edge(place))} … ${number(edge(place + 1))}: ${size}`,
  };
  const marker = { color: colour("int8"), line: { width: 1, color: colour("background") } };
  const drawn = bars(sizes, "", parts, { offset: 0, marker });
  const look = isLog ? { type: "log", exponentformat: "e" } : {};
  return distributed(drawn, axis(isLog ? `${title}, logarithmic` : title, { zeroline: false, ...look }));
}

function counts(title, values) {
  const found = [...grouped(values, (value) => value || "(none)")];
  const most = found.sort((one, other) => other[1].length - one[1].length).slice(0, MOST_VALUES);
  const parts = { x: ([value]) => plain(value), y: ([, same]) => same.length };
  const drawn = bars(most, colour("int8"), parts, { hovertemplate: "%{x}: %{y}<extra></extra>" });
  return distributed(drawn, axis(title, { type: "category", automargin: true }), 60);
}

function distributed(drawn, xaxis, b = 40) {
  return [[drawn], { margin: { l: 76, b }, xaxis, yaxis: axis("rows", { rangemode: "tozero" }) }];
}
