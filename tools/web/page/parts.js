// What several sections are made of: lists of facts, small tables, legends, folded text, commands, names of layers.

import { h } from "./dom.js";
import { NOTHING, count } from "./format.js";

// Facts side by side; those without a value are left out, and null is where none has a value.
export function facts(entries, kind = "dl.facts") {
  const shown = entries.filter(([, value]) => value && value !== NOTHING);
  const items = shown.map(([name, value]) => h("div", h("dt", name), h("dd", value)));
  return items.length ? h(kind, items) : null;
}

// The same under each other.
export const pairs = (entries) => facts(entries, "dl.pairs");

// A title is a text, or a text and what explains it. Columns from `first` on (up to `end`) are numbers, but for one
// without a title; `more` rows are only in `where`. On a phone each row is a list of its cells with their titles.
export function plainTable(id, titles, figures, rows, more = 0, where = "report.json") {
  const [first, end = Infinity] = [figures].flat();
  const names = titles.map((title) => [title].flat()[0]);
  const kind = (place) => (place >= first && place < end && names[place] ? "number" : null);
  const head = (title, place) => {
    const [name, help] = [title].flat();
    return h("th", { scope: "col", class: kind(place), title: help }, help ? h("span.helped", name) : name);
  };
  const cell = (content, place) => h("td", { class: kind(place), "data-title": names[place] || null }, content);
  const lines = rows.map((cells) => h("tr", cells.map(cell)));
  return h(
    "div.wide",
    { id, tabindex: 0, role: "region", "aria-label": names[0] },
    h("table.plain", h("thead", h("tr", titles.map(head))), h("tbody", lines)),
    more > 0 ? h("p.under", `${count(more)} more are in ${where}.`) : null,
  );
}

// `mark` is the classes of what stands before the words.
export function legendItem(mark, words) {
  return h("li", h("i", { class: mark, "aria-hidden": true }), words);
}

// Nothing where there is no content. Actions are unfolded on paper.
export function folded(title, content, attributes = {}) {
  return content ? h("details", attributes, h("summary", title), content) : null;
}

// A layer's name, which selects the layer.
export function layerLink({ model, select }, name) {
  if (!model.byName.has(name)) return h("code", name);
  return h("button.link", { type: "button", "data-layer": name, on: { click: () => select(name) } }, name);
}

// A command that can be copied, and the tool that it is of.
export function command(text, { tool, label } = {}) {
  return h("div.command", tool && h("span.tool", tool), h("code", phrase(text)), copyButton(text, label));
}

// A text whose flags are not broken after their hyphens.
export function phrase(text) {
  return text.split(/(--[a-z][\w-]*)/).map((part, place) => (place % 2 ? h("span.unbroken", part) : part));
}

// A button that copies a text and says so.
export function copyButton(text, label = "Copy") {
  const button = h("button.copy", { type: "button", on: { click: copy } }, label);
  async function copy() {
    button.textContent = (await copied(text)) ? "Copied" : "Select it and press Ctrl+C";
    setTimeout(() => (button.textContent = label), 1600);
  }
  return button;
}

// The clipboard's own interface needs a secure origin, which a plain-HTTP server on a board is not.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea.offscreen", { readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
