// A table that sorts and selects. Only the rows in sight are elements, so that thousands cost what thirty do.
//
// A column has key, title, help, width (0 for the one that takes what is left), value, text, phone, paper and kind, a
// CSS class. `id` is that of the element, which has `.head` and `.body` inside; `<id>-count` tells the number of rows,
// `<id>-empty` that there is none, `<id>-cut` that paper has not all, `<id>-columns` offers the columns.

import { byId, h, onPrint, show } from "./dom.js";
import { clamp, count, isNumber } from "./format.js";

const ROW = 30;
const LETTER = 8.3;
const SPARE = 12;
const PRINTED = 12;
const PAPER = 980;
const NAME = { least: 160, most: 420, letter: 7.9, padding: 20 };
const MOVES = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity };
const PHONE = window.matchMedia("(max-width: 640px)");

// As wide as its longest text, up to `most`, and wide enough for its title with the sign of the order.
export function widthFor(title, longest, most) {
  return Math.max(title.length * LETTER + 38, Math.min(most, longest * LETTER + 24));
}

export function filled(value) {
  return isNumber(value) || (typeof value === "string" && value !== "");
}

// `settings`: `key` and `descending` are the order at first, `name` gives a row's name, `tie` orders rows that are
// equal, `classes` and `title` are of a row, `isChosen` and `choose` are of the selection, `many` is the word for rows.
export class Grid {
  descending = false;
  cursor = 0;
  rows = [];
  columns = [];
  all = { rows: [], columns: [] };
  isPrinting = false;
  hidden = new Set();

  constructor(id, settings) {
    const scroller = byId(id);
    const part = (name) => byId(`${id}-${name}`);
    Object.assign(this, { id, scroller, ...settings });
    [this.count, this.empty, this.cut, this.choice] = ["count", "empty", "cut", "columns"].map(part);
    this.head = scroller.querySelector(".head");
    this.body = scroller.querySelector(".body");
    scroller.addEventListener("scroll", () => requestAnimationFrame(() => this.paint()), { passive: true });
    scroller.addEventListener("keydown", (event) => this.onKey(event));
    this.body.addEventListener("click", (event) => {
      const element = event.target.closest("[role=row]");
      if (element) this.chooseAt(Number(element.dataset.place));
    });
    window.addEventListener("resize", () => this.paint());
    PHONE.addEventListener("change", () => this.arrange());
    const printing = (isPrinting) => () => {
      this.isPrinting = isPrinting;
      this.arrange();
    };
    onPrint(printing(true), printing(false));
  }

  // Shows these rows, of `total` in all.
  fill(columns, rows, total) {
    this.all = { columns, rows };
    this.offerColumns();
    this.arrange();
    const some = rows.length === total ? "" : `${count(rows.length)} of `;
    this.count.textContent = `${some}${count(total)} ${this.many}`;
    this.empty.hidden = rows.length > 0;
  }

  // What the reader leaves out stays out, also where rows or columns are others later.
  offerColumns() {
    const { choice, hidden } = this;
    const columns = this.all.columns.filter(({ kind }) => kind !== "name");
    const titles = columns.map(({ title }) => title).join("\n");
    if (!choice || choice.dataset.titles === titles) return;
    choice.dataset.titles = titles;
    const box = ({ key, title, help }) => {
      const change = (event) => {
        if (event.target.checked) hidden.delete(key);
        else hidden.add(key);
        this.arrange();
      };
      const input = h("input", { type: "checkbox", checked: !hidden.has(key), on: { change } });
      return h("label", { title: help || null }, input, ` ${title}`);
    };
    show(choice, [h("summary", "Columns"), h("div.choice", columns.map(box))]);
  }

  top() {
    this.scroller.scrollTop = 0;
  }

  // A selection made elsewhere comes into sight here, where the filters show it.
  follow() {
    const place = this.rows.findIndex(this.isChosen);
    if (place >= 0) {
      this.cursor = place;
      this.bringIntoSight();
    }
    this.paint();
  }

  arrange() {
    const { scroller, all, key } = this;
    this.columns = this.shownColumns();
    const by = all.columns.find((column) => column.key === key);
    this.rows = by ? sorted(all.rows, by, this.descending, this.tie) : all.rows;
    this.painted = null;
    this.cursor = clamp(this.cursor, 0, this.rows.length - 1);
    scroller.style.setProperty("--columns", this.widths().join(" "));
    scroller.setAttribute("aria-rowcount", String(this.rows.length + 1));
    scroller.setAttribute("aria-colcount", String(this.columns.length));
    const headCells = this.columns.map((column) => this.headCell(column));
    show(this.head, headCells);
    this.paint();
  }

