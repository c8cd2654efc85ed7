// The verdict: the figures, what they rest on, the culprits, the calibrators, the recipe on all inputs; and at the foot
// what the run was.

import { byId, command, facts, folded, h, layerLink, phrase, plainTable, showAll } from "./dom.js";
import {
  EXPLAINED,
  LOW,
  NOTHING,
  OTHER,
  PLANS,
  accuracyText,
  bytes,
  capital,
  count,
  duration,
  isNumber,
  number,
  percent,
  plural,
} from "./format.js";

const NOTES_SHOWN = 5;
const LISTED = 50;
const EQUALS = 5;
const SHIP = "ship fp16";
const DOUBTING = new Set(["doubted", "data", "part", "few inputs"]);
// The headline, what could reverse it, and the table of culprits say these.
const ELSEWHERE = new Set(["fails", "passes", "passes with doubts", "culprits", "unsure", SHIP]);

export function showVerdict(store) {
  const { model } = store;
  const { data, report, plans } = model;
  const { answer } = report;
  const inBrief = (wanted) =>
    (answer ? report.lines : []).filter((line) => wanted(line.kind)).map((line) => labelled(line.text));
  document.title = `${report.model} · trt-bisect`;
  byId("headline").className = data.tones.verdict;
  showAll({
    model: report.model,
    headline: data.headline,
    ship: inBrief((kind) => kind === SHIP),
    figures: plans.map((plan) => card(model, plan)),
    next: next(report),
    doubts: inBrief((kind) => DOUBTING.has(kind)),
    fragile: data.fragile.length > 0 && [h("strong", "Fragile: "), `${data.fragile.join("; ")}.`],
    basis: [explained(model), arithmetic(report), made(report)],
    answer: [
      inBrief((kind) => !DOUBTING.has(kind) && !ELSEWHERE.has(kind)),
      culprits(store),
      answer && [calibrators(answer, model), recipeOn(answer, model), equals(answer)],
    ],
    confidence: confidence(answer),
    notes: notes(report),
    "about-body": [about(model), data.command && command(data.command)],
  });
}

// "RECIPE: with 2 layers ..." with the word before the colon in bold.
function labelled(line) {
  const [, label, rest] = /^([A-Z][A-Z0-9 ]+): (.*)$/.exec(line) ?? [null, "", line];
  return h("p", label && h("strong", `${capital(label.toLowerCase()).replace("fp16", "FP16")}: `), phrase(rest));
}

function card(model, plan) {
  const { data, report, figure, figures, choices } = model;
  const isUndecided = plan === "recipe" && data.status !== "finished" && !report.answer;
  const value = plan === "fp32" ? (figure.perfect ?? figures.fp32) : figures[plan];
  const passed = { true: "good", false: "bad" };
  const tone = plan === "fp16" ? passed[choices.fp16.meets] : isNumber(value) && data.tones[plan];
  const more = [beside(model, plan), speed(model, plan)].filter(Boolean);
  return h(
    "div.card",
    { class: tone || "", "data-plan": plan },
    h("h2", isUndecided ? "Suspects in high precision" : PLANS[plan]),
    h("p.figure", figure.text(value)),
    h("p.under", under(model, plan)),
    more.map((text) => h("p.speed", text)),
  );
}

function under(model, plan) {
  const { data, report, figure, figures, least, rows, choices } = model;
  if (plan === "fp32") return isNumber(least) ? `reference; threshold ${figure.text(least)}` : "reference";
  if (plan === "fp16") {
    const words = { true: "passes", false: "fails", null: "not measured" };
    return `${words[choices.fp16.meets]}, and needs no scales`;
  }
  const inputs = measuredOn(model, plan);
  const quantizable = rows.filter((row) => row.quantizable);
  if (plan === "int8") return `${plural(quantizable.length, "layer")} in ${LOW}${inputs}`;
  if (!isNumber(figures.recipe)) return "";
  const shares = quantizable.filter((row) => !row.high).map((row) => row.share);
  const share = percent(shares.reduce((sum, one) => sum + one, 0));
  const isTold = report.recipe.high.length > 0 && shares.length > 0 && shares.every(isNumber);
  return data.layers_high + (isTold ? `, ${share} of the multiply-adds in ${LOW}` : "") + inputs;
}

