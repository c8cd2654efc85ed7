// The verdict, the three figures, what they rest on; and at the foot what the run was.

import { byId, h, show } from "./dom.js";
import { EXPLAINED, LOW, OTHER, PLANS, bytes, count, duration, isNumber, number, percent, plural } from "./format.js";
import { hasRecipe } from "./model.js";
import { command, facts, folded, phrase } from "./parts.js";

const NOTES_SHOWN = 5;
const PASSED = new Map([
  [true, { word: "passes", tone: "good" }],
  [false, { word: "fails", tone: "bad" }],
]);
const UNDECIDED = { ...PLANS, recipe: "Suspects in high precision" };

export function showVerdict({ model }) {
  const { data, report, metric } = model;
  byId("model").textContent = report.model;
  document.title = `${report.model} · trt-bisect`;
  byId("headline").className = data.tones.verdict;
  byId("headline").textContent = data.headline;
  const optional = { fp16: choiceOf(report, "fp16"), recipe: hasRecipe(report) };
  const plans = Object.keys(PLANS).filter((plan) => !(plan in optional) || optional[plan]);
  show(
    byId("figures"),
    plans.map((plan) => card(model, plan)),
  );
  show(byId("next"), next(report));
  show(byId("fragile"), data.fragile.length > 0 && [h("strong", "Fragile: "), `${data.fragile.join("; ")}.`]);
  show(byId("basis"), [explained(model), arithmetic(report), made(report)]);
  show(byId("confidence"), confidence(report));
  show(byId("about-body"), [about(report, metric), data.command && command(data.command)]);
  show(byId("notes"), notes(report));
}

// With labels there are accuracies too, and it is told which percentages are none.
function explained({ metric: { name }, report: { accuracy } }) {
  const words = EXPLAINED[name];
  if (!words) return null;
  const apart = "Accuracies are on the labelled data. The other percentages are";
  return h("p.under", accuracy ? words.replace("Percentages are", apart) : words);
}

// The time and the network, to tell one printed page from another.
function made({ started, network, model }) {
  const time = started ? new Date(1000 * started).toISOString().slice(0, 16).replace("T", " ") : "";
  const parts = [model, network && `network ${network.slice(0, 12)}`, time && `${time} UTC`].filter(Boolean);
  return h("p.under.made", { title: network || null }, parts.join(" · "));
}

function next({ next: step }) {
  return step && [h("h2", phrase(`Next: ${step.what}`)), step.command && command(step.command)];
}

// Each sentence begins with the words that say it in short, which end with a full stop when they stand alone.
function confidence({ answer }) {
  if (!answer?.confidence.length) return null;
  const item = ({ text, short }) => {
    const begins = short && text.startsWith(short.slice(0, -1)) ? short.length - 1 : 0;
    return h("li", h("strong", text.slice(0, begins)), text.slice(begins));
  };
  return [h("h3", "What this rests on"), h("ul", answer.confidence.map(item))];
}

function card(model, plan) {
  const { data, report, figure, figures } = model;
  const titles = data.status === "finished" || report.answer ? PLANS : UNDECIDED;
  let value = plan === "fp32" ? (figure.perfect ?? figures.fp32) : figures[plan];
  let tone = isNumber(figures[plan]) ? data.tones[plan] : "";
  if (plan === "fp16") {
    const fp16 = choiceOf(report, plan);
    value = figure.isAccuracy ? fp16.accuracy : fp16.similarity;
    tone = PASSED.get(fp16.meets)?.tone ?? "";
  }
  return h(
    "div.card",
    { class: tone, "data-plan": plan },
    h("h2", titles[plan]),
    h("p.figure", figure.text(value)),
    h("p.under", under(model, plan)),
    [beside(model, plan), speed(report, plan)].filter(Boolean).map((text) => h("p.speed", text)),
  );
}

function choiceOf({ choices }, plan) {
  return choices.find((choice) => choice.plan === plan);
}

function under(model, plan) {
  const { report, figure, figures, least, rows } = model;
  const quantizable = rows.filter((row) => row.quantizable);
  if (plan === "fp32") return isNumber(least) ? `reference; threshold ${figure.text(least)}` : "reference";
  if (plan === "fp16")
    return `${PASSED.get(choiceOf(report, plan).meets)?.word ?? "not measured"}, and needs no scales`;
  const inputs = measuredOn(model, plan);
  if (plan === "int8") return `${plural(quantizable.length, "layer")} in ${LOW}${inputs}`;
  if (!isNumber(figures.recipe)) return "";
  const kept = report.recipe.high.length;
  if (!kept) return `no layer in high precision${inputs}`;
  const shares = quantizable.filter((row) => !row.high).map((row) => row.share);
  const share = percent(shares.reduce((sum, one) => sum + one, 0));
  const isKnown = shares.length > 0 && shares.every(isNumber);
  const low = isKnown ? `, ${share} of the multiply-adds in ${LOW}` : "";
  return `${plural(kept, "layer")} in ${model.keptIn}${low}${inputs}`;
}

