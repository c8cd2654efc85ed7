// The answer: the verdict's lines, the culprits, the calibrators, the recipe on all inputs.

import { byId, h, show } from "./dom.js";
import { LOW, capital, count, isNumber, percent, plural } from "./format.js";
import { layerLink, plainTable } from "./plain_table.js";

const LISTED = 50;
const EQUALS = 5;
const FOLLOWERS = "followers in INT8";
const DOUBTING = new Set(["doubted", "data", "part", "few inputs"]);
// The headline and the table of culprits say these.
const ELSEWHERE = new Set(["fails", "passes", "passes with doubts", "culprits"]);

export function showAnswer(store) {
  const { report } = store.model;
  const lines = report.answer ? (report.lines ?? []) : [];
  const doubts = lines.filter((line) => DOUBTING.has(line.kind));
  const inBrief = (line) => labelled(line.text);
  show(byId("doubts"), doubts.map(inBrief));
  show(byId("answer"), [
    lines.filter((line) => !DOUBTING.has(line.kind) && !ELSEWHERE.has(line.kind)).map(inBrief),
    culprits(store),
    report.answer ? [calibrators(store.model), recipeOn(store.model), equals(report.answer)] : null,
  ]);
}

// "RECIPE: with 2 layers ..." with the word before the colon in bold.
function labelled(line) {
  const [, label, rest] = /^([A-Z][A-Z ]+): (.*)$/.exec(line) ?? [null, "", line];
  return h("p", {}, label && h("strong", {}, `${label[0]}${label.slice(1).toLowerCase()}: `), rest);
}

function culprits(store) {
  const { model } = store;
  if (!model.culprits.length) return null;
  const advice = new Map((model.data.explanation?.advice ?? []).map((each) => [each.culprit, each]));
  const text = (value, how) => (isNumber(value) ? how(value) : "\u2013");
  const line = (row) => [
    layerLink(store, row.name),
    text(row.taken_back, model.figure.text),
    text(row.drop, model.metric.drop),
    text(row.gain, model.metric.drop),
    row.op_type,
    cause(advice.get(row.name)),
  ];
  const titles = [
    [`if put back in ${LOW}`, `What the recipe measures if this layer is put back in ${LOW}, on an input that misses`],
    ["loss here", "Loss that this layer adds on the curve"],
    ["fixed alone", `Loss that full ${LOW} wins back if only this layer is in high precision`],
    ["op", "Operator"],
    ["cause", "The side that loses, and the first reason"],
  ];
  const table = (id, title, rows) => {
    const shown = rows.slice(0, LISTED).map(line);
    return rows.length ? plainTable(id, [title, ...titles], [1, 4], shown, rows.length - LISTED, "layers.csv") : null;
  };
  const [main, weak] = ranked(model);
  return [table("culprits", "Culprit", main), table("weak-culprits", "Weak culprit", weak)];
}

// The culprits but for the weak ones, and these; those first that lose most when they are taken back. In older reports
// all of them in execution order.
function ranked({ culprits: rows, report }) {
  const { ranked: names = [], weak = [] } = report.answer ?? {};
  const places = new Map(names.map((name, place) => [name, place]));
  const place = ({ name }) => places.get(name) ?? 0;
  const sorted = [...rows].sort((one, other) => place(one) - place(other));
  const isWeak = ({ name }) => weak.includes(name);
  return [sorted.filter((row) => !isWeak(row)), sorted.filter(isWeak)];
}

function cause(advice) {
  return [advice?.blame, advice?.reasons?.[0]].filter(Boolean).join(": ");
}

function calibrators({ report, metric }) {
  const rows = report.answer.calibrators;
  if (rows.length < 2) return null;
  const line = (row) => [
    row.calibrator,
    metric.text(row.similarity) + (row.inputs < report.answer.given?.inputs ? " or worse" : ""),
    count(row.inputs),
    row.meets ? "yes" : "no",
    isNumber(row.cost) ? percent(row.cost) : "\u2013",
    isNumber(row.high) ? count(row.high) : "\u2013",
    isNumber(row.mean_loss) ? metric.drop(row.mean_loss) : "\u2013",
    row.chosen ? "chosen" : "",
  ];
  const titles = [
    "Calibrator",
    [`full ${LOW}, worst`, `${capital(metric.label)} of the worst of these inputs`],
    ["inputs", "Inputs measured: a calibrator that misses on the first one is given up there"],
    ["passes", `Full ${LOW} meets the threshold on all of your inputs`],
    ["first recipe costs", `Share of ${LOW}'s gain in speed that the first recipe with these scales gives up`],
    ["layers high", "Layers that this recipe keeps in high precision"],
    ["mean loss", "Mean loss of this recipe over the inputs used in the search"],
    "",
  ];
  return [h("h3", {}, "Calibrators"), plainTable("calibrators", titles, 1, rows.map(line))];
}

function recipeOn({ report, metric }) {
  const { given, unseen, settings } = report.answer;
  const line = ([name, held]) => [
    name,
    `${count(held.holds)} of ${count(held.inputs)}`,
    metric.text(held.mean),
    metric.text(held.fifth),
    metric.text(held.worst),
    held.worst_input,
  ];
  const rows = [
    ["your inputs", given],
    ["held-out inputs", unseen],
  ].filter(([, held]) => held);
  if (!rows.length) return null;
  const setting = (name) => (name === FOLLOWERS ? "unquantized layers in INT8 too" : name);
  const elsewhere = Object.entries(settings).map(([name, value]) => `${setting(name)} ${metric.text(value)}`);
  const titles = [
    "Inputs",
    ["passes", "Inputs on which the recipe meets the threshold"],
    ["mean", `Mean ${metric.label}`],
    ["5th percentile", "95% of the inputs are as good or better"],
    ["worst", `Lowest ${metric.label}`],
    ["which", "The worst input"],
  ];
  return [
    h("h3", {}, "The recipe on all inputs"),
    plainTable("held", titles, [1, 5], rows.map(line)),
    elsewhere.length > 1 ? h("p", { class: "under" }, `Worst input in other settings: ${elsewhere.join(", ")}.`) : null,
  ];
}

function equals({ equals: sets }) {
  if (!sets.length) return null;
  const items = sets.slice(0, EQUALS).map((names) => h("li", {}, names.join(", ")));
  const words = `${plural(sets.length, "other set")} of layers ${sets.length === 1 ? "costs" : "cost"} the same and also ${sets.length === 1 ? "passes" : "pass"}`;
  return h("details", {}, h("summary", {}, words), h("ul", { class: "under" }, items));
}
