// A page of tables: each section has a table that sorts and filters, plots of its columns, and pictures of its rows.

import { startPlot } from "./column_plots.js";
import { columnsOfTable } from "./columns.js";
import { byId, h, options, pairs, show } from "./dom.js";
import { metricOf } from "./format.js";
import { Grid } from "./grid.js";
import { fillPanel, startKeys, startPanel } from "./panel.js";
import { startPrint } from "./plot.js";
import { makeStore } from "./store.js";
import { histogramOf, mapOf } from "./tensor_plots.js";
import { startTheme } from "./theme.js";

const ALL = "*";

const data = JSON.parse(byId("data").textContent);
const store = makeStore(data);

// What is selected is a row and its section.
function startSection(about) {
  const rows = about.rows.map((cells, index) => ({ index, cells, picture: about.pictures[index] }));
  const columns = columnsOfTable(about.columns, rows, metricOf(data.metric));
  const [redKey, redValue] = about.red;
  const red = columns.find(({ key }) => key === redKey);
  const section = {
    about,
    rows,
    columns,
    name: columns.find(({ kind }) => kind === "name"),
    shown: rows,
    isChosen: (row) => store.selected?.row === row,
    choose: (row) => store.select({ section, row }),
  };
  section.grid = new Grid(`${about.id}-table`, {
    key: about.sort,
    descending: about.descending,
    many: "rows",
    name: section.name.text,
    tie: (one, other) => one.index - other.index,
    classes: (row) => [red && row.cells[red.place] === redValue && "culprit"],
    title: (row, column) => (column.kind === "number" ? null : column.text(row)),
    isChosen: section.isChosen,
    choose: section.choose,
  });
  const holders = [...document.querySelectorAll(`#${about.id} .figure-box`)];
  section.plots = about.plots.map((plot, place) => startPlot(holders[place], plot, section));
  const filters = about.filters.map((key) => filterOf(section, key));
  show(byId(`${about.id}-filters`), filters);
  store.on("search", () => changed(section));
  store.on("theme", () => section.plots.forEach((plot) => plot.draw()));
  store.on("selection", () => {
    section.grid.follow();
    section.plots.forEach((plot) => plot.mark());
  });
  refill(section);
}

const plainCell = (row, { place }) => String(row.cells[place] ?? "");

function filterOf(section, key) {
  const column = section.columns.find((one) => one.key === key);
  const found = [...new Set(section.rows.map((row) => plainCell(row, column)))].sort();
  if (found.length < 2) return null;
  const entries = [[ALL, `${column.title}: all`], ...found.map((value) => [value, value || "(none)"])];
  const about = { id: `${section.about.id}-by-${key}`, "aria-label": column.title, "data-key": key };
  return h("select", { ...about, on: { change: () => changed(section) } }, options(entries, ALL));
}

function changed(section) {
  section.grid.top();
  refill(section);
}

function refill(section) {
  const { about, rows, columns, grid, plots } = section;
  const words = columns.filter(({ kind }) => kind === "name" || kind === "text");
  const isFound = (row) => words.some((column) => column.text(row).toLowerCase().includes(store.search.toLowerCase()));
  const filters = [...byId(`${about.id}-filters`).children].filter(({ value }) => value !== ALL);
  const wanted = filters.map(({ value, dataset }) => [value, columns.find(({ key }) => key === dataset.key)]);
  const isWanted = (row) => wanted.every(([value, column]) => plainCell(row, column) === value);
  section.shown = rows.filter((row) => isWanted(row) && (store.search === "" || isFound(row)));
  grid.fill(columns, section.shown, rows.length);
  plots.forEach((plot) => plot.draw());
}

function showDetails() {
  if (!store.selected) return fillPanel();
  const { row, section } = store.selected;
  const { columns, name } = section;
  const { histogram, map } = row.picture ?? {};
  const scale = columns.find(({ key }) => key === "scale")?.value(row) ?? null;
  fillPanel(name.text(row), [
    h("h3.layer-name", name.text(row)),
    histogram && [h("h4", "Histogram"), histogramOf({ histogram, scale, scales: Boolean(map) })],
    map && [h("h4", "Values of each output channel"), mapOf(map)],
    h("h4", "Figures"),
    pairs(columns.filter((column) => column !== name).map((column) => [column.title, column.text(row)])),
  ]);
}

startTheme(store.repaint);
data.sections.forEach(startSection);
startPanel(store, showDetails);
startKeys(store);
byId("search").addEventListener("input", ({ target }) => store.find(target.value.trim()));
startPrint();
performance.mark("usable");
