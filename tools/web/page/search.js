// The search: what is typed drops down the layers whose name holds it; Enter or a click goes there.

import { byId, h, show } from "./dom.js";
import { count } from "./format.js";
import { rankOf, verdictWord } from "./model.js";

const SHOWN = 12;

export function startSearch(store) {
  const parts = { field: byId("search"), list: byId("hits") };
  const view = { hits: [], active: -1, open: false };
  const search = { store, parts, view };
  parts.field.addEventListener("input", () => {
    store.find(parts.field.value.trim());
    open(search);
  });
  parts.field.addEventListener("focus", () => open(search));
  parts.field.addEventListener("blur", () => close(search));
  parts.field.addEventListener("keydown", (event) => onKey(search, event));
  // The field keeps the focus, so that its blur does not take the list away under the pointer.
  parts.list.addEventListener("pointerdown", (event) => event.preventDefault());
  parts.list.addEventListener("click", (event) => {
    const place = event.target.closest("[role=option]")?.dataset.place;
    if (place !== undefined) choose(search, Number(place));
  });
  store.on("model", () => view.open && open(search));
  return {
    focus: () => parts.field.focus(),
    // What was typed goes first, and the focus leaves the field; false where there was neither.
    clear: () => {
      const focused = document.activeElement === parts.field;
      parts.field.blur();
      close(search);
      if (!parts.field.value) return focused;
      parts.field.value = "";
      store.find("");
      return true;
    },
  };
}

function open(search) {
  const { store, view } = search;
  const found = store.search === "" ? [] : store.model.rows.filter((row) => store.matches(row));
  view.hits = [...found].sort((one, other) => rankOf(one) - rankOf(other) || one.index - other.index).slice(0, SHOWN);
  view.active = view.hits.length ? 0 : -1;
  view.more = found.length - view.hits.length;
  view.open = store.search !== "";
  paint(search);
}

function close(search) {
  search.view.open = false;
  paint(search);
}

function paint({ store, parts, view }) {
  const { field, list } = parts;
  list.hidden = !view.open;
  field.setAttribute("aria-expanded", String(view.open && view.hits.length > 0));
  if (view.open && view.active >= 0) field.setAttribute("aria-activedescendant", `hit-${view.active}`);
  else field.removeAttribute("aria-activedescendant");
  const words = view.hits.length
    ? view.more
      ? `and ${count(view.more)} more, in the table`
      : ""
    : "No layer matches.";
  const last = words && h("li", { class: "under", role: "option", "aria-disabled": "true" }, words);
  show(list, view.open ? [view.hits.map((row, place) => hit(row, place, store.search, view)), last] : []);
}

function hit(row, place, wanted, view) {
  const at = row.name.toLowerCase().indexOf(wanted.toLowerCase());
  const word = verdictWord(row);
  return h(
    "li",
    { role: "option", id: `hit-${place}`, "data-place": place, "aria-selected": String(place === view.active) },
    h(
      "span",
      { class: "hit-name" },
      row.name.slice(0, at),
      h("mark", {}, row.name.slice(at, at + wanted.length)),
      row.name.slice(at + wanted.length),
    ),
    h("span", { class: row.culprit ? "under culprit" : "under" }, [row.op_type, word].filter(Boolean).join(", ")),
  );
}

function choose(search, place) {
  const { store, view } = search;
  view.active = place;
  store.select(view.hits[place].name);
  close(search);
}

const STEPS = { ArrowDown: 1, ArrowUp: -1 };

function onKey(search, event) {
  const { view } = search;
  if (event.key in STEPS && view.hits.length) {
    event.preventDefault();
    if (!view.open) return open(search);
    view.active = (view.active + STEPS[event.key] + view.hits.length) % view.hits.length;
    paint(search);
  } else if (event.key === "Enter" && view.hits.length) {
    // Again and again it goes from one hit to the next.
    choose(search, view.open ? view.active : (view.active + 1) % view.hits.length);
  }
}
