// The data as the page uses it: one row a layer, with what report, explanation and graph say of it.

import { LOW, OTHER, PLANS, isNumber, metricOf, number, percent, shapeText } from "./format.js";

// Where the report has one of these in place of a precision, nothing shows in which precision the layer ran.
const UNPROVEN = { region: "in a region that TensorRT compiled as one", dla: `on the DLA, in ${LOW} or FP16` };
const QUIET = new Set(["measured", "follows", "not tried", "not judged"]);

export function modelOf(data) {
  const { explanation, graph, report } = data;
  const { answer, recipe } = report;
  const rows = rowsOf(data);
  const byAccuracy = Boolean(report.goal.drop);
  const least = byAccuracy ? report.accuracy?.least : report.threshold;
  const choices = Object.fromEntries(report.choices.map((choice) => [choice.plan, choice]));
  const fp16 = byAccuracy ? choices.fp16?.accuracy : choices.fp16?.similarity;
  // Else the recipe is full INT8 of the user's network, as far as is known.
  const hasRecipe = !answer || recipe.high.length > 0 || Boolean(answer.changes);
  const isShown = { fp16: choices.fp16, recipe: hasRecipe };
  return {
    data,
    report,
    figure: metricOf(byAccuracy ? "accuracy" : report.metric, least),
    figures: { ...(byAccuracy ? report.accuracy : report.similarity), fp16 },
    least,
    metric: metricOf(report.metric, report.threshold),
    rows,
    byName: new Map(rows.map((row) => [row.name, row])),
    culprits: rows.filter((row) => row.culprit),
    suspects: rows.filter((row) => row.suspect),
    choices,
    hasRecipe,
    plan: hasRecipe ? "the recipe" : `full ${LOW}`,
    plans: Object.keys(PLANS).filter((plan) => !(plan in isShown) || isShown[plan]),
    cost: costsOf(data),
    tensors: new Map(Object.entries(graph?.tensors ?? {})),
    explainedTensors: new Map(explainedTensors(explanation).map((tensor) => [tensor.tensor, tensor])),
    adviceOn: new Map((explanation?.advice ?? []).map((one) => [one.culprit, one])),
  };
}

// A cost is the share of the speedup that is given up; where it comes from predicted times, it is told as the time.
function costsOf({ predicted_ms: times, report }) {
  if (!times) {
    const title = `share of ${LOW}'s speedup over ${OTHER} that is given up`;
    return { at: (cost) => 100 * cost, text: percent, title, unit: "%" };
  }
  const at = (cost) => times[0] + cost * times[1];
  const text = (cost) => (isNumber(cost) ? `${number(at(cost), 3)} ms` : percent(cost));
  return { at, text, title: `time predicted on ${report.predicted.gpu}`, unit: " ms" };
}

// Activations and the network's inputs, which layers read and INT8 rounds.
function explainedTensors(explanation) {
  if (!explanation) return [];
  return [...explanation.inputs, ...Object.values(explanation.layers).flatMap((layer) => layer.outputs)];
}

function rowsOf({ explanation, graph, report, put_back_remarks }) {
  const drawn = new Map(graph?.layers.map((layer) => [layer.name, layer]));
  const explained = new Map(Object.entries(explanation?.layers ?? {}));
  const [int8, recipe] = ["int8", "recipe"].map((plan) => layerTimes(report.latency?.[plan]));
  const remarks = new Map(Object.entries(put_back_remarks));
  const [high, added] = [new Set(report.recipe.high), new Set(report.recipe.added)];
  return report.layers.map((layer) => {
    const known = explained.get(layer.name);
    const made = known?.outputs[0];
    const alone = known?.sensitivity;
    return {
      ...layer,
      explained: known,
      drawn: drawn.get(layer.name),
      shapeText: shapeText(layer.shape),
      failed: !QUIET.has(layer.outcome),
      high: high.has(layer.name),
      added: added.has(layer.name),
      ran: layer.ran in UNPROVEN ? "unproven" : layer.ran,
      ranWhere: UNPROVEN[layer.ran] ?? "",
      // What the recipe runs it in; a layer that no plan changes follows those around it.
      precision: layer.quantizable ? layer.recipe : "follows",
      isLow: layer.quantizable && layer.recipe === report.low,
      activation: alone?.activation,
      weight: alone?.weight,
      both: alone?.both,
      alone: layer.alone ?? alone?.alone,
      // Kept high for the rest of the curve.
      setAside: layer.suspect !== "" || (layer.culprit && layer.loss >= report.share * report.budget),
      putBackOn: remarks.get(layer.name) ?? "",
      mse: made?.mse,
      fp32Min: made?.fp32.min,
      fp32Max: made?.fp32.max,
      int8Min: made?.int8.min,
      int8Max: made?.int8.max,
      share: known?.share,
      int8Milliseconds: int8.get(layer.name),
      recipeMilliseconds: recipe.get(layer.name),
    };
  });
}

// An engine layer's time is that of every layer fused into it.
function layerTimes(timed) {
  const times = new Map();
  for (const part of timed?.layers ?? []) {
    for (const name of part.layers) times.set(name, (times.get(name) ?? 0) + part.milliseconds);
  }
  return times;
}

// Sorted by this, and then by the loss, what matters most comes first.
export function rankOf(row) {
  const place = [row.culprit, row.suspect, row.added, row.failed, row.quantizable].findIndex(Boolean);
  return place < 0 ? 5 : place;
}

export function verdictWord(row) {
  if (row.culprit) return "culprit";
  if (row.failed) return row.outcome;
  if (row.suspect) return "suspect";
  if (row.added) return "kept high too";
  return row.outcome === "measured" ? "" : row.outcome;
}
