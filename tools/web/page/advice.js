// What to do: the culprits grouped by their cause, with each cause what was measured against it, what else is known to
// help, and the evidence on each culprit; then what else was found abnormal.

import { andMore, byId, command, folded, h, layerLink, offerSection, plainTable, show } from "./dom.js";
import { LOW, capital, count, number, plural } from "./format.js";

const NAMED = 40;
const FOUND = 200;

export function showAdvice(store) {
  const { model } = store;
  const { explanation } = model.data;
  const causes = explanation?.causes ?? unexplained(model);
  const findings = explanation?.findings ?? [];
  offerSection("advice", causes.length > 0 || findings.length > 0);
  show(byId("advice-body"), [
    everywhere(causes, model),
    causes.map((cause) => card(cause, store)),
    abnormal(findings, store),
  ]);
}

// Without an explanation, all that is known of the culprits is what INT8 rounds in them.
function unexplained({ culprits }) {
  return culprits.length ? [{ culprits: culprits.map(({ name }) => name), words: "", measured: [], remedies: [] }] : [];
}

const ofNetwork = ({ culprits }) => culprits.length === 0;

// What was measured for the whole network stands with every cause, and once on the page.
function everywhere(causes, model) {
  const measured = causes.flatMap((cause) => cause.measured).filter(ofNetwork);
  if (!measured.length) return null;
  const once = new Map(measured.map((tried) => [tried.what, tried]));
  return h(
    "article.advice.everywhere",
    h("h3", "Other calibrators for the whole network"),
    results([...once.values()], model),
  );
}

function card({ culprits, words, measured, remedies }, store) {
  const { model } = store;
  const all = model.culprits.length;
  const who = all > 1 ? `${count(culprits.length)} of ${plural(all, "culprit")}` : "The culprit";
  const links = culprits.map((name) => layerLink(store, name));
  const ofCulprits = measured.filter((tried) => !ofNetwork(tried));
  const names = remedies.map(({ remedy }) => remedy).join(", ");
  const evidences = culprits.slice(0, NAMED).map((name) => evidence(name, store));
  return h(
    "article.advice",
    h("h3", who, words && `: ${words}`),
    h(
      "p.chips",
      andMore(links, NAMED, (more) => h("span.under", `and ${more} more`)),
    ),
    ofCulprits.length > 0 && results(ofCulprits, model),
    remedies.length > 0 && action(`Not measured: ${names}`, h("ul.remedies", remedies.map(remedyItem))),
    folded("Evidence", evidences),
  );
}

function action(title, content) {
  return folded(title, content, { class: "action" });
}

// What was measured, those that meet the threshold first, each with what applies it.
function results(measured, { adviceOn, figure, cost: costs }) {
  const remedies = [...adviceOn.values()].flatMap((advice) => advice.remedies);
  const commandsOf = (what) => remedies.findLast(({ tried }) => tried?.what === what)?.commands ?? [];
  const line = ({ what, similarity, part, high, cost, meets, confirmed }) => [
    what,
    figure.text(similarity) + (part ? " or worse" : ""),
    count(high),
    costs.text(cost),
    // What holds on all inputs may still miss in another setting of the engine, or pass with a doubt.
    meets && confirmed === false ? "passes, with doubts" : meets ? h("span.good", "passes") : "misses",
  ];
  const titles = [
    "Measured",
    ["result", figure.isAccuracy ? "Accuracy" : `${capital(figure.label)} on all of your inputs: the worst one`],
    ["layers high", "Layers that still stay in high precision"],
    ["cost", capital(costs.title)],
    figure.isAccuracy ? "accuracy target" : "threshold",
  ];
  const applied = measured.filter(({ what, meets }) => meets && commandsOf(what).length);
  return [
    plainTable("", titles, [1, 4], measured.map(line)),
    applied.map(({ what }) => action(`Commands: ${what}`, commandsOf(what).map(toolCommand))),
  ];
}

function remedyItem({ remedy, why, speed, commands }) {
  const cost = h("span.under", ` Speed: ${speed}.`);
  return h("li", h("p", h("strong", remedy), why && `: ${why}`, speed && cost), commands.map(toolCommand));
}

function toolCommand({ tool, text }) {
  return command(text, { tool });
}

function evidence(name, store) {
  const { byName, metric, adviceOn } = store.model;
  const row = byName.get(name);
  const advice = adviceOn.get(name);
  const blame = advice?.blame === "both" ? "weights and activations" : advice?.blame && `${advice.blame}s`;
  const reasons = [...(advice?.reasons ?? []), blame].filter(Boolean);
  const chips = reasons.map((reason) => h("span.chip", reason));
  return h(
    "section.evidence",
    h("h4", layerLink(store, name), row ? ` ${row.op_type}, loss ${metric.lossText(row.loss)}` : ""),
    h("p.chips", chips),
    h("p", advice?.evidence || plainEvidence(row)),
  );
}

function plainEvidence(row) {
  const rounded = (row?.rounds ?? []).map((one) => `${one.tensor} (${one.kind}, scale ${number(one.scale)})`);
  return rounded.length ? `${LOW} rounds ${rounded.join(" and ")} here.` : "Nothing more is known of this layer.";
}

function abnormal(findings, store) {
  if (!findings.length) return null;
  const names = (layers) => layers.flatMap((name, place) => [place ? ", " : "", layerLink(store, name)]);
  const line = ({ layers, tensor, reason, words }) =>
    h("li", h("span.chip", reason), " ", layers.length ? names(layers) : tensor, `: ${words}`);
  const title = `${plural(findings.length, "tensor")} with unusual errors: hints, not proof`;
  const more = findings.length - FOUND;
  const rest = more > 0 && `${count(more)} more are in explanation.json.`;
  return folded(title, [h("ul", findings.slice(0, FOUND).map(line)), rest], { class: "findings" });
}
