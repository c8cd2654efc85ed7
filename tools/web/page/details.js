// The selected layer: figures, roundings, tensors, attributes, histograms.

import { byId, h, show, whenIdle } from "./dom.js";
import { LOW, NOTHING, decibels, isNumber, number, percent, shapeText } from "./format.js";
import { drawMap, mapBox } from "./channel_map.js";
import { drawChannels, drawHistogram } from "./histograms.js";
import { verdictWord } from "./model.js";

const MOST_READ = 3;

export function startDetails(store) {
  const panel = byId("details");
  const state = { key: "" };
  const render = () => {
    state.key = JSON.stringify(store.row());
    showDetails(store);
  };
  store.on("selection", () => {
    panel.classList.toggle("chosen", store.selected !== null);
    panel.scrollTop = 0;
    render();
  });
  store.on("theme", render);
  store.on("model", () => {
    if (JSON.stringify(store.row()) !== state.key) render();
  });
  byId("details-close").addEventListener("click", () => closeDetails(panel));
  render();
}

export function closeDetails(panel = byId("details")) {
  panel.classList.remove("chosen");
}

function showDetails(store) {
  const row = store.row();
  byId("details-empty").hidden = row !== undefined;
  byId("details-said").textContent = row ? `Selected ${row.name}` : "Nothing selected";
  if (!row) return show(byId("details-body"), []);
  const plots = tensorsOf(row, store.model).map(([title, tensor]) => tensorCard(title, tensor));
  show(byId("details-body"), [
    heading(row),
    failure(row),
    figures(row, store.model),
    alone(row, store.model),
    roundings(row),
    ...plots.map((plot) => plot.element),
    ends(row, store),
    attributes(row),
  ]);
  drawInTurn(plots);
}

function heading(row) {
  const word = verdictWord(row);
  return [
    h("h3", { class: "layer-name" }, row.name),
    h(
      "p",
      { class: "chips" },
      word && h("span", { class: `chip ${row.culprit ? "culprit" : row.failed ? "warn" : ""}` }, word),
      h("span", { class: "chip" }, row.op_type),
      h("span", { class: "chip" }, row.shapeText),
      h("span", { class: "chip" }, `layer ${row.index}`),
    ),
  ];
}

function failure(row) {
  if (row.message) return h("pre", { class: "message", tabindex: 0 }, row.message);
  return row.why_not ? h("p", { class: "under" }, `Not in ${LOW}: ${row.why_not}.`) : null;
}

