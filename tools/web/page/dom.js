// Elements made from text: nothing here, or anywhere in the page, is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "style") {
      for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

export function show(element, children) {
  element.replaceChildren(...[children].flat(Infinity).filter(Boolean));
}

// Facts beside each other; those without a value are left out.
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value);
  return h(
    "dl",
    { class: "facts" },
    known.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

// After what is on its way to the screen.
export function whenIdle(work) {
  if (window.requestIdleCallback) window.requestIdleCallback(work, { timeout: 1000 });
  else setTimeout(work, 50);
}

// A section and the link to it, or neither.
export function offerSection(id, wanted) {
  byId(id).hidden = !wanted;
  document.querySelector(`nav a[href="#${id}"]`).hidden = !wanted;
}

// A button that copies a text and says so.
export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "copy", on: { click: copy } }, label);
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
    const area = h("textarea", { class: "offscreen", readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
