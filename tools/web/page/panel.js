// The panel of what is selected, and the keys that search and clear the selection.

import { byId, show } from "./dom.js";

export function startPanel(store, render) {
  const panel = byId("details");
  store.on("selection", () => {
    panel.classList.toggle("chosen", store.selected !== null);
    panel.scrollTop = 0;
    render();
  });
  store.on("theme", render);
  byId("details-close").addEventListener("click", closePanel);
}

// On a small screen it lies over the page.
function closePanel() {
  byId("details").classList.remove("chosen");
}

// Without a title nothing is selected.
export function fillPanel(title, children) {
  byId("details-empty").hidden = title !== undefined;
  byId("details-said").textContent = title === undefined ? "Nothing selected" : `Selected ${title}`;
  show(byId("details-body"), children);
}

// `more` has by key what else is done where nobody types.
export function startKeys(store, more = {}) {
  const field = byId("search");
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, select, textarea");
    if (typing ? event.key !== "Escape" : event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      field.focus();
    } else if (event.key === "Escape") clear(store, field);
    else more[event.key]?.();
  });
}

// What was typed goes first, and the focus leaves the field; where there was neither, the selection goes.
function clear(store, field) {
  const wasFocused = document.activeElement === field;
  field.blur();
  if (field.value) {
    field.value = "";
    store.find("");
  } else if (!wasFocused) {
    store.select(null);
    closePanel();
  }
}
