// A small table of figures, and a layer's name in it that selects the layer.

import { h } from "./dom.js";
import { count } from "./format.js";

// Columns from `first` on (up to `end`) are numbers, but for one without a title; `more` rows are only in `where`.
export function plainTable(id, titles, figures, rows, more = 0, where = "recovery.json") {
  const [first, end = Infinity] = [figures].flat();
  const kind = (place) => (place >= first && place < end && titles[place] ? "number" : null);
  const line = (tag, attributes, cells) =>
    h(
      "tr",
      {},
      cells.map((cell, place) => h(tag, { ...attributes, class: kind(place) }, cell)),
    );
  return h(
    "div",
    { class: "wide", id, tabindex: 0, role: "region", "aria-label": titles[0] },
    h(
      "table",
      { class: "plain" },
      h("thead", {}, line("th", { scope: "col" }, titles)),
      h(
        "tbody",
        {},
        rows.map((cells) => line("td", {}, cells)),
      ),
    ),
    more > 0 ? h("p", { class: "under" }, `${count(more)} more stand in ${where}.`) : null,
  );
}

export function layerLink({ model, select }, name) {
  if (!model.byName.has(name)) return h("code", {}, name);
  return h(
    "button",
    {
      type: "button",
      class: "link",
      "data-layer": name,
      on: { click: () => select(name) },
    },
    name,
  );
}
