// For several inputs: all of them from the worst to the best, and the worst by number. With an answer it is the recipe
// on given and held-out inputs; without one it is full INT8 on the inputs that were searched.

import { byId, facts, offerSection, plainTable, show } from "./dom.js";
import { LOW, capital, count, isNumber, plural } from "./format.js";
import { axis, draw, over, plain, points, targetLine } from "./plot.js";
import { colour } from "./theme.js";

const LISTED = 10;
const FEW = 12;
const HEIGHT = 260;

export function showInputs({ model }) {
  const { report, metric } = model;
  const several = report.answer ? answered(model) : searched(report.inputs, metric);
  offerSection("inputs", several !== null);
  if (!several) return;
  const { words, list, traces, marks, total } = several;
  byId("inputs-words").textContent = words;
  show(byId("inputs-list"), list);
  const settings = {
    margin: { l: 80 },
    // No input is between two others.
    xaxis: axis(`inputs, worst first; ${marks}`, { zeroline: false, ...(total <= FEW && { dtick: 1 }) }),
    yaxis: axis(metric.label, { zeroline: false, tickformat: metric.tickformat }),
    shapes: [targetLine(report.threshold)],
  };
  draw(byId("inputs-plot"), HEIGHT, () => [traces, settings]);
}

function answered(model) {
  const { report, metric } = model;
  const { answer, by_input: byInput } = report;
  const given = worstFirst(answer.given, metric, byInput.int8);
  const held_out = worstFirst(answer.held_out, metric, null);
  const total = given.length + held_out.length;
  if (total < 2) return null;
  const apart = `, and on ${count(held_out.length)} held-out inputs, which neither calibration nor search saw`;
  const line = (seen) => (input) => [input.name, seen, metric.text(input.recipe), metric.text(input.int8)];
  const rows = [...given.slice(0, LISTED).map(line("yours")), ...held_out.slice(0, LISTED).map(line("held out"))];
  const drawn = (inputs, plan, start, marker, plot) => {
    const text = (input) => `${plain(input.name)}<br>${plot} ${metric.text(input[plan])}`;
    return pointsOf(inputs, start, (input) => input[plan], text, marker);
  };
  const recipe = { color: colour("high"), size: 8, symbol: "square" };
  return {
    words: `${capital(model.plan)} on your ${plural(given.length, "input")}${held_out.length ? apart : ""}.`,
    list: plainTable("inputs-table", ["Worst inputs", "Source", "recipe", `full ${LOW}`], 2, rows, total - rows.length),
    traces: [
      drawn(given, "int8", 1, { color: colour("int8"), size: 6 }, `full ${LOW}`),
      drawn(given, "recipe", 1, recipe, "recipe"),
      drawn(held_out, "recipe", given.length + 2, { ...recipe, symbol: "square-open" }, "recipe, held out"),
    ],
    marks: `squares: recipe (open: held out), dots: full ${LOW}`,
    total,
  };
}

function pointsOf(inputs, start, y, text, marker) {
  return points(inputs, { x: (_, place) => start + place, y, text }, { marker, cliponaxis: false });
}

// By input its name, the recipe's figure and that of full INT8, the worst for the recipe first.
function worstFirst(held, metric, int8) {
  const figures = Object.entries(held?.figures ?? {});
  const { values = [], faint = [] } = int8 ?? {};
  const counted = values.filter((_, place) => !faint.includes(place));
  const isWhole = counted.length === figures.length;
  const loss = (value) => (isNumber(metric.perfect) ? Math.abs(metric.perfect - value) : -value);
  const badness = ({ recipe }) => (isNumber(recipe) ? loss(recipe) : Infinity);
  return figures
    .map(([name, recipe], place) => ({ name, recipe, int8: isWhole ? counted[place] : undefined }))
    .sort((one, other) => badness(other) - badness(one));
}

function searched({ similarities, places, faint, source }, metric) {
  if (similarities.length < 2) return null;
  const samples = ordered(similarities, places);
  const total = samples.length;
  const left = `; ${count(faint.length)} left out, because FP32's output on them is almost zero`;
  const at = (share) => metric.text(samples[Math.min(total - 1, Math.floor(share * total))]?.value);
  const line = ({ sample, value, judged }) => [count(sample), metric.text(value), judged ? "used in the search" : ""];
  const rows = samples.slice(0, LISTED).map(line);
  const marker = over(samples, {
    color: ({ judged }) => colour(judged ? "culprit" : "int8"),
    symbol: ({ judged }) => (judged ? "diamond" : "circle"),
    size: ({ judged }) => (judged ? 11 : 6),
  });
  const text = ({ sample, value }) => `sample ${sample}<br>${metric.text(value)}`;
  return {
    total,
    words: `${count(total)} inputs of ${source} in full ${LOW}${faint.length ? left : ""}.`,
    list: [
      facts([
        ["Worst", at(0)],
        ["Worst 10%", at(0.1)],
        ["Median", at(0.5)],
        ["Best", at(1)],
      ]),
      plainTable("", ["Worst samples", metric.label, ""], 0, rows, total - LISTED),
    ],
    traces: [pointsOf(samples, 1, ({ value }) => value, text, marker)],
    marks: "diamonds: used in the search",
  };
}

// The worst first; for a metric of the reader's own, the order is that of the judged input.
function ordered(similarities, places) {
  const known = similarities
    .map((value, sample) => ({ sample, value, judged: places.includes(sample) }))
    .filter(({ value }) => isNumber(value))
    .sort((one, other) => one.value - other.value);
  const judged = known.findIndex(({ sample }) => sample === places[0]);
  return judged > known.length / 2 ? known.reverse() : known;
}
