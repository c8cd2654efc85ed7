// A page of tables: each section has a table that sorts and filters, plots of its columns, and pictures of its rows.

import { byId, h, show, whenIdle } from "./dom.js";
import { count, isNumber, metricOf, NOTHING, number, percent, shapeText } from "./format.js";
import { makeGrid, widthFor } from "./grid.js";
import { drawHistogram } from "./histograms.js";
import { drawMap, mapBox } from "./channel_map.js";
import { startPlot } from "./column_plots.js";
import { startPrint } from "./print.js";
import { startTheme } from "./theme.js";

const INDEX = 56;
const LONGEST = 340;
const TEXTS = {
  percent: (share) => percent(share),
  decibels: (value) => (isNumber(value) ? number(value) : NOTHING),
  number: (value) => number(value),
  index: (value) => (isNumber(value) ? String(value) : ""),
  shape: shapeText,
  flag: (value) => (value ? "yes" : ""),
};

const page = { data: JSON.parse(byId("data").textContent), search: "", chosen: null, listeners: [] };
const metric = metricOf(page.data.metric);
TEXTS.figure = metric.text;
TEXTS.loss = metric.drop;

const textOf = (column, value) => {
  if (value === null || value === undefined) return "";
  return TEXTS[column.kind]?.(value) ?? String(value);
};

function valueOf(column, value) {
  if (column.kind === "shape") return value?.filter(isNumber).reduce((product, size) => product * size, 1) ?? null;
  return typeof value === "boolean" ? String(value) : value;
}

function columnOf(about, place, rows) {
  const { kind } = about;
  return {
    ...about,
    place,
    width: kind === "name" ? 0 : kind === "index" ? INDEX : widthOf(about, place, rows),
    numeric: rows.some(({ cells }) => isNumber(valueOf(about, cells[place]))),
    value: (row) => valueOf(about, row.cells[place]),
    text: (row) => textOf(about, row.cells[place]),
    unit: kind,
    kind: kind === "name" || kind === "index" || kind === "text" ? kind : "number",
  };
}

function widthOf(about, place, rows) {
  const longest = rows.reduce((most, { cells }) => Math.max(most, textOf(about, cells[place]).length), 0);
  return widthFor(about.title, longest, LONGEST);
}

function startSection(about) {
  const rows = about.rows.map((cells, index) => ({ index, cells, picture: about.pictures[index] }));
  const columns = about.columns.map((column, place) => columnOf(column, place, rows));
  const name = columns.find(({ kind }) => kind === "name");
  const red = columns.find(({ key }) => key === about.red[0]);
  const section = { about, rows, columns, name, wanted: {}, shown: rows, isChosen: (row) => page.chosen?.row === row };
  section.choose = (row) => choose(section, row);
  section.grid = makeGrid(`${about.id}-table`, {
    key: about.sort,
    descending: about.descending,
    name: name.text,
    tie: (one, other) => one.index - other.index,
    classes: (row) => [red && row.cells[red.place] === about.red[1] && "culprit"],
    title: (row, column) => (column.kind === "number" ? null : column.text(row)),
    isChosen: section.isChosen,
    choose: section.choose,
    onPrint: (column) => column.paper,
  });
  fillFilters(section);
  const holders = [...document.querySelectorAll(`#${about.id} .figure-box`)];
  section.plots = about.plots.map((plot, place) => startPlot(holders[place], plot, section));
  page.listeners.push(() => section.grid.follow());
  refill(section);
  return section;
}

function fillFilters(section) {
  const selects = section.about.filters.map((key) => {
    const column = section.columns.find((one) => one.key === key);
    const found = [...new Set(section.rows.map((row) => String(row.cells[column.place] ?? "")))].sort();
    if (found.length < 2) return null;
    const id = `${section.about.id}-by-${key}`;
    const options = [["*", `${column.title}: all`], ...found.map((value) => [value, value || "(none)"])];
    const on = {
      change: ({ target }) => {
        section.wanted[key] = target.value;
        changed(section);
      },
    };
    const list = options.map(([value, text]) => h("option", { value }, text));
    return h("select", { id, "aria-label": column.title, "data-key": key, on }, list);
  });
  show(byId(`${section.about.id}-filters`), selects);
}

