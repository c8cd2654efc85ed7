// The table of layers. Only the rows in sight are elements, so that thousands cost what thirty do.

import { byId, h, show } from "./dom.js";
import { count } from "./format.js";
import { columnsFor, sorted } from "./columns.js";

const ROW = 30;
const SPARE = 12;
const PRINTED = 12;
const NAME = { least: 160, most: 420, letter: 7.9, padding: 20 };
const PHONE = window.matchMedia("(max-width: 640px)");

const PRINTED_TOO = new Set(["gain", "taken_back"]);

const FILTERS = {
  all: ["All layers", () => true],
  quantizable: ["Quantizable", (row) => row.quantizable],
  culprits: ["Culprits", (row) => row.culprit],
  suspects: ["Suspects", (row) => Boolean(row.suspect)],
  high: ["Left high in the recipe", (row) => row.high],
  failed: ["Not measured", (row) => row.failed],
  disobeyed: ["Ran otherwise than asked", (row) => row.obeyed === false],
};

export function startTable(store) {
  const parts = { scroller: byId("table"), head: byId("table-head"), body: byId("table-body") };
  const view = {
    key: "verdict",
    descending: false,
    filter: "quantizable",
    op: "",
    cursor: 0,
    rows: [],
    columns: [],
    printing: false,
  };
  const table = { store, parts, view };
  const reorder = () => {
    arrange(table);
    paint(table);
  };
  store.on("model", () => {
    fillFilters(table);
    reorder();
  });
  store.on("search", () => {
    parts.scroller.scrollTop = 0;
    reorder();
  });
  store.on("selection", () => follow(table));
  byId("filter").addEventListener("change", (event) => {
    view.filter = event.target.value;
    reorder();
  });
  byId("op").addEventListener("change", (event) => {
    view.op = event.target.value;
    reorder();
  });
  parts.scroller.addEventListener("scroll", () => requestAnimationFrame(() => paint(table)), { passive: true });
  parts.scroller.addEventListener("keydown", (event) => onKey(table, event));
  parts.body.addEventListener("click", (event) => onClick(table, event));
  window.addEventListener("resize", () => paint(table));
  PHONE.addEventListener("change", reorder);
  for (const [event, printing] of [
    ["beforeprint", true],
    ["afterprint", false],
  ]) {
    window.addEventListener(event, () => {
      view.printing = printing;
      reorder();
    });
  }
  fillFilters(table);
  reorder();
  follow(table);
}

// Left alone where nothing changed: one of them may be open.
function fillFilters({ store, view }) {
  const options = (pairs, chosen) =>
    pairs.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
  const useful = Object.entries(FILTERS).filter(([key, [, test]]) => key === "all" || store.model.rows.some(test));
  const ops = [...new Set(store.model.rows.map((row) => row.op_type))].sort();
  const offered = JSON.stringify([useful.map(([key]) => key), ops]);
  if (offered === view.offered) return;
  view.offered = offered;
  show(
    byId("filter"),
    options(
      useful.map(([key, [text]]) => [key, text]),
      view.filter,
    ),
  );
  show(byId("op"), options([["", "Every op"], ...ops.map((op) => [op, op])], view.op));
}

function arrange({ store, view, parts }) {
  const { rows } = store.model;
  const all = columnsFor(store.model);
  view.columns = shownColumns(all, view);
  const by = all.find((column) => column.key === view.key) ?? all[0];
  const kept = rows.filter(store.search === "" ? filterOf(rows, view) : store.matches);
  view.rows = sorted(kept, by, view.descending);
  view.cursor = Math.max(0, Math.min(view.cursor, view.rows.length - 1));
  parts.scroller.style.setProperty("--columns", widths(view.columns, kept).join(" "));
  parts.scroller.setAttribute("aria-rowcount", String(view.rows.length + 1));
  parts.scroller.setAttribute("aria-colcount", String(view.columns.length));
  show(
    parts.head,
    view.columns.map((column) => headCell(column, view, () => sortBy({ store, view, parts }, column))),
  );
  byId("table-count").textContent =
    kept.length === rows.length
      ? `${count(rows.length)} layers`
      : `${count(kept.length)} of ${count(rows.length)} layers`;
  byId("table-empty").hidden = kept.length > 0;
}

// What is searched for is found whatever is shown.
function filterOf(rows, { filter, op }) {
  const [, wanted] = FILTERS[filter];
  const test = rows.some(wanted) ? wanted : () => true;
  return (row) => test(row) && (op === "" || row.op_type === op);
}

// A phone shows what fits beside each other, and paper the first columns.
function shownColumns(columns, { printing }) {
  if (printing) return columns.filter((column) => !column.optional || PRINTED_TOO.has(column.key));
  return PHONE.matches ? columns.filter((column) => column.phone) : columns;
}

