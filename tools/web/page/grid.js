// A table that sorts and selects. Only the rows in sight are elements, so that thousands cost what thirty do.
//
// A column has key, title, help, width (0 for the one that takes what is left), value, text, numeric, phone, paper
// and kind, a CSS class. `id` makes the elements' ids: `<id>`, with `.head` and `.body` inside, and `<id>-cut`.

import { byId, h, show } from "./dom.js";
import { isNumber } from "./format.js";

const ROW = 30;
const LETTER = 8.3;
const SPARE = 12;
const PRINTED = 12;
const NAME = { least: 160, most: 420, letter: 7.9, padding: 20 };
const MOVES = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity };
export const PHONE = window.matchMedia("(max-width: 640px)");

// `name` gives a row's name, `tie` orders rows that are equal, `classes` and `title` are of a row, `isChosen` and
// `choose` are of the selection, `onPrint` (columns) gives those for paper, `upFirst` says which go upward at first.
export function makeGrid(id, { key, descending = false, ...settings }) {
  const scroller = byId(id);
  const grid = {
    ...settings,
    parts: {
      scroller,
      head: scroller.querySelector(".head"),
      body: scroller.querySelector(".body"),
      cut: byId(`${id}-cut`),
    },
    view: { key, descending, cursor: 0, rows: [], columns: [], printing: false },
    all: { rows: [], columns: [] },
  };
  const again = () => {
    arrange(grid);
    paint(grid);
  };
  scroller.addEventListener("scroll", () => requestAnimationFrame(() => paint(grid)), { passive: true });
  scroller.addEventListener("keydown", (event) => onKey(grid, event));
  grid.parts.body.addEventListener("click", (event) => onClick(grid, event));
  window.addEventListener("resize", () => paint(grid));
  PHONE.addEventListener("change", again);
  for (const [event, printing] of [
    ["beforeprint", true],
    ["afterprint", false],
  ]) {
    window.addEventListener(event, () => {
      grid.view.printing = printing;
      again();
    });
  }
  return {
    fill: (columns, rows) => {
      grid.all = { columns, rows };
      again();
    },
    top: () => (scroller.scrollTop = 0),
    follow: () => follow(grid),
    rows: () => grid.view.rows,
  };
}

function arrange(grid) {
  const { view, parts, all } = grid;
  view.columns = shownColumns(grid);
  const by = all.columns.find((column) => column.key === view.key);
  view.rows = by ? sorted(all.rows, by, view.descending, grid.tie) : all.rows;
  view.cursor = Math.max(0, Math.min(view.cursor, view.rows.length - 1));
  parts.scroller.style.setProperty("--columns", widths(grid).join(" "));
  parts.scroller.setAttribute("aria-rowcount", String(view.rows.length + 1));
  parts.scroller.setAttribute("aria-colcount", String(view.columns.length));
  show(
    parts.head,
    view.columns.map((column) => headCell(column, view, () => sortBy(grid, column))),
  );
}

// A phone shows what fits beside each other, and paper the first columns.
function shownColumns({ all: { columns }, view, onPrint }) {
  if (view.printing) return columns.filter(onPrint);
  return PHONE.matches ? columns.filter((column) => column.phone) : columns;
}

// The same in every row: a row is a grid of its own.
function widths({ view, all, name }) {
  const longest = all.rows.reduce((most, row) => Math.max(most, name(row).length), 0);
  const wide = Math.max(NAME.least, Math.min(NAME.most, longest * NAME.letter + NAME.padding));
  return view.columns.map(({ width }) => {
    if (width) return `${width}px`;
    return PHONE.matches ? "minmax(0, 1fr)" : `minmax(${Math.ceil(wide)}px, 1fr)`;
  });
}

// As wide as its longest text, up to `most`, and wide enough for its title with the sign of the order.
export function widthFor(title, longest, most) {
  return Math.max(title.length * LETTER + 38, Math.min(most, longest * LETTER + 24));
}

export function filled(value) {
  return isNumber(value) || (typeof value === "string" && value !== "");
}

