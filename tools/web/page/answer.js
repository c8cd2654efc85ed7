// The answer: the verdict's lines, the culprits, the calibrators, the recipe on all inputs.

import { byId, h, show } from "./dom.js";
import { LOW, NOTHING, capital, count, plural } from "./format.js";
import { folded, layerLink, phrase, plainTable } from "./parts.js";

const LISTED = 50;
const EQUALS = 5;
const NO_CAUSE = "no single cause found";
const SHIP = "ship fp16";
const DOUBTING = new Set(["doubted", "data", "part", "few inputs"]);
// The headline, what could reverse it, and the table of culprits say these.
const ELSEWHERE = new Set(["fails", "passes", "passes with doubts", "culprits", "unsure", SHIP]);

export function showAnswer(store) {
  const { model } = store;
  const { answer, lines } = model.report;
  const inBrief = (wanted) =>
    (answer ? lines : []).filter(({ kind }) => wanted(kind)).map(({ text }) => labelled(text));
  const doubts = inBrief((kind) => DOUBTING.has(kind));
  show(byId("doubts"), doubts);
  show(
    byId("ship"),
    inBrief((kind) => kind === SHIP),
  );
  show(byId("answer"), [
    inBrief((kind) => !DOUBTING.has(kind) && !ELSEWHERE.has(kind)),
    culprits(store),
    answer && [calibrators(answer, model), recipeOn(answer, model), equals(answer)],
  ]);
}

// "RECIPE: with 2 layers ..." with the word before the colon in bold.
function labelled(line) {
  const [, label, rest] = /^([A-Z][A-Z0-9 ]+): (.*)$/.exec(line) ?? [null, "", line];
  return h("p", label && h("strong", `${capital(label.toLowerCase()).replace("fp16", "FP16")}: `), phrase(rest));
}

function culprits(store) {
  const { model } = store;
  const { metric, figure, adviceOn } = model;
  const line = (row) => {
    const { blame, reasons = [] } = adviceOn.get(row.name) ?? {};
    return [
      layerLink(store, row.name),
      figure.text(row.put_back) + row.putBackOn,
      metric.lossText(row.loss),
      metric.lossText(row.alone),
      row.op_type,
      [blame, reasons[0] ?? NO_CAUSE].filter(Boolean).join(": "),
    ];
  };
  const titles = [
    [
      `if put back in ${LOW}`,
      `What the recipe measures if this layer is put back in ${LOW}, on the worst input`,
    ],
    ["loss", "Loss that this layer adds on the curve"],
    ["alone", `Loss that full ${LOW} wins back if only this layer is in high precision`],
    ["op", "Operator"],
    ["cause", "The side that loses, and the first reason"],
  ];
  const table = (id, title, rows) => {
    const shown = rows.slice(0, LISTED).map(line);
    const network = model.report.answer?.changes ? " of the unchanged network" : "";
    const heads = [title + network, ...titles];
    return rows.length ? plainTable(id, heads, [1, 4], shown, rows.length - LISTED, "layers.csv") : null;
  };
  const [main, weak] = ranked(model);
  return [table("culprits", "Culprit", main), table("weak-culprits", "Weak culprit", weak)];
}

// The culprits but for the weak ones, and these; those first that lose most when they are put back.
function ranked({ culprits: rows, report }) {
  const { ranked: names, weak } = report.answer ?? { ranked: [], weak: [] };
  const places = new Map(names.map((name, place) => [name, place]));
  const place = ({ name }) => places.get(name) ?? 0;
  const sorted = [...rows].sort((one, other) => place(one) - place(other));
  const isWeak = ({ name }) => weak.includes(name);
  return [sorted.filter((row) => !isWeak(row)), sorted.filter(isWeak)];
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
  const line = ([name, { holds, inputs, mean, fifth, worst, worst_input: worstInput }]) => [
    name,
    `${count(holds)} of ${count(inputs)}`,
    metric.text(mean),
    metric.text(fifth),
    metric.text(worst),
    worstInput,
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
    elsewhere.length > 1 ? h("p.under", `Worst input in other settings: ${elsewhere.join(", ")}.`) : null,
  ];
}

function equals({ equals: sets }) {
  if (!sets.length) return null;
  const items = sets.slice(0, EQUALS).map((names) => h("li", names.join(", ")));
  const [costs, passes] = sets.length === 1 ? ["costs", "passes"] : ["cost", "pass"];
  const words = `${plural(sets.length, "other set")} of layers ${costs} the same and also ${passes}`;
  return folded(words, h("ul.under", items));
}
