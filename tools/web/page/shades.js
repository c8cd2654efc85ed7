// What the graph's nodes are coloured by, and the legend that says so.

import { LOW, clamp, isNumber } from "./format.js";
import { legendItem } from "./parts.js";

const DECADES = 4;

export const SHADES = { precision: "Precision in the recipe", loss: "Loss", similarity: "Similarity" };

// From a node of the tree to the attributes that colour it, by one of SHADES.
export function shader(shade, { rows, metric }) {
  if (shade === "precision") return (node) => ({ class: `p-${precision(node)}` });
  const loss = metric.loss ?? ((decibels) => 10 ** (-decibels / 10));
  const value = shade === "loss" ? (row) => row.loss : (row) => isNumber(row.similarity) && loss(row.similarity);
  const figures = (some) =>
    some
      .filter((row) => row.quantizable)
      .map(value)
      .filter(isNumber);
  const top = figures(rows).reduce((one, other) => Math.max(one, other), 0);
  return (node) => {
    const found = figures(node.rows);
    if (!found.length) return { class: "p-follows" };
    return { class: "heated", style: { "--heat": `${Math.round(100 * heat(Math.max(...found), top))}%` } };
  };
}

// 0 to 1 over the four decades below the largest.
function heat(value, top) {
  if (value <= 0 || top <= 0) return 0;
  return clamp(1 + Math.log10(value / top) / DECADES, 0, 1);
}

function precision(node) {
  const found = new Set(node.rows.map((row) => (row.isLow ? "low" : row.precision)));
  found.delete("follows");
  if (found.size === 0) return "follows";
  if (found.size > 1) return "mixed";
  return found.has("low") ? "int8" : found.has("") ? "unknown" : "high";
}

export function legendOf(shade, { keptIn }) {
  const swatch = (kind, words) => legendItem(`swatch ${kind}`, words);
  const culprit = swatch("ring", "culprit");
  if (shade === "precision") {
    return [
      swatch("p-int8", LOW),
      swatch("p-high", keptIn),
      swatch("p-mixed", "both, in a folded group"),
      swatch("p-follows", "follows its neighbours"),
      culprit,
    ];
  }
  const ramp = legendItem("ramp", "the largest, in four decades");
  ramp.prepend(shade === "loss" ? "no loss" : "no loss of similarity");
  return [ramp, swatch("p-follows", "no figure"), culprit];
}
