// The table of layers, and what chooses among them.

import { columnsOfLayers } from "./columns.js";
import { byId, h, show } from "./dom.js";
import { Grid } from "./grid.js";

const FILTERS = {
  all: ["All layers", () => true],
  quantizable: ["Quantizable", (row) => row.quantizable],
  culprits: ["Culprits", (row) => row.culprit],
  suspects: ["Suspects", (row) => Boolean(row.suspect)],
  high: ["High precision in the recipe", (row) => row.high],
  failed: ["Not measured", (row) => row.failed],
  disobeyed: ["Ran in another precision than asked", (row) => row.obeyed === false],
};

export function startTable(store) {
  const view = { filter: "quantizable", op: "" };
  const grid = new Grid("table", {
    key: "verdict",
    many: "layers",
    name: (row) => row.name,
    tie: (one, other) => (other.loss ?? -Infinity) - (one.loss ?? -Infinity) || one.index - other.index,
    classes: (row) => [row.culprit && "culprit", row.failed && "failed", row.outcome === "follows" && "follows"],
    title: (row, { kind }) => (kind === "name" || kind === "verdict" ? titleOf(row) : null),
    isChosen: (row) => row.name === store.selected,
    choose: (row) => store.select(row.name),
  });
  const refill = () => fillGrid(store, view, grid);
  const renew = () => {
    fillFilters(store, view);
    refill();
  };
  store.on("model", renew);
  store.on("search", () => {
    grid.top();
    refill();
  });
  store.on("selection", () => grid.follow());
  for (const name of ["filter", "op"]) {
    byId(name).addEventListener("change", (event) => {
      view[name] = event.target.value;
      refill();
    });
  }
  renew();
  grid.follow();
}

// Left alone where nothing changed: one of them may be open.
function fillFilters({ model: { rows } }, view) {
  const filters = Object.entries(FILTERS).filter(([key, [, test]]) => key === "all" || rows.some(test));
  const ops = [...new Set(rows.map((row) => row.op_type))].sort();
  const offered = JSON.stringify([filters.map(([key]) => key), ops]);
  if (offered === view.offered) return;
  view.offered = offered;
  const option = (value, text, chosen) => h("option", { value, selected: value === chosen }, text);
  const wanted = filters.map(([key, [text]]) => option(key, text, view.filter));
  show(byId("filter"), wanted);
  show(byId("op"), [option("", "Every op", view.op), ...ops.map((op) => option(op, op, view.op))]);
}

function fillGrid(store, view, grid) {
  const { rows } = store.model;
  const kept = rows.filter(store.search === "" ? filterOf(rows, view) : store.matches);
  grid.fill(columnsOfLayers(store.model), kept, rows.length);
}

// What is searched for is found whatever is shown.
function filterOf(rows, { filter, op }) {
  const [, wanted] = FILTERS[filter];
  const test = rows.some(wanted) ? wanted : () => true;
  return (row) => test(row) && (op === "" || row.op_type === op);
}

function titleOf(row) {
  return [row.name, row.message || row.why_not].filter(Boolean).join("\n");
}
