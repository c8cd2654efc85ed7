// What the graph's nodes are coloured by, and the legend that says so.

import { h } from "./dom.js";
import { LOW, isNumber } from "./format.js";

const DECADES = 4;

export const SHADES = { precision: "Precision in the recipe", drop: "Drop", similarity: "Similarity" };

// From a node of the tree to { class, heat }, by one of SHADES.
export function shader(shade, { rows, metric }) {
  if (shade === "precision") return (node) => ({ class: `p-${precision(node)}` });
  const value = shade === "drop" ? (row) => row.drop : lossOf(metric);
  const all = rows
    .filter((row) => row.quantizable)
    .map(value)
    .filter((found) => isNumber(found) && found > 0);
  const top = all.reduce((one, other) => Math.max(one, other), 0);
  return (node) => {
    const found = leaves(node)
      .filter((row) => row.quantizable)
      .map(value)
      .filter(isNumber);
    if (!found.length) return { class: "p-follows" };
    return { class: "heated", heat: heat(Math.max(...found), top) };
  };
}

// Each row's loss on the scale that the metric is drawn on.
function lossOf(metric) {
  if (metric.loss) return (row) => (isNumber(row.similarity) ? metric.loss(row.similarity) : null);
  return (row) => (isNumber(row.similarity) ? 10 ** (-row.similarity / 10) : null);
}

// 0 to 1 over the four decades below the largest.
function heat(value, top) {
  if (value <= 0 || top <= 0) return 0;
  return Math.max(0, Math.min(1, 1 + Math.log10(value / top) / DECADES));
}

export function leaves(node) {
  return node.layer ? [node.layer] : node.children.flatMap(leaves);
}

function precision(node) {
  const found = new Set(leaves(node).map((row) => (row.isLow ? "low" : row.precision)));
  found.delete("follows");
  if (found.size === 0) return "follows";
  if (found.size > 1) return "mixed";
  return found.has("low") ? "int8" : found.has("") ? "unknown" : "high";
}

export function legendOf(shade, { report }) {
  const high = (report.precision ?? "fp32").toUpperCase();
  const swatch = (kind, words) => h("li", {}, h("i", { class: `swatch ${kind}`, "aria-hidden": true }), words);
  const culprit = swatch("ring", "culprit");
  if (shade === "precision") {
    return [
      swatch("p-int8", `${LOW}`),
      swatch("p-high", high),
      swatch("p-mixed", "both, in a folded group"),
      swatch("p-follows", "follows its neighbours"),
      culprit,
    ];
  }
  const what = shade === "drop" ? "drop" : "loss of similarity";
  return [
    h("li", {}, `no ${what}`, h("i", { class: "ramp", "aria-hidden": true }), "the largest, in four decades"),
    swatch("p-follows", "no figure"),
    culprit,
  ];
}