// Sorted by a column; rows without a value stand last whichever way it goes.
export function sorted(rows, column, descending, tie) {
  const way = descending ? -1 : 1;
  const compare = (one, other) => {
    const [a, b] = [column.value(one), column.value(other)];
    const [hasA, hasB] = [filled(a), filled(b)];
    if (!hasA || !hasB) return hasA === hasB ? one.index - other.index : hasA ? -1 : 1;
    if (a === b) return tie(one, other);
    return way * (column.numeric ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  };
  return [...rows].sort(compare);
}

function headCell(column, view, click) {
  const state = view.key === column.key ? (view.descending ? "descending" : "ascending") : "none";
  const button = h(
    "button",
    { type: "button", title: column.help || null, "data-key": column.key, on: { click } },
    column.title,
  );
  return h("div", { role: "columnheader", "aria-sort": state, class: column.kind }, button);
}

function sortBy(grid, column) {
  const { view, parts } = grid;
  view.descending = view.key === column.key ? !view.descending : column.kind === "number";
  view.key = column.key;
  arrange(grid);
  paint(grid);
  parts.head.querySelector(`[data-key="${column.key}"]`).focus();
}

// The elements are made anew only where other rows are in sight, or the rows or columns are others than before.
function paint(grid) {
  const { parts, view } = grid;
  const total = view.rows.length;
  const top = Math.max(0, Math.floor(parts.scroller.scrollTop / ROW) - SPARE);
  const inSight = Math.ceil(parts.scroller.clientHeight / ROW) + 2 * SPARE;
  const [from, to] = view.printing ? [0, Math.min(PRINTED, total)] : [top, Math.min(total, top + inSight)];
  const wanted = { rows: view.rows, columns: view.columns, from, to };
  if (Object.keys(wanted).some((key) => view.painted?.[key] !== wanted[key])) {
    view.painted = wanted;
    parts.body.style.height = `${(view.printing ? to : total) * ROW}px`;
    parts.cut.hidden = !view.printing || total <= PRINTED;
    show(
      parts.body,
      view.rows.slice(from, to).map((row, place) => rowElement(grid, row, from + place)),
    );
  }
  markRows(grid);
}

// The selected row, and the one that the arrows have reached.
function markRows({ parts: { scroller, body }, view, isChosen }) {
  scroller.removeAttribute("aria-activedescendant");
  for (const element of body.children) {
    const place = Number(element.dataset.place);
    const isCursor = place === view.cursor;
    element.classList.toggle("cursor", isCursor);
    element.setAttribute("aria-selected", String(isChosen(view.rows[place])));
    if (isCursor) scroller.setAttribute("aria-activedescendant", element.id);
  }
}

function rowElement({ view, parts, classes, title }, row, place) {
  return h(
    "div",
    {
      role: "row",
      id: `${parts.scroller.id}-row-${place}`,
      class: ["row", ...classes(row)].filter(Boolean).join(" "),
      "aria-rowindex": place + 2,
      "data-place": place,
      style: { transform: `translateY(${place * ROW}px)` },
    },
    view.columns.map((column) => cell(row, column, title)),
  );
}

function cell(row, column, title) {
  const text = column.kind === "name" ? h("bdi", {}, column.text(row)) : column.text(row);
  return h("div", { role: "gridcell", class: column.kind, title: title(row, column) }, text);
}

function choose(grid, place) {
  grid.view.cursor = place;
  grid.choose(grid.view.rows[place]);
}

function onClick(grid, event) {
  const element = event.target.closest("[role=row]");
  if (element) choose(grid, Number(element.dataset.place));
}

function onKey(grid, event) {
  const { view } = grid;
  if (event.target !== grid.parts.scroller) return;
  if (event.key in MOVES) {
    view.cursor = Math.max(0, Math.min(view.rows.length - 1, view.cursor + MOVES[event.key]));
    event.preventDefault();
    bringIntoSight(grid);
    paint(grid);
  } else if ((event.key === "Enter" || event.key === " ") && view.rows[view.cursor]) {
    event.preventDefault();
    choose(grid, view.cursor);
  }
}

function bringIntoSight({ parts: { scroller, head }, view }) {
  const top = view.cursor * ROW;
  const room = scroller.clientHeight - head.offsetHeight - ROW;
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  else if (top > scroller.scrollTop + room) scroller.scrollTop = top - room;
}

// A selection made elsewhere comes into sight here, where the filters show it.
function follow(grid) {
  const place = grid.view.rows.findIndex(grid.isChosen);
  if (place >= 0) {
    grid.view.cursor = place;
    bringIntoSight(grid);
  }
  paint(grid);
}
