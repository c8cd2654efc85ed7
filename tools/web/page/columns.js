// The columns of tables: those that Python describes, and of layers those that explanation and engine add.

import { LOW, NOTHING, fixed, isNumber, number, percent, shapeText } from "./format.js";
import { filled, widthFor } from "./grid.js";
import { rankOf, verdictWord } from "./model.js";

const INDEX = 56;
const WIDTHS = { index: INDEX, name: 0, shape: 132, decibels: 84, figure: 112, deciding: 112 };
const LONGEST = 240;
const LONGEST_IN_TABLES = 340;
const FIGURE = 8;
const OWN_CLASS = new Set(["index", "name", "text"]);

// By kind of a column how a value is written, where not as it is.
const writers = ({ metric, figure }) => ({
  shape: shapeText,
  decibels: (value) => fixed(value, 1),
  figure: metric.text,
  loss: metric.lossText,
  deciding: figure.text,
  number,
  percent: (share) => percent(share),
  flag: (value) => (value ? "yes" : ""),
});

// `about` is a described column, `cell` gives a row's value, `empty` the text of a row without one.
function columnOf(about, cell, write = String, empty = () => "") {
  const { kind } = about;
  return {
    ...about,
    value: (row) => valueOf(kind, cell(row)),
    text: (row) => ([null, undefined, ""].includes(cell(row)) ? empty(row) : write(cell(row))),
    unit: kind,
    kind: OWN_CLASS.has(kind) ? kind : "number",
  };
}

// Shapes are sorted by the number of values.
function valueOf(kind, value) {
  if (kind === "shape") return value?.filter(isNumber).reduce((product, size) => product * size, 1) ?? null;
  return typeof value === "boolean" ? String(value) : value;
}

const longest = (rows, textOf) => rows.reduce((most, row) => Math.max(most, textOf(row)?.length ?? 0), 0);

// Of a page of tables; the cells of a row stand in the order of the columns.
export function columnsOfTable(described, rows, metric) {
  const write = { ...writers({ metric, figure: metric }), decibels: number };
  return described.map((about, place) => {
    const { kind, title } = about;
    const column = columnOf(about, (row) => row.cells[place], write[kind]);
    const width =
      kind === "name" ? 0 : kind === "index" ? INDEX : widthFor(title, longest(rows, column.text), LONGEST_IN_TABLES);
    return { ...column, place, width };
  });
}

function columnOfLayers(about, model) {
  const { key, title, kind } = about;
  if (key === "verdict") return { ...about, width: 108, value: rankOf, text: verdictWord, kind: key };
  const cell = (row) => row[key];
  const isText = kind === "text";
  const empty = (row) => (isText || row.outcome === "follows" ? "" : NOTHING);
  const width = WIDTHS[kind] ?? widthFor(title, isText ? longest(model.rows, cell) : FIGURE, LONGEST);
  return { ...columnOf(about, cell, writers(model)[kind], empty), width };
}

const ADDED = [
  ["activation", "Activation alone", `Loss with only this layer's activations in ${LOW}`],
  ["weight", "Weight alone", `Loss with only this layer's weights in ${LOW}`],
  ["both", "Both alone", `Loss with only this layer in ${LOW}`],
  ["mse", "MSE", `MSE of the layer's output, FP32 against full ${LOW}`],
  ["fp32Min", "FP32 min", "Least value of the output in FP32"],
  ["fp32Max", "FP32 max", "Largest value of the output in FP32"],
  ["int8Min", `${LOW} min`, `Least value of the output in full ${LOW}`],
  ["int8Max", `${LOW} max`, `Largest value of the output in full ${LOW}`],
  ["share", "Multiply-adds", "Share of the network's multiply-adds", percent],
  ["int8Milliseconds", `ms ${LOW}`, `Time of the engine layers with it, full ${LOW}`],
  ["recipeMilliseconds", "ms recipe", "Time of the engine layers with it, in the recipe"],
].map(([key, title, help, write = number]) => {
  const about = { key, title, help, kind: "number", width: widthFor(title, FIGURE, LONGEST) };
  return columnOf(
    about,
    (row) => row[key],
    write,
    () => NOTHING,
  );
});

// Of a run's layers. A column that no row fills is left out, but for those of a phone; so is the output where there is
// one only.
export function columnsOfLayers(model) {
  const { rows, report, data } = model;
  const several = new Set(rows.map((row) => row.output).filter(Boolean)).size > 1;
  return [...data.columns.map((about) => columnOfLayers(about, model)), ...ADDED].filter(
    ({ key, phone, value }) =>
      key !== report.metric && (key !== "output" || several) && (phone || rows.some((row) => filled(value(row)))),
  );
}