function pairs(entries) {
  const known = entries.filter(
    ([, value]) => value !== null && value !== undefined && value !== "" && value !== NOTHING,
  );
  if (!known.length) return null;
  return h(
    "dl",
    { class: "pairs" },
    known.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

function figures(row, { metric, figure }) {
  const whole = row.whole ? `${metric.text(row.whole.without)} without, ${metric.text(row.whole.with)} with it` : "";
  return pairs([
    [metric.name === "cosine" ? "Similarity" : metric.label, metric.text(row.similarity)],
    ["Loss here", row.outcome === "follows" ? "" : metric.drop(row.drop)],
    ["SQNR", metric.name === "sqnr" ? "" : decibels(row.sqnr)],
    ["Fixed alone", isNumber(row.gain) ? metric.drop(row.gain) : ""],
    [`If put back in ${LOW}`, isNumber(row.taken_back) ? figure.text(row.taken_back) : ""],
    ["Suspect", row.suspect ?? ""],
    ["Deciding output", row.output],
    ["On whole engines", whole],
    ["Asked, ran", [row.asked, row.ran, row.ranWhere].filter(Boolean).join(", ")],
    ["Recipe", row.recipe],
    ["Module", row.drawn?.module],
    ["Source line", row.drawn?.code],
    ["Cost", isNumber(row.share) ? `${percent(row.share)} of the multiply-adds` : ""],
    ["Time", isNumber(row.int8Milliseconds) ? `${number(row.int8Milliseconds)} ms in ${LOW}` : ""],
  ]);
}

// Losses with the layer alone in INT8, as bars against the largest of them.
function alone(row, { metric }) {
  const figures = [
    ["activations", row.activation],
    ["weights", row.weight],
    ["both", row.both],
  ].filter(([, value]) => isNumber(value));
  if (!figures.length) return null;
  const largest = Math.max(...figures.map(([, value]) => value), Number.MIN_VALUE);
  return [
    h("h4", {}, `Alone in ${LOW}: the loss`),
    h(
      "div",
      { class: "bars" },
      figures.map(([name, value]) => [
        h("span", {}, name),
        h("i", { class: "bar", style: { "--part": `${(100 * Math.max(0, value)) / largest}%` } }),
        h("span", { class: "number" }, metric.drop(value)),
      ]),
    ),
  ];
}

function roundings(row) {
  if (!row.rounds?.length) return null;
  return [
    h("h4", {}, `What ${LOW} rounds here`),
    row.rounds.map((rounded) =>
      h(
        "div",
        { class: "rounded" },
        h("code", {}, rounded.tensor),
        h("p", { class: "under" }, `${rounded.kind} from ${rounded.producer}, scale ${number(rounded.scale)}`),
        rounded.also_for?.length ? h("p", { class: "under" }, `also rounded for ${rounded.also_for.join(", ")}`) : null,
      ),
    ),
  ];
}

// One at a time, so that a click meanwhile is not kept waiting.
function drawInTurn([first, ...others]) {
  if (!first) return;
  whenIdle(() => {
    first.draw();
    if (first.element.isConnected) drawInTurn(others);
  });
}

// What the layer reads, which is what INT8 rounds, its weights, what it makes.
function tensorsOf(row, { explainedTensors }) {
  const titled = (title, tensors) => tensors.map((tensor) => [title, tensor]);
  const read = (row.drawn?.inputs ?? []).map((name) => explainedTensors.get(name)).filter(Boolean);
  return [
    ...titled("Reads", read.slice(0, MOST_READ)),
    ...titled("Weight", row.explained?.weights ?? []),
    ...titled("Bias", row.explained?.biases ?? []),
    ...titled("Makes", row.explained?.outputs ?? []),
  ];
}

function tensorCard(title, tensor) {
  const histogram = tensor.histogram ? h("div", { class: "plot small" }) : null;
  const channels = tensor.channels?.min?.length > 1 ? h("div", { class: "plot small" }) : null;
  const map = tensor.map ? mapBox(tensor.map) : null;
  const element = h(
    "section",
    { class: "tensor" },
    h("h4", {}, `${title} `, h("code", {}, tensor.tensor)),
    pairs([
      ["Shape", shapeText(tensor.shape)],
      [`${LOW} scale`, number(tensor.scale)],
      ["FP32 range", range(tensor.fp32)],
      [isActivation(tensor) ? `${LOW}, as made` : `${LOW} range`, range(tensor.int8)],
      ["Cosine", isNumber(tensor.cosine) ? percent(tensor.cosine) : ""],
      ["SQNR", decibels(tensor.sqnr)],
      [
        "Clipped",
        isNumber(tensor.clipped)
          ? `${percent(tensor.clipped)}${tensor.clipped > 0 ? ", beyond the dashed line" : ""}`
          : "",
      ],
    ]),
    histogram,
    channels,
    map,
    outlier(tensor.channels),
  );
  const draw = () => {
    if (histogram?.isConnected) drawHistogram(histogram, tensor);
    if (channels?.isConnected) drawChannels(channels, tensor.channels);
    if (map?.isConnected) drawMap(map, tensor.map);
  };
  return { element, draw };
}

// The figures of an activation are of what its layer makes in INT8; its histogram is of what the readers get, rounded.
function isActivation({ kind }) {
  return kind === "activation" || kind === "input";
}

function range(moments) {
  return isNumber(moments?.min) ? `${number(moments.min)} … ${number(moments.max)}` : "";
}

function outlier(channels) {
  if (!isNumber(channels?.outlier)) return null;
  const times = isNumber(channels.times) ? `, ${number(channels.times, 3)} times the median of the others` : "";
  return h("p", { class: "under" }, `Outlier: channel ${channels.outlier}${times}.`);
}

function ends(row, { model }) {
  if (!row.drawn) return null;
  const list = (title, names) =>
    names.length && [
      h("h4", {}, title),
      h(
        "ul",
        { class: "tensors" },
        names.map((name) => end(name, model)),
      ),
    ];
  return [list("Inputs", row.drawn.inputs), list("Outputs", row.drawn.outputs)];
}

function end(name, { tensors }) {
  const tensor = tensors.get(name);
  const about = [
    shapeText(tensor?.shape),
    tensor?.dtype,
    isNumber(tensor?.scale) ? `scale ${number(tensor.scale)}` : "",
  ];
  return h("li", {}, h("code", {}, name), h("span", { class: "under" }, about.filter(Boolean).join(" · ")));
}

function attributes(row) {
  const known = Object.entries(row.drawn?.attributes ?? {});
  return known.length ? [h("h4", {}, "Attributes"), pairs(known)] : null;
}
