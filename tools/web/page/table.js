// The table of layers, and what chooses among them.

import { columnsOfLayers } from "./columns.js";
import { byId, options, show } from "./dom.js";
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
  store.always(() => {
    fillFilters(store, view);
    refill();
  }, "model");
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
  grid.follow();
}

// Left alone where nothing changed: one of them may be open.
function fillFilters({ model: { rows } }, view) {
  const filters = Object.entries(FILTERS).filter(([key, [, test]]) => key === "all" || rows.some(test));
  const shown = filters.map(([key, [text]]) => [key, text]);
  const ops = [...new Set(rows.map((row) => row.op_type))].sort().map((op) => [op, op]);
  const offered = JSON.stringify([shown, ops]);
  if (offered === view.offered) return;
  view.offered = offered;
  show(byId("filter"), options(shown, view.filter));
  show(byId("op"), options([["", "Every op"], ...ops], view.op));
}

// What is searched for is found whatever is shown.
function fillGrid({ model, search, matches }, { filter, op }, grid) {
  const { rows } = model;
  const [, wanted] = FILTERS[filter];
  const isAny = rows.some(wanted);
  const isShown = (row) => (!isAny || wanted(row)) && (op === "" || row.op_type === op);
  grid.fill(columnsOfLayers(model), rows.filter(search === "" ? isShown : matches), rows.length);
}

function titleOf(row) {
  return [row.name, row.message || row.why_not].filter(Boolean).join("\n");
}
