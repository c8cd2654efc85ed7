// The selected layer: figures, roundings, tensors, attributes, histograms.

import { h, pairs } from "./dom.js";
import { LOW, decibels, isNumber, number, percent, shapeText } from "./format.js";
import { verdictWord } from "./model.js";
import { fillPanel, startPanel } from "./panel.js";
import { channelsOf, histogramOf, mapOf } from "./tensor_plots.js";

const MOST_READ = 3;

export function startDetails(store) {
  let shown = "";
  const render = () => {
    shown = JSON.stringify(store.row());
    showDetails(store.row(), store.model);
  };
  startPanel(store, render);
  store.on("model", () => {
    if (JSON.stringify(store.row()) !== shown) render();
  });
  render();
}

function showDetails(row, model) {
  if (!row) return fillPanel();
  fillPanel(row.name, [
    heading(row),
    failure(row),
    figures(row, model),
    alone(row, model),
    roundings(row),
    tensorsOf(row, model),
    ends(row, model),
    attributes(row),
  ]);
}

function heading(row) {
  const word = verdictWord(row);
  const tone = row.culprit ? "culprit" : row.failed ? "warn" : "";
  const chips = [row.op_type, row.shapeText, `layer ${row.index}`].map((text) => h("span.chip", text));
  return [h("h3.layer-name", row.name), h("p.chips", word && h("span.chip", { class: tone }, word), chips)];
}

function failure(row) {
  if (row.message) return h("pre.message", { tabindex: 0 }, row.message);
  return row.why_not ? h("p.under", `Not in ${LOW}: ${row.why_not}.`) : null;
}

function figures(row, { metric, figure }) {
  const { whole } = row;
  return pairs([
    [metric.name === "cosine" ? "Similarity" : metric.label, metric.text(row.similarity)],
    ["Loss", row.outcome === "follows" ? "" : metric.lossText(row.loss)],
    ["SQNR", metric.name === "sqnr" ? "" : decibels(row.sqnr)],
    ["Alone", metric.lossText(row.alone)],
    [`If put back in ${LOW}`, isNumber(row.put_back) ? figure.text(row.put_back) + row.putBackOn : ""],
    ["Suspect", row.suspect],
    ["Deciding output", row.output],
    ["On whole engines", whole && `${metric.text(whole.without)} without, ${metric.text(whole.with)} with it`],
    ["Requested / ran in", [row.asked, row.ran, row.ranWhere].filter(Boolean).join(", ")],
    ["Recipe", row.recipe],
    ["Node", row.node],
    ["Module", row.drawn?.module],
    ["Source line", row.drawn?.code],
    ["Multiply-adds", isNumber(row.share) && `${percent(row.share)} of the network's`],
    ["Time", isNumber(row.int8Milliseconds) && `${number(row.int8Milliseconds)} ms in ${LOW}`],
  ]);
}

// Losses with the layer alone in INT8, as bars against the largest of them.
function alone({ activation, weight, both }, { metric }) {
  const sides = Object.entries({ activations: activation, weights: weight, both });
  const losses = sides.filter(([, loss]) => isNumber(loss));
  if (!losses.length) return null;
  const largest = Math.max(...losses.map(([, loss]) => loss), Number.MIN_VALUE);
  const bar = ([name, loss]) => [
    h("span", name),
    h("i.bar", { style: { "--part": `${(100 * Math.max(0, loss)) / largest}%` } }),
    h("span.number", metric.lossText(loss)),
  ];
  return [h("h4", `Alone in ${LOW}: the loss`), h("div.bars", losses.map(bar))];
}

function roundings({ rounds }) {
  const rounded = ({ tensor, kind, producer, scale, also_for: others }) =>
    h(
      "div.rounded",
      h("code", tensor),
      h("p.under", `${kind} from ${producer}, scale ${number(scale)}`),
      others?.length ? h("p.under", `also rounded for ${others.join(", ")}`) : null,
    );
  return rounds.length ? [h("h4", `What ${LOW} rounds here`), rounds.map(rounded)] : null;
}

// What the layer reads, which is what INT8 rounds, its weights, what it makes.
function tensorsOf({ drawn, explained }, { explainedTensors }) {
  const read = (drawn?.inputs ?? []).map((name) => explainedTensors.get(name)).filter(Boolean);
  const tensors = {
    Input: read.slice(0, MOST_READ),
    Weight: explained?.weights,
    Bias: explained?.biases,
    Output: explained?.outputs,
  };
  return Object.entries(tensors).map(([title, some]) => some?.map((tensor) => tensorCard(title, tensor)));
}

function tensorCard(title, tensor) {
  const { clipped, channels } = tensor;
  return h(
    "section.tensor",
    h("h4", `${title} `, h("code", tensor.tensor)),
    pairs([
      ["Shape", shapeText(tensor.shape)],
      [`${LOW} scale`, number(tensor.scale)],
      ["FP32 range", range(tensor.fp32)],
      [isActivation(tensor) ? `${LOW}, as made` : `${LOW} range`, range(tensor.int8)],
      ["Cosine", percent(tensor.cosine)],
      ["SQNR", decibels(tensor.sqnr)],
      ["Clipped", clipped > 0 ? `${percent(clipped)}, beyond the dashed line` : percent(clipped)],
    ]),
    tensor.histogram && histogramOf(tensor),
    channels?.min.length > 1 && channelsOf(channels),
    tensor.map && mapOf(tensor.map),
    outlier(channels),
  );
}

// The figures of an activation are of what its layer makes in INT8; its histogram is of what the readers get, rounded.
function isActivation({ kind }) {
  return kind === "activation" || kind === "input";
}

function range({ min, max }) {
  return isNumber(min) ? `${number(min)} … ${number(max)}` : "";
}

function outlier(channels) {
  if (!isNumber(channels?.outlier)) return null;
  const times = isNumber(channels.times) ? `, ${number(channels.times, 3)} times the median of the others` : "";
  return h("p.under", `Outlier: channel ${channels.outlier}${times}.`);
}

function ends({ drawn }, { tensors }) {
  if (!drawn) return null;
  const end = (name) => {
    const { shape, dtype, scale } = tensors.get(name);
    const about = [shapeText(shape), dtype, isNumber(scale) ? `scale ${number(scale)}` : ""];
    return h("li", h("code", name), h("span.under", about.filter(Boolean).join(" · ")));
  };
  const list = (title, names) => names.length > 0 && [h("h4", title), h("ul.tensors", names.map(end))];
  return [list("Inputs", drawn.inputs), list("Outputs", drawn.outputs)];
}

function attributes({ drawn }) {
  const known = pairs(Object.entries(drawn?.attributes ?? {}));
  return known && [h("h4", "Attributes"), known];
}
