// Light or dark: the system's, unless the reader switched.

import { byId } from "./dom.js";

const KEY = "trt-bisect theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

// Storage is closed to pages opened from a file in some browsers.
function kept() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function keep(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    return;
  }
}

function apply(theme) {
  document.documentElement.dataset.theme = theme;
  const button = byId("theme");
  button.textContent = theme === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to the ${theme === "dark" ? "light" : "dark"} theme`);
}

export function startTheme(changed) {
  const wanted = () => kept() ?? (system.matches ? "dark" : "light");
  const set = (theme) => {
    apply(theme);
    changed();
  };
  apply(wanted());
  byId("theme").addEventListener("click", () => {
    const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    keep(other);
    set(other);
  });
  system.addEventListener("change", () => set(wanted()));
  window.addEventListener("beforeprint", () => set("light"));
  window.addEventListener("afterprint", () => set(wanted()));
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