// The same in every row: a row is a grid of its own.
function widths(columns, rows) {
  const longest = rows.reduce((most, { name }) => Math.max(most, name.length), 0);
  const name = Math.max(NAME.least, Math.min(NAME.most, longest * NAME.letter + NAME.padding));
  return columns.map(({ width }) => {
    if (width) return `${width}px`;
    return PHONE.matches ? "minmax(0, 1fr)" : `minmax(${Math.ceil(name)}px, 1fr)`;
  });
}

function headCell(column, view, click) {
  const state = view.key === column.key ? (view.descending ? "descending" : "ascending") : "none";
  const button = h(
    "button",
    { type: "button", title: column.help, "data-key": column.key, on: { click } },
    column.title,
  );
  return h("div", { role: "columnheader", "aria-sort": state, class: kindOf(column) }, button);
}

function sortBy(table, column) {
  const { view, parts } = table;
  const downAtFirst = kindOf(column) === "number" && column.key !== "index";
  view.descending = view.key === column.key ? !view.descending : downAtFirst;
  view.key = column.key;
  arrange(table);
  paint(table);
  parts.head.querySelector(`[data-key="${column.key}"]`).focus();
}

// The elements are made anew only where other rows are in sight, or the rows are others than before.
function paint({ store, parts, view }) {
  const total = view.rows.length;
  const top = Math.max(0, Math.floor(parts.scroller.scrollTop / ROW) - SPARE);
  const inSight = Math.ceil(parts.scroller.clientHeight / ROW) + 2 * SPARE;
  const [from, to] = view.printing ? [0, Math.min(PRINTED, total)] : [top, Math.min(total, top + inSight)];
  const painted = view.painted;
  if (painted?.rows !== view.rows || painted.from !== from || painted.to !== to) {
    view.painted = { rows: view.rows, from, to };
    parts.body.style.height = `${(view.printing ? to : total) * ROW}px`;
    byId("table-cut").hidden = !view.printing || total <= PRINTED;
    show(
      parts.body,
      view.rows.slice(from, to).map((row, place) => rowElement(row, from + place, view)),
    );
  }
  markRows(store, parts, view);
}

// The selected row, and the one that the arrows have reached.
function markRows(store, { scroller, body }, view) {
  scroller.removeAttribute("aria-activedescendant");
  for (const element of body.children) {
    const place = Number(element.dataset.place);
    const isCursor = place === view.cursor;
    element.classList.toggle("cursor", isCursor);
    element.setAttribute("aria-selected", String(view.rows[place].name === store.selected));
    if (isCursor) scroller.setAttribute("aria-activedescendant", element.id);
  }
}

function rowElement(row, place, view) {
  const classes = ["row", row.culprit && "culprit", row.failed && "failed", row.outcome === "follows" && "follows"];
  return h(
    "div",
    {
      role: "row",
      id: `row-${place}`,
      class: classes.filter(Boolean).join(" "),
      "aria-rowindex": place + 2,
      "data-place": place,
      style: { transform: `translateY(${place * ROW}px)` },
    },
    view.columns.map((column) => cell(row, column)),
  );
}

function kindOf(column) {
  if (["index", "name", "verdict"].includes(column.key)) return column.key;
  return column.numeric ? "number" : null;
}

function cell(row, column) {
  const text = column.key === "name" ? h("bdi", {}, row.name) : column.text(row);
  return h(
    "div",
    {
      role: "gridcell",
      class: kindOf(column),
      title: column.key === "name" || column.key === "verdict" ? titleOf(row) : null,
    },
    text,
  );
}

function titleOf(row) {
  return [row.name, row.message || row.why_not].filter(Boolean).join("\n");
}

function onClick(table, event) {
  const element = event.target.closest("[role=row]");
  if (!element) return;
  table.view.cursor = Number(element.dataset.place);
  table.store.select(table.view.rows[table.view.cursor].name);
}

const MOVES = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity };

function onKey(table, event) {
  const { view, store } = table;
  if (event.target !== table.parts.scroller) return;
  if (event.key in MOVES) {
    view.cursor = Math.max(0, Math.min(view.rows.length - 1, view.cursor + MOVES[event.key]));
    event.preventDefault();
    bringIntoSight(table);
    paint(table);
  } else if ((event.key === "Enter" || event.key === " ") && view.rows[view.cursor]) {
    event.preventDefault();
    store.select(view.rows[view.cursor].name);
  }
}

function bringIntoSight({ parts: { scroller, head }, view }) {
  const top = view.cursor * ROW;
  const room = scroller.clientHeight - head.offsetHeight - ROW;
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  else if (top > scroller.scrollTop + room) scroller.scrollTop = top - room;
}

// A selection made elsewhere comes into sight here, where the filters show it.
function follow(table) {
  const { view, store } = table;
  const place = view.rows.findIndex((row) => row.name === store.selected);
  if (place >= 0) {
    view.cursor = place;
    bringIntoSight(table);
  }
  paint(table);
}
