// Light or dark: the system's, unless the reader switched.

import { byId, onPrint } from "./dom.js";
import { capital } from "./format.js";

const KEY = "trt-bisect theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

// Storage is closed to pages opened from a file in some browsers: the page forgets then.
function stored(work) {
  try {
    return work(localStorage);
  } catch {
    return null;
  }
}

function apply(theme) {
  document.documentElement.dataset.theme = theme;
  const other = theme === "dark" ? "light" : "dark";
  byId("theme").textContent = capital(other);
  byId("theme").setAttribute("aria-label", `Switch to the ${other} theme`);
}

export function startTheme(changed = () => {}) {
  const wanted = () => stored((storage) => storage.getItem(KEY)) ?? (system.matches ? "dark" : "light");
  const set = (theme) => {
    apply(theme);
    changed();
  };
  apply(wanted());
  byId("theme").addEventListener("click", () => {
    const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    stored((storage) => storage.setItem(KEY, other));
    set(other);
  });
  system.addEventListener("change", () => set(wanted()));
  onPrint(
    () => set("light"),
    () => set(wanted()),
  );
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