// What a figure is, and the inputs that it is of, where it is of several.
function measuredOn({ report, figure, metric }, plan) {
  const several = report.by_input[plan];
  if (figure.isAccuracy || !several) return `; ${figure.label}`;
  const inputs = plural(several.inputs, "input");
  const worst = several.values[several.worst];
  const value = report.similarity[plan];
  const isOfAll = isNumber(worst) && isNumber(value) && Math.abs(worst - value) > 1e-6 * Math.abs(value);
  return `; ${metric.label} ${several.together || isOfAll ? `pooled over ${inputs}` : `on the worst of ${inputs}`}`;
}

// The accuracy on labelled data, where there are such, and its ratio to FP32's; where it decides, the similarity.
function beside({ report: { accuracy, similarity }, figure, metric, choices }, plan) {
  if (!accuracy) return "";
  if (figure.isAccuracy) {
    const value = similarity[plan] ?? choices[plan]?.similarity;
    return isNumber(value) && `${metric.label} ${metric.text(value)}`;
  }
  const value = accuracy[plan];
  if (!isNumber(value)) return "accuracy not measured";
  const isRatio = plan !== "fp32" && accuracy.fp32 > 0 && value >= 0;
  return `accuracy ${accuracyText(value)}${isRatio ? ` · ${percent(value / accuracy.fp32)} of FP32's` : ""}`;
}

// The measured time, else the predicted one, else the share of the speedup over FP16 that the plan keeps.
function speed({ report: { latency, predicted }, choices }, plan) {
  const timeOf = (one) => (latency ? latency[one]?.mean_ms : choices[one]?.ms);
  const ms = timeOf(plan);
  if (isNumber(ms)) {
    const fp32 = timeOf("fp32");
    const times = plan !== "fp32" && isNumber(fp32) ? ` · ${(fp32 / ms).toFixed(2)}× FP32` : "";
    const { p99_ms: p99 } = latency?.[plan] ?? {};
    if (latency) return `${number(ms)} ms${isNumber(p99) ? ` (p99 ${number(p99)})` : ""}${times}`;
    return `${number(ms, 3)} ms predicted on ${predicted.gpu}${times}`;
  }
  if (latency) return "latency not measured";
  if (plan !== "recipe" || !choices.recipe) return "";
  const up = choices.recipe.gives_up;
  if (up >= 1) return `${up > 1 ? "slower than" : "as fast as"} ${OTHER}`;
  return `keeps ${percent(1 - up)} of ${LOW}'s speedup over ${OTHER}`;
}

function next({ next: step }) {
  return step && [h("h2", phrase(`Next: ${step.what}`)), step.command && command(step.command)];
}

