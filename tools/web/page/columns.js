// The columns of the table of layers: where a cell's value comes from, how it is written, how wide it is.

import { NOTHING, dropText, fixed, isNumber, number, shapeText } from "./format.js";
import { filled } from "./grid.js";
import { rankOf, verdictWord } from "./model.js";

const figure = (key, title, help, width = 92) => ({
  key,
  title,
  help,
  width,
  value: (row) => row[key],
  text: (row) => number(row[key]),
  numeric: true,
  kind: "number",
});

const word = (key, title, help, width) => ({
  key,
  title,
  help,
  width,
  value: (row) => row[key] ?? "",
  text: (row) => row[key] || "",
  optional: true,
});

const shape = (key, title, help) => ({
  key,
  title,
  help,
  width: 132,
  value: (row) => values(row[key]),
  text: (row) => (row[key] ? shapeText(row[key]) : NOTHING),
  kind: "number",
  numeric: true,
});

const optional = (column) => ({ ...column, optional: true });

export function columnsFor(model) {
  const { metric, rows, report } = model;
  const columns = [
    { ...figure("index", "#", "Place in execution order", 56), kind: "index", text: (row) => String(row.index) },
    {
      key: "name",
      title: "Layer",
      help: "Name in the network",
      width: 0,
      value: (row) => row.name,
      text: (row) => row.name,
      kind: "name",
      phone: true,
    },
    {
      key: "verdict",
      title: "Verdict",
      help: "Culprit, suspect, failure, or kept high in the recipe; sorted by what matters, then by the drop",
      width: 108,
      value: rankOf,
      text: verdictWord,
      kind: "verdict",
      numeric: true,
      phone: true,
    },
    {
      ...figure("drop", "Drop", "The loss that this layer added", 92),
      text: (row) => (row.outcome === "follows" ? "" : metric.drop(row.drop)),
      phone: true,
    },
    optional({
      ...figure("gain", "Gain", "What full INT8 wins back when this layer alone stays high"),
      text: (row) => (isNumber(row.gain) ? metric.drop(row.gain) : NOTHING),
    }),
    optional({
      ...figure("taken_back", "Taken back", "The recipe's figure if this culprit is put back in INT8", 112),
      text: (row) => (isNumber(row.taken_back) ? metric.text(row.taken_back) : NOTHING),
    }),
    {
      key: "op_type",
      title: "Op",
      help: "Operator",
      width: 118,
      value: (row) => row.op_type,
      text: (row) => row.op_type,
    },
    {
      ...figure(
        "similarity",
        metricTitle(metric),
        "Similarity of the final output with this layer and all before it in INT8; suspects stay high",
        112,
      ),
      text: (row) => metric.text(row.similarity),
    },
    shape("shape", "Layer shape", "Shape of the layer's first output; sorted by the number of values"),
    optional(shape("output_shape", "Output shape", "Shape of the final output that was compared")),
    ...(severalOutputs(rows) ? [word("output", "Output", "The final output that was compared: the worst one", 120)] : []),
    optional({
      ...figure("sqnr", "SQNR", "SQNR of the same trial, dB", 84),
      text: (row) => (isNumber(row.sqnr) ? fixed(row.sqnr, 1) : NOTHING),
    }),
    optional(figure("activation", "Activ. alone", "Loss with only this layer's activations in INT8")),
    optional(figure("weight", "Weight alone", "Loss with only this layer's weights in INT8")),
    optional(figure("both", "Both alone", "Loss with only this layer in INT8")),
    optional(figure("mse", "MSE", "MSE of the layer's output, FP32 against full INT8")),
    optional(figure("fp32Min", "FP32 min", "Least value of the output in FP32")),
    optional(figure("fp32Max", "FP32 max", "Largest value of the output in FP32")),
    optional(figure("int8Min", "INT8 min", "Least value of the output in full INT8")),
    optional(figure("int8Max", "INT8 max", "Largest value of the output in full INT8")),
    optional({
      ...figure("share", "Cost", "Share of the network's multiply-adds", 76),
      text: (row) => dropText(row.share),
    }),
    optional(figure("int8Milliseconds", "ms INT8", "Time of the engine layers with it, full INT8")),
    optional(figure("recipeMilliseconds", "ms recipe", "Time of the engine layers with it, in the recipe")),
    word("suspect", "Why suspect only", "The reason why a layer with a large drop is no culprit, or not yet", 240),
    word("asked", "Asked", "Precision that the trial asked for", 68),
    word("ran", "Ran", "Precision that the engine says it ran in; unproven where it does not say", 68),
    word("recipe", "Recipe", "Precision in the recipe", 72),
  ];
  const known = (column) => !column.optional || rows.some((row) => filled(column.value(row)));
  return report.metric === "sqnr"
    ? columns.filter((column) => column.key !== "sqnr" && known(column))
    : columns.filter(known);
}

function metricTitle({ name }) {
  if (name === "agreement") return "Agreement";
  return name === "cosine" || name === "top1" ? "Similarity" : name || "Similarity";
}

function severalOutputs(rows) {
  return new Set(rows.map((row) => row.output).filter(Boolean)).size > 1;
}

function values(sizes) {
  return sizes ? sizes.filter(isNumber).reduce((product, size) => product * size, 1) : null;
}
