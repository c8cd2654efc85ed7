// What to do: the culprits grouped by their cause, with each cause what was measured against it, what else is known to
// help, and the evidence on each culprit; then what else was found abnormal.

import { byId, copyButton, h, offerSection, show } from "./dom.js";
import { LOW, capital, count, number, percent, plural } from "./format.js";
import { layerLink, plainTable } from "./plain_table.js";

const NAMED = 40;

export function showAdvice(store) {
  const { data } = store.model;
  const causes = data.explanation?.causes ?? unexplained(store.model);
  offerSection("advice", causes.length > 0 || findings(data).length > 0);
  show(byId("advice-body"), [
    everywhere(causes, store.model),
    causes.map((cause) => card(cause, store)),
    others(data, store),
  ]);
}

// Without an explanation, all that is known of the culprits is what INT8 rounds in them.
function unexplained({ culprits }) {
  return culprits.length ? [{ culprits: culprits.map(({ name }) => name), words: "", measured: [], remedies: [] }] : [];
}

function adviceOf(data) {
  return new Map((data.explanation?.advice ?? []).map((one) => [one.culprit, one]));
}

const ofNetwork = ({ culprits }) => culprits?.length === 0;

// By what was tried, the commands that apply it.
function commandsOf({ data }) {
  const known = (data.explanation?.advice ?? []).flatMap(({ remedies }) => remedies ?? []);
  return new Map(known.flatMap(({ tried, commands }) => (tried ? [[tried.what, commands]] : [])));
}

// What was measured for the whole network stands with every cause, and once on the page.
function everywhere(causes, model) {
  const measured = causes.flatMap((cause) => cause.measured).filter(ofNetwork);
  const once = [...new Map(measured.map((tried) => [tried.what, tried])).values()];
  if (!once.length) return null;
  return h(
    "article",
    { class: "advice everywhere" },
    h("h3", {}, "Other calibrators for the whole network"),
    results(once, model),
  );
}

function card({ culprits, words, measured, remedies }, store) {
  const { data, culprits: all } = store.model;
  const advice = adviceOf(data);
  const who = all.length > 1 ? `${count(culprits.length)} of ${plural(all.length, "culprit")}` : "The culprit";
  const names = remedies.map(({ remedy }) => remedy).join(", ");
  const shown = culprits.slice(0, NAMED);
  return h(
    "article",
    { class: "advice" },
    h("h3", {}, who, words && `: ${words}`),
    h(
      "p",
      { class: "chips" },
      shown.map((name) => layerLink(store, name)),
      more(culprits),
    ),
    results(
      measured.filter((tried) => !ofNetwork(tried)),
      store.model,
    ),
    folded(`Not measured: ${names}`, remedies.length && h("ul", { class: "remedies" }, remedies.map(item)), "action"),
    folded(
      "Evidence",
      shown.map((name) => evidence(name, advice.get(name), store)),
    ),
  );
}

// Actions are unfolded on paper.
function folded(title, content, kind) {
  return content ? h("details", { class: kind }, h("summary", {}, title), content) : null;
}

function more(names) {
  return names.length > NAMED ? h("span", { class: "under" }, `and ${count(names.length - NAMED)} more`) : null;
}

// What was measured, those that meet the threshold first, each with what applies it.
function results(measured, model) {
  if (!measured.length) return null;
  const commands = commandsOf(model);
  const line = (tried) => [
    tried.what,
    model.metric.text(tried.similarity),
    count(tried.high),
    percent(tried.cost),
    h("span", { class: tried.meets ? "good" : null }, tried.meets ? "passes" : "misses"),
  ];
  const titles = [
    "Measured",
    ["result", `${capital(model.metric.label)} on all of your inputs: the worst one`],
    ["layers high", "Layers that still stay in high precision"],
    ["cost", `Share of ${LOW}'s gain in speed that is given up`],
    "threshold",
  ];
  const known = measured.filter(({ what }) => commands.get(what)?.length);
  return [
    plainTable("", titles, [1, 4], measured.map(line)),
    known.map(({ what }) => folded(`Commands: ${what}`, commands.get(what).map(command), "action")),
  ];
}

function item({ remedy, why, speed, commands }) {
  return h(
    "li",
    {},
    h(
      "p",
      {},
      h("strong", {}, remedy),
      why ? `: ${why}` : "",
      speed ? h("span", { class: "under" }, ` Speed: ${speed}.`) : null,
    ),
    commands?.map(command),
  );
}

function command({ tool, text }) {
  return h("div", { class: "command" }, h("span", { class: "tool" }, tool), h("code", {}, text), copyButton(text));
}

function evidence(name, advice, store) {
  const { byName, metric } = store.model;
  const row = byName.get(name);
  const blame = advice?.blame === "both" ? "weights and activations" : advice?.blame ? `${advice.blame}s` : "";
  const reasons = [...(advice?.reasons ?? []), blame].filter(Boolean);
  return h(
    "section",
    { class: "evidence" },
    h("h4", {}, layerLink(store, name), row ? ` ${row.op_type}, loss here ${metric.drop(row.drop)}` : ""),
    h(
      "p",
      { class: "chips" },
      reasons.map((reason) => h("span", { class: "chip" }, reason)),
    ),
    h("p", {}, advice?.evidence || plainEvidence(row)),
  );
}

function plainEvidence(row) {
  const rounded = (row?.rounds ?? []).map((one) => `${one.tensor} (${one.kind}, scale ${number(one.scale)})`);
  return rounded.length ? `${LOW} rounds ${rounded.join(" and ")} here.` : "Nothing more is known of this layer.";
}

function findings(data) {
  return data.explanation?.findings ?? [];
}

function others(data, store) {
  const found = findings(data);
  if (!found.length) return null;
  const line = ({ layers, tensor, reason, words }) =>
    h(
      "li",
      {},
      h("span", { class: "chip" }, reason),
      " ",
      layers.length ? layers.flatMap((name, place) => [place ? ", " : "", layerLink(store, name)]) : tensor,
      `: ${words}`,
    );
  const title = `${plural(found.length, "abnormal tensor")}: they explain the loss, and prove nothing`;
  return h(
    "details",
    { class: "findings" },
    h("summary", {}, title),
    h("ul", {}, found.slice(0, 200).map(line)),
    found.length > 200 ? `${count(found.length - 200)} more are in explanation.json.` : null,
  );
}