// With labels there are accuracies too, and it is told which percentages are none.
function explained({ metric, report }) {
  const words = EXPLAINED[metric.name];
  const apart = "Accuracies are on the labelled data. The other percentages are";
  return words && h("p.under", report.accuracy ? words.replace("Percentages are", apart) : words);
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

// The time and the network, to tell one printed page from another.
function made({ started, network, model }) {
  const time = started ? new Date(1000 * started).toISOString().slice(0, 16).replace("T", " ") : "";
  const parts = [model, network && `network ${network.slice(0, 12)}`, time && `${time} UTC`].filter(Boolean);
  return h("p.under.made", { title: network || null }, parts.join(" · "));
}

function culprits(store) {
  const { metric, figure, adviceOn, byName, data } = store.model;
  const line = (row) => {
    const { blame, reasons = [] } = adviceOn.get(row.name) ?? {};
    return [
      layerLink(store, row.name),
      figure.text(row.put_back) + row.putBackOn,
      metric.lossText(row.loss),
      metric.lossText(row.alone),
      row.op_type,
      [blame, reasons[0] ?? "no single cause found"].filter(Boolean).join(": "),
    ];
  };
  const titles = [
    [`if put back in ${LOW}`, `What the recipe measures if this layer is put back in ${LOW}, on the worst input`],
    ["loss", "Loss that this layer adds on the curve"],
    ["alone", `Loss that full ${LOW} wins back if only this layer is in high precision`],
    ["op", "Operator"],
    ["cause", "The side that loses, and the first reason"],
  ];
  const network = data.report.answer?.changes ? " of the unchanged network" : "";
  const table = (id, title, names) => {
    const lines = names.slice(0, LISTED).map((name) => line(byName.get(name)));
    const heads = [title + network, ...titles];
    return lines.length > 0 && plainTable(id, heads, [1, 4], lines, names.length - LISTED, "layers.csv");
  };
  const [main, weak] = data.ranked_culprits;
  return [table("culprits", "Culprit", main), table("weak-culprits", "Weak culprit", weak)];
}

function calibrators({ calibrators: rows }, { metric, cost, report }) {
  if (rows.length < 2) return null;
  const inputs = Math.max(...rows.map((row) => row.inputs));
  const line = (row) => [
    row.calibrator,
    metric.text(row.similarity) + (row.inputs < inputs ? " or worse" : ""),
    count(row.inputs),
    report.goal.drop ? NOTHING : row.meets ? "yes" : "no",
    cost.text(row.cost),
    count(row.high),
    metric.lossText(row.mean_loss),
    row.chosen ? "chosen" : "",
  ];
  const titles = [
    "Calibrator",
    [`full ${LOW}, worst`, `${capital(metric.label)} of the worst of these inputs`],
    ["inputs", "Inputs measured: a calibrator that misses on the first one is given up there"],
    ["passes", `Full ${LOW} meets the threshold on all of your inputs`],
    ["first recipe", `The first recipe with these scales: ${cost.title}`],
    ["layers high", "Layers that this recipe keeps in high precision"],
    ["mean loss", "Mean loss of this recipe over the inputs used in the search"],
    "",
  ];
  return [h("h3", "Calibrators"), plainTable("calibrators", titles, 1, rows.map(line))];
}

function recipeOn({ given, held_out, settings }, { metric, plan }) {
  const held = Object.entries({ "your inputs": given, "held-out inputs": held_out }).filter(([, inputs]) => inputs);
  if (!held.length) return null;
  const line = ([name, inputs]) => [
    name,
    `${count(inputs.holds)} of ${count(inputs.inputs)}`,
    metric.text(inputs.mean),
    metric.text(inputs.fifth),
    metric.text(inputs.worst),
    inputs.worst_input,
  ];
  const elsewhere = Object.entries(settings).map(([name, value]) => `${name} ${metric.text(value)}`);
  const titles = [
    "Inputs",
    ["passes", `Inputs on which ${plan} meets the threshold`],
    ["mean", `Mean ${metric.label}`],
    ["5th percentile", "95% of the inputs are as good or better"],
    ["worst", `Lowest ${metric.label}`],
    ["which", "The worst input"],
  ];
  return [
    h("h3", `${capital(plan)} on all inputs`),
    plainTable("held", titles, [1, 5], held.map(line)),
    elsewhere.length > 1 && h("p.under", `Worst input in other settings: ${elsewhere.join(", ")}.`),
  ];
}

function equals({ equals: sets }) {
  if (!sets.length) return null;
  const items = sets.slice(0, EQUALS).map((names) => h("li", names.join(", ")));
  const [costs, passes] = sets.length === 1 ? ["costs", "passes"] : ["cost", "pass"];
  const words = `${plural(sets.length, "other set")} of layers ${costs} the same and also ${passes}`;
  return folded(words, h("ul.under", items));
}

// Each sentence begins with the words that say it in short, which end with a full stop when they stand alone.
function confidence(answer) {
  if (!answer?.confidence.length) return null;
  const item = ({ text, short }) => {
    const begins = short && text.startsWith(short.slice(0, -1)) ? short.length - 1 : 0;
    return h("li", h("strong", text.slice(0, begins)), text.slice(begins));
  };
  return [h("h3", "What this rests on"), h("ul", answer.confidence.map(item))];
}

function notes({ notes: all }) {
  const items = all.map((note) => h("li", phrase(note.text)));
  const rest = items.splice(NOTES_SHOWN);
  return (
    items.length > 0 && [
      h("h3", "Notes"),
      h("ul", items),
      rest.length > 0 && folded(`${count(rest.length)} more`, h("ul", rest)),
    ]
  );
}

function about({ report, metric }) {
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
