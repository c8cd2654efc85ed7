// The verdict, the three figures, what they rest on; and at the foot what the run was.

import { byId, copyButton, h, show } from "./dom.js";
import { LOW, bytes, count, duration, inShort, isNumber, number, percent, plural, similarityText } from "./format.js";

const NOTES_SHOWN = 5;
const ACCURACY = "accuracy";

export function showVerdict({ model }) {
  const { data, report, metric } = model;
  byId("model").textContent = report.model ?? "";
  document.title = `${report.model ?? "run"} · trt-bisect`;
  byId("headline").className = data.tones?.verdict ?? "";
  byId("headline").textContent = data.headline || "Nothing has been measured yet.";
  show(byId("figures"), [card(model, "fp32"), card(model, "int8"), card(model, "recipe")]);
  show(byId("next"), next(report));
  show(byId("basis"), [arithmetic(report)]);
  show(byId("confidence"), confidence(report.answer, metric));
  show(byId("about-body"), [facts(data, report, metric), command(data.command)]);
  show(byId("notes"), notes(report));
}

function next({ next: step }) {
  return step ? [h("h2", {}, `Next: ${step.what}`), command(step.command)] : null;
}

// Each sentence begins with the words that say it in short, which end with a full stop when they stand alone.
function confidence(answer, metric) {
  const said = answer?.confidence ?? [];
  if (!said.length) return null;
  const item = ({ text, short }) => {
    const begins = short && text.startsWith(short.slice(0, -1)) ? short.length - 1 : 0;
    return h("li", {}, h("strong", {}, text.slice(0, begins)), inShort(text.slice(begins), metric));
  };
  return [h("h3", {}, "What this rests on"), h("ul", {}, said.map(item))];
}

const TITLES = { fp32: "FP32", int8: `Full ${LOW}`, recipe: "Recipe" };
const UNDECIDED = { ...TITLES, recipe: "Suspects high" };

function card(model, plan) {
  const { report, metric } = model;
  const value = report.similarity?.[plan];
  const reference = plan === "fp32";
  const figure = metric.text(reference ? (metric.perfect ?? report.accuracy?.fp32) : value);
  return h(
    "div",
    { class: `card ${standing(model, plan)}`, "data-plan": plan },
    h("h2", {}, (model.data.status === "finished" || report.answer ? TITLES : UNDECIDED)[plan]),
    h("p", { class: "figure" }, figure),
    h("p", { class: "under" }, under(model, plan)),
    accuracy(report, plan),
    speed(report, plan),
  );
}

function standing({ data, report }, plan) {
  return isNumber(report.similarity?.[plan]) ? (data.tones?.[plan] ?? "") : "";
}

function under(model, plan) {
  const { report, metric, rows } = model;
  const quantizable = rows.filter((row) => row.quantizable);
  if (plan === "fp32")
    return isNumber(report.threshold)
      ? `the reference; the threshold is ${metric.text(report.threshold)}`
      : "the reference";
  if (plan === "int8") return `${plural(quantizable.length, "layer")} in ${LOW}${overInputs(report, plan)}`;
  const kept = (report.recipe?.high ?? []).length;
  if (!isNumber(report.similarity?.recipe)) return "";
  if (!kept) return `the same: nothing is left high${overInputs(report, plan)}`;
  const left = `${plural(kept, "layer")} left in ${(report.precision ?? "fp32").toUpperCase()}`;
  const shares = quantizable.filter((row) => !row.high).map((row) => row.share);
  const inputs = overInputs(report, plan);
  if (!shares.length || !shares.every(isNumber)) return left + inputs;
  const share = similarityText(shares.reduce((sum, one) => sum + one, 0));
  return `${left}, ${share} of the multiply-adds in ${LOW}${inputs}`;
}

// The inputs that a figure is of, where it is of several.
function overInputs({ by_input: byInput }, plan) {
  const facts = byInput?.[plan];
  if (!facts) return "";
  const inputs = plural(facts.inputs, "input");
  return facts.together ? `; over ${inputs} together` : `; on the worst of ${inputs}`;
}

// On labelled data, where there are such, and its ratio to FP32's.
function accuracy({ accuracy: measured, metric }, plan) {
  if (!measured || metric === ACCURACY) return null;
  const value = measured[plan];
  if (!isNumber(value)) return h("p", { class: "speed" }, "accuracy not measured");
  const text = value >= 0 && value <= 1 ? percent(value, 2) : number(value);
  const ratio = plan !== "fp32" && measured.fp32 ? ` · ${(value / measured.fp32).toFixed(4)} of FP32's` : "";
  return h("p", { class: "speed" }, `accuracy ${text}${ratio}`);
}

function speed(report, plan) {
  if (!report.latency) return null;
  const timed = report.latency[plan];
  if (!timed) return h("p", { class: "speed" }, "latency not measured");
  const ratio = report.latency.fp32 ? report.latency.fp32.mean_ms / timed.mean_ms : null;
  const against = plan !== "fp32" && isNumber(ratio) ? ` · ${ratio.toFixed(2)}× FP32` : "";
  return h("p", { class: "speed" }, `${number(timed.mean_ms)} ms (p99 ${number(timed.p99_ms)})${against}`);
}

function arithmetic(report) {
  if (!report.arithmetic) return null;
  const { device } = report.versions ?? {};
  const engine = [report.engine, report.versions?.[report.engine]].filter(Boolean).join(" ");
  const typing = report.engine === "onnxruntime" ? "" : `, ${report.typing} typing`;
  return h(
    "p",
    { class: "arithmetic" },
    h("span", { class: `chip ${report.arithmetic}` }, report.arithmetic),
    report.arithmetic === "measured"
      ? ` on ${device ?? "an NVIDIA GPU"} with ${engine}${typing}`
      : ` with ${engine}: TensorRT's rounding, no NVIDIA GPU involved`,
  );
}

function facts(data, report, metric) {
  const judged = report.inputs?.judged;
  const searched = report.inputs?.searched;
  const inputs = isNumber(judged) ? `${count(judged)}${searched ? ` worst of ${count(searched)}` : ""}` : "";
  const pairs = [
    ["Metric", metric.label],
    ["Inputs judged", inputs],
    ["Ranges", report.ranges?.origin],
    ["Strategy", report.strategy],
    [
      "Plans tried",
      isNumber(report.plans) ? `${count(report.plans)}, ${plural(report.builds ?? 0, "engine")} built` : "",
    ],
    ["Time", isNumber(report.seconds?.total) ? duration(report.seconds.total) : ""],
    ["Memory", report.peak_bytes ? bytes(report.peak_bytes) : ""],
    [
      "Versions",
      Object.entries(report.versions ?? {})
        .map(([name, version]) => `${name} ${version}`)
        .join(" · "),
    ],
  ].filter(([, value]) => value);
  return h(
    "dl",
    { class: "facts" },
    pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

function command(text) {
  if (!text) return null;
  return h("div", { class: "command" }, h("code", {}, text), copyButton(text));
}

function notes(report) {
  const said = report.notes ?? [];
  if (!said.length) return null;
  const items = (some) =>
    h(
      "ul",
      {},
      some.map((note) => h("li", {}, note.text)),
    );
  const rest = said.slice(NOTES_SHOWN);
  return [
    h("h3", {}, "Notes"),
    items(said.slice(0, NOTES_SHOWN)),
    rest.length ? h("details", {}, h("summary", {}, `${count(rest.length)} more`), items(rest)) : null,
  ];
}