function changed(section) {
  section.grid.top();
  refill(section);
  section.plots.forEach((plot) => plot.draw());
}

function refill(section) {
  const { rows, columns, wanted, about } = section;
  const tests = columns
    .filter(({ key }) => (wanted[key] ?? "*") !== "*")
    .map(
      ({ key, place }) =>
        (row) =>
          String(row.cells[place] ?? "") === wanted[key],
    );
  const words = columns.filter(({ kind }) => kind === "name" || kind === "text");
  if (page.search) tests.push((row) => words.some((column) => column.text(row).toLowerCase().includes(page.search)));
  section.shown = rows.filter((row) => tests.every((test) => test(row)));
  section.grid.fill(columns, section.shown);
  const all = count(rows.length);
  byId(`${about.id}-count`).textContent =
    section.shown.length === rows.length ? `${all} rows` : `${count(section.shown.length)} of ${all} rows`;
  byId(`${about.id}-empty`).hidden = section.shown.length > 0;
}

function choose(section, row) {
  page.chosen = row && { section, row };
  page.listeners.forEach((told) => told());
  for (const each of sections) each.plots.forEach((plot) => plot.mark());
  byId("details").classList.toggle("chosen", Boolean(row));
  byId("details").scrollTop = 0;
  showDetails();
}

function showDetails() {
  byId("details-empty").hidden = page.chosen !== null;
  if (!page.chosen) return show(byId("details-body"), []);
  const { section, row } = page.chosen;
  const title = section.name.text(row);
  byId("details-said").textContent = `Selected ${title}`;
  const { histogram, map } = row.picture ?? {};
  const bars = histogram ? h("div", { class: "plot small" }) : null;
  const channels = map ? mapBox(map) : null;
  const known = section.columns.filter(
    (column) => column !== section.name && ![NOTHING, ""].includes(column.text(row)),
  );
  show(byId("details-body"), [
    h("h3", { class: "layer-name" }, title),
    bars && [h("h4", {}, "Histogram"), bars],
    channels && [h("h4", {}, "Values of each output channel"), channels],
    h("h4", {}, "Figures"),
    h(
      "dl",
      { class: "pairs" },
      known.map((column) => [h("dt", {}, column.title), h("dd", {}, column.text(row))]),
    ),
  ]);
  if (channels) drawMap(channels, map);
  if (bars) {
    const scale = section.columns.find(({ key }) => key === "scale");
    const tensor = { histogram, scales: Boolean(map), scale: scale?.value(row) ?? null };
    whenIdle(() => bars.isConnected && drawHistogram(bars, tensor));
  }
}

function startKeys() {
  const field = byId("search");
  field.addEventListener("input", () => {
    page.search = field.value.trim().toLowerCase();
    sections.forEach(changed);
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, select, textarea");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      field.focus();
    } else if (event.key === "Escape") {
      const focused = document.activeElement === field;
      field.blur();
      if (field.value) {
        field.value = "";
        field.dispatchEvent(new Event("input"));
      } else if (!focused) {
        choose(null, null);
      }
    }
  });
  byId("details-close").addEventListener("click", () => byId("details").classList.remove("chosen"));
}

// One after another, so that a click meanwhile is not kept waiting.
function drawInTurn([first, ...others]) {
  if (!first) return performance.mark("plots");
  whenIdle(() => {
    first.draw();
    drawInTurn(others);
  });
}

const redraw = () => {
  sections.flatMap(({ plots }) => plots).forEach((plot) => plot.draw());
  showDetails();
};
startTheme(() => redraw());
const sections = page.data.sections.map(startSection);
startKeys();
startPrint();
performance.mark("usable");
const draw = () => drawInTurn(sections.flatMap(({ plots }) => plots));
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", draw);
else draw();
