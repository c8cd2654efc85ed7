// The verdict, the three figures, what they rest on; and at the foot what the run was.

import { byId, copyButton, facts as factList, h, show } from "./dom.js";
import { EXPLAINED, LOW, bytes, count, duration, isNumber, number, percent, plural } from "./format.js";

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
  show(byId("fragile"), fragile(data));
  show(byId("basis"), [explained(metric), arithmetic(report), made(report)]);
  show(byId("confidence"), confidence(report.answer, metric));
  show(byId("about-body"), [facts(data, report, metric), command(data.command)]);
  show(byId("notes"), notes(report));
}

// The reasons why the verdict on the recipe could be another one.
function fragile({ fragile: reasons }) {
  return reasons?.length ? [h("strong", {}, "Fragile: "), `${reasons.join("; ")}.`] : null;
}

function explained({ name }) {
  return EXPLAINED[name] ? h("p", { class: "under" }, EXPLAINED[name]) : null;
}

// The time and the network, to tell one printed page from another.
function made({ started, network, model }) {
  const time = started ? new Date(1000 * started).toISOString().slice(0, 16).replace("T", " ") : "";
  const parts = [model, network && `network ${network.slice(0, 12)}`, time && `${time} UTC`].filter(Boolean);
  return h("p", { class: "under made", title: network || null }, parts.join(" · "));
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
    return h("li", {}, h("strong", {}, text.slice(0, begins)), text.slice(begins));
  };
  return [h("h3", {}, "What this rests on"), h("ul", {}, said.map(item))];
}

const TITLES = { fp32: "FP32", int8: `Full ${LOW}`, recipe: "Recipe" };
const UNDECIDED = { ...TITLES, recipe: "Suspects in high precision" };

function card(model, plan) {
  const { report, figure, figures } = model;
  const value = plan === "fp32" ? (figure.perfect ?? figures.fp32) : figures[plan];
  return h(
    "div",
    { class: `card ${standing(model, plan)}`, "data-plan": plan },
    h("h2", {}, (model.data.status === "finished" || report.answer ? TITLES : UNDECIDED)[plan]),
    h("p", { class: "figure" }, figure.text(value)),
    h("p", { class: "under" }, under(model, plan)),
    beside(model, plan),
    speed(report, plan),
  );
}

function standing({ data, figures }, plan) {
  return isNumber(figures[plan]) ? (data.tones?.[plan] ?? "") : "";
}

function under(model, plan) {
  const { report, figure, figures, least, rows } = model;
  const quantizable = rows.filter((row) => row.quantizable);
  if (plan === "fp32")
    return isNumber(least) ? `reference; threshold ${figure.text(least)}` : "reference";
  if (plan === "int8") return `${plural(quantizable.length, "layer")} in ${LOW}${measuredOn(model, plan)}`;
  const kept = (report.recipe?.high ?? []).length;
  if (!isNumber(figures.recipe)) return "";
  if (!kept) return `the same: no layer in high precision${measuredOn(model, plan)}`;
  const left = `${plural(kept, "layer")} in ${model.keptIn}`;
  const shares = quantizable.filter((row) => !row.high).map((row) => row.share);
  const inputs = measuredOn(model, plan);
  if (!shares.length || !shares.every(isNumber)) return left + inputs;
  const share = percent(shares.reduce((sum, one) => sum + one, 0));
  return `${left}, ${share} of the multiply-adds in ${LOW}${inputs}`;
}

// What a figure is, and the inputs that it is of, where it is of several.
function measuredOn({ report: { by_input: byInput }, figure, metric }, plan) {
  if (figure.name === ACCURACY) return `; ${figure.label}`;
  const facts = byInput?.[plan];
  if (!facts) return `; ${metric.label}`;
  const inputs = plural(facts.inputs, "input");
  return `; ${metric.label} ${facts.together ? `over ${inputs} together` : `on the worst of ${inputs}`}`;
}

// The accuracy on labelled data, where there are such, and its ratio to FP32's; where it decides, the similarity.
function beside({ report: { accuracy: measured, similarity }, figure, metric }, plan) {
  if (!measured) return null;
  if (figure.name === ACCURACY) {
    const value = similarity?.[plan];
    return isNumber(value) ? h("p", { class: "speed" }, `${metric.label} ${metric.text(value)}`) : null;
  }
  const value = measured[plan];
  if (!isNumber(value)) return h("p", { class: "speed" }, "accuracy not measured");
  const text = value >= 0 && value <= 1 ? percent(value) : number(value);
  const ratio = plan !== "fp32" && measured.fp32 ? ` · ${percent(value / measured.fp32)} of FP32's` : "";
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
  return factList([
    ["Metric", metric.label],
    ["Inputs used in the search", inputs],
    ["Calibrator", report.ranges?.origin],
    ["Strategy", report.strategy],
    [
      "Plans tried",
      isNumber(report.plans) ? `${count(report.plans)}, ${plural(report.builds ?? 0, "engine")} built` : "",
    ],
    ["Time", isNumber(report.seconds?.total) ? duration(report.seconds.total) : ""],
    ["Memory", report.peak_bytes ? bytes(report.peak_bytes) : ""],
    ["Network (SHA-256)", report.network],
    [
      "Versions",
      Object.entries(report.versions ?? {})
        .map(([name, version]) => `${name} ${version}`)
        .join(" · "),
    ],
  ]);
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
