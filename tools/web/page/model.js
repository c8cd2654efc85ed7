// The data as the page uses it: one row a layer, with what report, explanation and graph say of it.

import { LOW, isNumber, metricOf, shapeText } from "./format.js";

// Where the report has one of these in place of a precision, nothing shows in which precision the layer ran.
const UNPROVEN = { region: "in a region that TensorRT compiled as one", dla: `on the DLA, in ${LOW} or FP16` };
const QUIET = new Set(["measured", "follows", "not tried", "not judged"]);

export function modelOf(data) {
  const report = data.report ?? {};
  const explained = new Map(Object.entries(data.explanation?.layers ?? {}));
  const drawn = new Map((data.graph?.layers ?? []).map((layer) => [layer.name, layer]));
  const milliseconds = { int8: layerTimes(report, "int8"), recipe: layerTimes(report, "recipe") };
  const added = new Set(report.recipe?.added ?? []);
  const high = new Set(report.recipe?.high ?? []);
  const rows = (report.layers ?? []).map((layer) =>
    rowOf(layer, report, explained.get(layer.name), drawn.get(layer.name), milliseconds, high, added),
  );
  const byAccuracy = Boolean(report.goal?.drop);
  const least = byAccuracy ? report.accuracy?.least : report.threshold;
  return {
    data,
    report,
    figure: byAccuracy ? metricOf("accuracy", least) : metricOf(report.metric, least),
    figures: (byAccuracy ? report.accuracy : report.similarity) ?? {},
    least,
    metric: metricOf(report.metric, report.threshold),
    rows,
    byName: new Map(rows.map((row) => [row.name, row])),
    culprits: rows.filter((row) => row.culprit),
    suspects: rows.filter((row) => row.suspect),
    keptIn: keptIn(rows, report.precision),
    tensors: new Map(Object.entries(data.graph?.tensors ?? {})),
    explainedTensors: new Map(explainedTensors(data.explanation).map((tensor) => [tensor.tensor, tensor])),
  };
}

// The precisions of the layers that the recipe leaves high: "FP16 and FP32".
function keptIn(rows, usual = "fp32") {
  const kept = new Set(rows.filter((row) => row.high).map((row) => row.recipe || usual));
  const named = [...(kept.size ? kept : [usual])].map((precision) => precision.toUpperCase());
  return named.sort().join(" and ");
}

// Activations and the network's inputs, which layers read and INT8 rounds.
function explainedTensors(explanation) {
  const made = Object.values(explanation?.layers ?? {}).flatMap((layer) => layer.outputs ?? []);
  return [...(explanation?.inputs ?? []), ...made];
}

function rowOf(layer, report, explained, drawn, milliseconds, high, added) {
  const made = explained?.outputs?.[0];
  const alone = explained?.sensitivity;
  return {
    ...layer,
    explained,
    drawn,
    shapeText: shapeText(layer.shape),
    failed: !QUIET.has(layer.outcome),
    measured: layer.quantizable && isNumber(layer.similarity) && layer.outcome !== "follows",
    high: high.has(layer.name),
    added: added.has(layer.name),
    ran: layer.ran in UNPROVEN ? "unproven" : layer.ran,
    ranWhere: UNPROVEN[layer.ran] ?? "",
    precision: precisionOf(layer),
    isLow: layer.quantizable && layer.recipe === (report.low ?? "int8"),
    activation: alone?.activation,
    weight: alone?.weight,
    both: alone?.both,
    gain: layer.gain ?? alone?.gain,
    setAside: isSetAside(layer, report),
    mse: made?.mse,
    fp32Min: made?.fp32?.min,
    fp32Max: made?.fp32?.max,
    int8Min: made?.int8?.min,
    int8Max: made?.int8?.max,
    share: explained?.share,
    int8Milliseconds: milliseconds.int8.get(layer.name),
    recipeMilliseconds: milliseconds.recipe.get(layer.name),
  };
}

// Kept high for the rest of the curve: a suspect. In older reports, without an answer, every culprit is one.
function isSetAside(layer, { answer, share, budget }) {
  return Boolean(layer.suspect) || (layer.culprit && !answer) || (layer.culprit && layer.drop >= share * budget);
}

// What the recipe runs a layer in; a layer that no plan changes follows those around it.
function precisionOf(layer) {
  if (!layer.quantizable) return "follows";
  return layer.recipe || "";
}

// An engine layer's time is that of every layer fused into it.
function layerTimes(report, plan) {
  const times = new Map();
  for (const part of report.latency?.[plan]?.layers ?? []) {
    for (const name of part.layers) times.set(name, (times.get(name) ?? 0) + part.milliseconds);
  }
  return times;
}

const STANDINGS = ["culprit", "suspect", "kept", "failed", "", "follows"];

// Sorted by this, and then by the drop, what matters most comes first.
export function rankOf(row) {
  const standing = row.culprit ? "culprit" : row.suspect ? "suspect" : row.added ? "kept" : row.failed ? "failed" : "";
  return STANDINGS.indexOf(!standing && !row.quantizable ? "follows" : standing);
}

export function verdictWord(row) {
  if (row.culprit) return "culprit";
  if (row.failed) return row.outcome;
  if (row.suspect) return "suspect";
  if (row.added) return "kept high too";
  return row.outcome === "measured" ? "" : row.outcome;
}
