// A small table of figures, and a layer's name in it that selects the layer.

import { h } from "./dom.js";
import { count } from "./format.js";

// A title is a text, or a text and what explains it. Columns from `first` on (up to `end`) are numbers, but for one
// without a title; `more` rows are only in `where`. On a phone each row is a list of its cells with their titles.
export function plainTable(id, titles, figures, rows, more = 0, where = "report.json") {
  const [first, end = Infinity] = [figures].flat();
  const names = titles.map((title) => [title].flat()[0]);
  const kind = (place) => (place >= first && place < end && names[place] ? "number" : null);
  const head = (title, place) => {
    const [name, help] = [title].flat();
    return h(
      "th",
      { scope: "col", class: kind(place), title: help },
      help ? h("span", { class: "helped" }, name) : name,
    );
  };
  const cell = (content, place) => h("td", { class: kind(place), "data-title": names[place] || null }, content);
  return h(
    "div",
    { class: "wide", id, tabindex: 0, role: "region", "aria-label": names[0] },
    h(
      "table",
      { class: "plain" },
      h("thead", {}, h("tr", {}, titles.map(head))),
      h(
        "tbody",
        {},
        rows.map((cells) => h("tr", {}, cells.map(cell))),
      ),
    ),
    more > 0 ? h("p", { class: "under" }, `${count(more)} more are in ${where}.`) : null,
  );
}

export function layerLink({ model, select }, name) {
  if (!model.byName.has(name)) return h("code", {}, name);
  return h("button", { type: "button", class: "link", "data-layer": name, on: { click: () => select(name) } }, name);
}
