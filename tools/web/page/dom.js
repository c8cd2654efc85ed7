// Elements made from text: nothing here, or anywhere in the page of a run, is ever parsed as HTML.

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