// What a figure is, and the inputs that it is of, where it is of several.
function measuredOn({ report, figure, metric }, plan) {
  if (figure.isAccuracy) return `; ${figure.label}`;
  const several = report.by_input[plan];
  if (!several) return `; ${metric.label}`;
  const inputs = plural(several.inputs, "input");
  const worst = several.values[several.worst];
  const value = report.similarity[plan];
  const isOfAll = isNumber(worst) && isNumber(value) && Math.abs(worst - value) > 1e-6 * Math.abs(value);
  return `; ${metric.label} ${several.together || isOfAll ? `pooled over ${inputs}` : `on the worst of ${inputs}`}`;
}

// The accuracy on labelled data, where there are such, and its ratio to FP32's; where it decides, the similarity.
function beside({ report: { accuracy, similarity, choices }, figure, metric }, plan) {
  if (!accuracy) return "";
  if (figure.isAccuracy) {
    const value = similarity[plan] ?? choiceOf({ choices }, plan)?.similarity;
    return isNumber(value) && `${metric.label} ${metric.text(value)}`;
  }
  const value = accuracy[plan];
  if (!isNumber(value)) return "accuracy not measured";
  const text = value >= 0 && value <= 1 ? percent(value) : number(value);
  const ratio = plan !== "fp32" && accuracy.fp32 ? ` · ${percent(value / accuracy.fp32)} of FP32's` : "";
  return `accuracy ${text}${ratio}`;
}

// The measured time, else the predicted one, else the share of the speedup over FP16 that the plan keeps.
function speed(report, plan) {
  const { latency } = report;
  if (!latency) return foreseen(report, plan);
  const timed = latency[plan];
  if (!timed) return "latency not measured";
  const against = timesFp32(plan, latency.fp32?.mean_ms, timed.mean_ms);
  const p99 = isNumber(timed.p99_ms) ? ` (p99 ${number(timed.p99_ms)})` : "";
  return `${number(timed.mean_ms)} ms${p99}${against}`;
}

function timesFp32(plan, fp32, ms) {
  return plan !== "fp32" && isNumber(fp32) ? ` · ${(fp32 / ms).toFixed(2)}× FP32` : "";
}

function foreseen(report, plan) {
  const choice = choiceOf(report, plan);
  if (!choice) return "";
  if (isNumber(choice.ms)) {
    const against = timesFp32(plan, choiceOf(report, "fp32")?.ms, choice.ms);
    return `${number(choice.ms, 3)} ms predicted on ${report.predicted.gpu}${against}`;
  }
  if (plan !== "recipe") return "";
  if (choice.gives_up >= 1) return `${choice.gives_up > 1 ? "slower than" : "as fast as"} ${OTHER}`;
  return `keeps ${percent(1 - choice.gives_up)} of ${LOW}'s speedup over ${OTHER}`;
}

function arithmetic({ arithmetic: kind, versions, engine, typing }) {
  if (!kind) return null;
  const version = [engine, versions[engine]].filter(Boolean).join(" ");
  const typed = engine === "onnxruntime" ? "" : `, ${typing} typing`;
  const words = {
    measured: ` on ${versions.device ?? "an NVIDIA GPU"} with ${version}${typed}`,
    emulated: ` with ${version}: TensorRT's rounding, no NVIDIA GPU involved`,
  };
  return h("p.arithmetic", h("span.chip", { class: kind }, kind), words[kind]);
}

function about(report, metric) {
  const { judged, searched } = report.inputs;
  const versions = Object.entries(report.versions).map(([name, version]) => `${name} ${version}`);
  return facts([
    ["Metric", metric.label],
    ["Inputs of the curve", `${count(judged)}${searched ? ` worst of ${count(searched)}` : ""}`],
    ["Calibrator", report.ranges.origin],
    ["Strategy", report.strategy],
    ["Plans tried", `${count(report.plans)}, ${plural(report.builds, "engine")} built`],
    ["Time", duration(report.seconds.total)],
    ["Memory", report.peak_bytes ? bytes(report.peak_bytes) : ""],
    ["Network (SHA-256)", report.network],
    ["Versions", versions.join(" · ")],
  ]);
}

function notes(report) {
  if (!report.notes.length) return null;
  const items = (some) =>
    h(
      "ul",
      some.map(({ text }) => h("li", phrase(text))),
    );
  const rest = report.notes.slice(NOTES_SHOWN);
  return [
    h("h3", "Notes"),
    items(report.notes.slice(0, NOTES_SHOWN)),
    rest.length ? folded(`${count(rest.length)} more`, items(rest)) : null,
  ];
}
