// Elements made from text: nothing here, or anywhere in the page of a run, is ever parsed as HTML.

import { NOTHING, count } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

const isSomething = (value) => value !== null && value !== undefined && value !== false;

// `name` is a tag with its classes, such as "p.under". An object after it has the attributes, `on` listeners and `style`
// properties among them. Attributes and children without a value are left out.
function made(create, name, [first, ...others]) {
  const [tag, ...classes] = name.split(".");
  const [attributes, children] = first?.constructor === Object ? [first, others] : [{}, [first, ...others]];
  const { class: more, on, style, ...plain } = attributes;
  const element = create(tag);
  const all = [...classes, more].filter(Boolean).join(" ");
  if (all) element.setAttribute("class", all);
  for (const [attribute, value] of Object.entries(plain)) {
    if (isSomething(value)) element.setAttribute(attribute, value === true ? "" : value);
  }
  for (const [event, listener] of Object.entries(on ?? {})) element.addEventListener(event, listener);
  for (const [property, text] of Object.entries(style ?? {})) element.style.setProperty(property, text);
  element.append(...children.flat(Infinity).filter(isSomething));
  return element;
}

export function h(name, ...content) {
  return made((tag) => document.createElement(tag), name, content);
}

export function svg(name, ...content) {
  return made((tag) => document.createElementNS(SVG, tag), name, content);
}

export function byId(id) {
  return document.getElementById(id);
}

export function show(element, children) {
  element.replaceChildren(...[children].flat(Infinity).filter(Boolean));
}

// By id of an element what it shows.
export function showAll(parts) {
  for (const [id, children] of Object.entries(parts)) show(byId(id), children);
}

// A section and the link to it, or neither.
export function offerSection(id, wanted) {
  byId(id).hidden = !wanted;
  document.querySelector(`nav a[href="#${id}"]`).hidden = !wanted;
}

// After what is on its way to the screen.
export function whenIdle(work) {
  if (window.requestIdleCallback) window.requestIdleCallback(work, { timeout: 1000 });
  else setTimeout(work, 50);
}

export function onPrint(before, after) {
  window.addEventListener("beforeprint", before);
  window.addEventListener("afterprint", after);
}

// After the page was read to its end and painted.
export function afterPaint(work) {
  const ready = () => requestAnimationFrame(() => setTimeout(work));
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", ready);
  else ready();
}

// What several sections are made of: lists of facts, small tables, legends, folded text, commands, names of layers.
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

// Of a select element, from pairs of a value and its text.
export function options(entries, chosen) {
  return entries.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
}

// At most so many, and `tell` says the number of the others.
export function andMore(items, most, tell) {
  return items.length > most ? [...items.slice(0, most), tell(count(items.length - most))] : items;
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