  // A phone shows what fits side by side, and paper as many of the first columns as it is wide.
  shownColumns() {
    const columns = this.all.columns.filter(({ key }) => !this.hidden.has(key));
    if (this.isPrinting) return onPaper(columns.filter((column) => column.paper));
    return PHONE.matches ? columns.filter((column) => column.phone) : columns;
  }

  // The same in every row: a row is a grid of its own.
  widths() {
    const longest = this.all.rows.reduce((most, row) => Math.max(most, this.name(row).length), 0);
    const wide = clamp(longest * NAME.letter + NAME.padding, NAME.least, NAME.most);
    if (this.isPrinting) return this.columns.map(({ width }) => `minmax(0, ${Math.ceil(width || wide)}fr)`);
    const rest = PHONE.matches ? "minmax(0, 1fr)" : `minmax(${Math.ceil(wide)}px, 1fr)`;
    return this.columns.map(({ width }) => (width ? `${width}px` : rest));
  }

  headCell({ key, title, help, kind }) {
    const state = this.key !== key ? "none" : this.descending ? "descending" : "ascending";
    const click = () => {
      this.descending = this.key === key ? !this.descending : kind === "number";
      this.key = key;
      this.arrange();
      this.head.querySelector(`[data-key="${key}"]`).focus();
    };
    const button = h("button", { type: "button", title: help || null, "data-key": key, on: { click } }, title);
    return h("div", { role: "columnheader", "aria-sort": state, class: kind }, button);
  }

  // The elements are made anew only where other rows are in sight, or the rows or columns are others than before.
  paint() {
    const { scroller, rows, isPrinting } = this;
    const total = rows.length;
    const top = Math.max(0, Math.floor(scroller.scrollTop / ROW) - SPARE);
    const inSight = Math.ceil(scroller.clientHeight / ROW) + 2 * SPARE;
    const [from, to] = isPrinting ? [0, Math.min(PRINTED, total)] : [top, Math.min(total, top + inSight)];
    if (this.painted !== `${from} ${to}`) {
      this.painted = `${from} ${to}`;
      this.body.style.height = `${(isPrinting ? to : total) * ROW}px`;
      this.cut.hidden = !isPrinting || total <= PRINTED;
      const elements = rows.slice(from, to).map((row, place) => this.rowElement(row, from + place));
      show(this.body, elements);
    }
    this.markRows();
  }

  // The selected row, and the one that the arrows have reached.
  markRows() {
    this.scroller.removeAttribute("aria-activedescendant");
    for (const element of this.body.children) {
      const place = Number(element.dataset.place);
      const isCursor = place === this.cursor;
      element.classList.toggle("cursor", isCursor);
      element.setAttribute("aria-selected", String(this.isChosen(this.rows[place])));
      if (isCursor) this.scroller.setAttribute("aria-activedescendant", element.id);
    }
  }

  rowElement(row, place) {
    const attributes = {
      role: "row",
      id: `${this.id}-row-${place}`,
      class: this.classes(row).filter(Boolean).join(" "),
      "aria-rowindex": place + 2,
      "data-place": place,
      style: { transform: `translateY(${place * ROW}px)` },
    };
    const cells = this.columns.map((column) => {
      const text = column.text(row);
      const about = { role: "gridcell", class: column.kind, title: this.title(row, column) };
      return h("div", about, column.kind === "name" ? h("bdi", text) : text);
    });
    return h("div.row", attributes, cells);
  }

  chooseAt(place) {
    this.cursor = place;
    this.choose(this.rows[place]);
  }

  onKey(event) {
    if (event.target !== this.scroller) return;
    if (event.key in MOVES) {
      this.cursor = clamp(this.cursor + MOVES[event.key], 0, this.rows.length - 1);
      event.preventDefault();
      this.bringIntoSight();
      this.paint();
    } else if ((event.key === "Enter" || event.key === " ") && this.rows[this.cursor]) {
      event.preventDefault();
      this.chooseAt(this.cursor);
    }
  }

  bringIntoSight() {
    const { scroller, head } = this;
    const top = this.cursor * ROW;
    const room = scroller.clientHeight - head.offsetHeight - ROW;
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top > scroller.scrollTop + room) scroller.scrollTop = top - room;
  }
}

// Paper is narrower than the columns of a screen, and its letters are smaller.
function onPaper(columns) {
  let taken = 0;
  return columns.filter(({ width }) => {
    taken += width || NAME.least;
    return taken <= PAPER;
  });
}

// Sorted by a column; rows without a value stand last whichever way it goes.
function sorted(rows, column, descending, tie) {
  const way = descending ? -1 : 1;
  const compare = (one, other) => {
    const [a, b] = [column.value(one), column.value(other)];
    const [hasA, hasB] = [filled(a), filled(b)];
    if (!hasA || !hasB) return hasA === hasB ? one.index - other.index : hasA ? -1 : 1;
    if (a === b) return tie(one, other);
    return way * (isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  };
  return [...rows].sort(compare);
}
