// The columns of the table of layers: those that the report describes, and what explanation and engine add.

import { LOW, NOTHING, fixed, isNumber, number, percent, shapeText } from "./format.js";
import { filled, widthFor } from "./grid.js";
import { rankOf, verdictWord } from "./model.js";

const WIDTHS = { index: 56, name: 0, shape: 132, decibels: 84, figure: 112, deciding: 112 };
const LONGEST = 240;
const FIGURE = 8;

// Of the described ones, by kind: how a value is written.
const writers = ({ metric, figure }) => ({
  index: String,
  name: String,
  text: String,
  shape: shapeText,
  decibels: (value) => fixed(value, 1),
  figure: metric.text,
  loss: metric.drop,
  deciding: figure.text,
  number,
});

function described(about, model) {
  const { key, title, kind } = about;
  if (key === "verdict") return { ...about, width: 108, value: rankOf, text: verdictWord, kind: key, numeric: true };
  const isText = kind === "text";
  const longest = () => model.rows.reduce((most, row) => Math.max(most, row[key]?.length ?? 0), 0);
  const write = writers(model)[kind];
  return {
    ...about,
    width: WIDTHS[kind] ?? widthFor(title, isText ? longest() : FIGURE, LONGEST),
    value: (row) => (kind === "shape" ? values(row[key]) : row[key]),
    text: (row) => {
      if (![null, undefined, ""].includes(row[key])) return write(row[key]);
      return isText || row.outcome === "follows" ? "" : NOTHING;
    },
    kind: isText || kind === "name" || kind === "index" ? kind : "number",
    numeric: !isText && kind !== "name",
  };
}

const added = (key, title, help, text = number) => ({
  key,
  title,
  help,
  width: widthFor(title, FIGURE, LONGEST),
  value: (row) => row[key],
  text: (row) => text(row[key]),
  numeric: true,
  kind: "number",
});

const ADDED = [
  added("activation", "Activation alone", `Loss with only this layer's activations in ${LOW}`),
  added("weight", "Weight alone", `Loss with only this layer's weights in ${LOW}`),
  added("both", "Both alone", `Loss with only this layer in ${LOW}`),
  added("mse", "MSE", `MSE of the layer's output, FP32 against full ${LOW}`),
  added("fp32Min", "FP32 min", "Least value of the output in FP32"),
  added("fp32Max", "FP32 max", "Largest value of the output in FP32"),
  added("int8Min", `${LOW} min`, `Least value of the output in full ${LOW}`),
  added("int8Max", `${LOW} max`, `Largest value of the output in full ${LOW}`),
  added("share", "Cost", "Share of the network's multiply-adds", (share) => percent(share)),
  added("int8Milliseconds", `ms ${LOW}`, `Time of the engine layers with it, full ${LOW}`),
  added("recipeMilliseconds", "ms recipe", "Time of the engine layers with it, in the recipe"),
];

// A column that no row fills is left out, but for those of a phone; so is the output where there is one only.
export function columnsFor(model) {
  const { rows, report, data } = model;
  const several = new Set(rows.map((row) => row.output).filter(Boolean)).size > 1;
  return [...(data.columns ?? []).map((about) => described(about, model)), ...ADDED].filter(
    ({ key, phone, value }) =>
      key !== report.metric && (key !== "output" || several) && (phone || rows.some((row) => filled(value(row)))),
  );
}

function values(sizes) {
  return sizes ? sizes.filter(isNumber).reduce((product, size) => product * size, 1) : null;
}
