// For several inputs: all of them from the worst to the best, and the worst by number. With an answer it is the recipe
// on given and unseen inputs; without one it is full INT8 on the inputs that were searched.

import { byId, facts, offerSection, show } from "./dom.js";
import { LOW, count, isNumber, plural } from "./format.js";
import { plainTable } from "./plain_table.js";
import { axis, draw, plain, targetLine } from "./plot.js";
import { colour } from "./theme.js";

const LISTED = 10;

export function startInputs(store) {
  for (const what of ["model", "theme"]) store.on(what, () => showInputs(store));
  showInputs(store);
}

function showInputs({ model: { report, metric } }) {
  if (report.answer) showAnswered(report, metric);
  else showSearched(report, metric);
}

function showAnswered(report, metric) {
  const given = answered(report.answer.given, metric, int8Of(report));
  const unseen = answered(report.answer.unseen, metric, []);
  offerSection("inputs", given.length + unseen.length > 1);
  if (given.length + unseen.length < 2) return;
  const apart = unseen.length
    ? `, and on ${count(unseen.length)} held-out inputs, which neither calibration nor search saw`
    : "";
  byId("inputs-words").textContent = `The recipe on your ${plural(given.length, "input")}${apart}.`;
  const line =
    (seen) =>
    ({ name, recipe, int8 }) => [name, seen, metric.text(recipe), isNumber(int8) ? metric.text(int8) : "\u2013"];
  const rows = [...given.slice(0, LISTED).map(line("yours")), ...unseen.slice(0, LISTED).map(line("held out"))];
  const more = given.length + unseen.length - rows.length;
  const titles = ["Worst inputs", "", "recipe", `full ${LOW}`];
  show(byId("inputs-list"), [plainTable("inputs-table", titles, 2, rows, more, "report.json")]);
  drawAnswered(byId("inputs-plot"), given, unseen, report, metric);
}

// By input its name, the recipe's figure and that of full INT8, the worst for the recipe first.
function answered(held, metric, int8) {
  const all = Object.entries(held?.figures ?? {}).map(([name, recipe], place) => ({ name, recipe, int8: int8[place] }));
  const loss = ({ recipe }) => (isNumber(recipe) ? Math.abs((metric.perfect ?? Infinity) - recipe) : Infinity);
  if (isNumber(metric.perfect)) return all.sort((one, other) => loss(other) - loss(one));
  return all.sort((one, other) => (one.recipe ?? -Infinity) - (other.recipe ?? -Infinity));
}

// Full INT8's figures of the inputs that count, in the order of the recipe's.
function int8Of(report) {
  const values = (report.by_input?.int8?.values ?? []).filter((_, place) => counts(report, place));
  return values.length === Object.keys(report.answer.given?.figures ?? {}).length ? values : [];
}

function counts(report, place) {
  return !(report.by_input.int8.faint ?? []).includes(place);
}

function drawAnswered(element, given, unseen, report, metric) {
  const points = (inputs, key, start, marker, words) => ({
    x: inputs.map((_, place) => start + place),
    y: inputs.map((input) => input[key]),
    mode: "markers",
    marker,
    text: inputs.map((input) => `${plain(input.name)}<br>${words} ${metric.text(input[key])}`),
    cliponaxis: false,
    hovertemplate: "%{text}<extra></extra>",
  });
  const apart = given.length + 2;
  const traces = [
    points(given, "int8", 1, { color: colour("int8"), size: 6 }, `full ${LOW}`),
    points(given, "recipe", 1, { color: colour("high"), size: 8, symbol: "square" }, "recipe"),
    points(unseen, "recipe", apart, { color: colour("high"), size: 8, symbol: "square-open" }, "recipe, held out"),
  ];
  drawPoints(
    element,
    traces,
    `inputs, worst first; squares: recipe (open: held out), dots: full ${LOW}`,
    report,
    metric,
  );
}

function showSearched(report, metric) {
  const { similarities, places, faint, source } = report.inputs ?? {};
  const several = (similarities?.length ?? 0) > 1;
  offerSection("inputs", several);
  if (!several) return;
  const samples = ordered(
    similarities.map((value, sample) => ({ sample, value })),
    metric,
    places ?? [],
  );
  const passedOver = faint?.length
    ? `; ${count(faint.length)} left out, because FP32's output on them is almost zero`
    : "";
  byId("inputs-words").textContent =
    `${count(samples.length)} inputs of ${source ?? "the data"} in full ${LOW}${passedOver}.`;
  show(byId("inputs-list"), [quantiles(samples, metric), list(samples, metric, new Set(places ?? []))]);
  plot(byId("inputs-plot"), samples, report, metric, new Set(places ?? []));
}

// The worst first; for a metric of the reader's own, the order is that of the judged input.
function ordered(samples, metric, places) {
  const known = samples.filter(({ value }) => isNumber(value)).sort((one, other) => one.value - other.value);
  const judged = known.findIndex(({ sample }) => sample === places[0]);
  return judged > known.length / 2 ? known.reverse() : known;
}

function quantiles(samples, metric) {
  const at = (share) => metric.text(samples[Math.min(samples.length - 1, Math.floor(share * samples.length))]?.value);
  return facts([
    ["Worst", at(0)],
    ["Worst 10%", at(0.1)],
    ["Median", at(0.5)],
    ["Best", at(1)],
  ]);
}

function list(samples, metric, judged) {
  const line = ({ sample, value }) => [
    count(sample),
    metric.text(value),
    judged.has(sample) ? "used in the search" : "",
  ];
  const rows = samples.slice(0, LISTED).map(line);
  return plainTable("", ["Worst samples", metric.label, ""], 0, rows, samples.length - LISTED, "report.json");
}

function plot(element, samples, report, metric, judged) {
  const chosen = samples.map(({ sample }) => judged.has(sample));
  const points = {
    x: samples.map((_, place) => place + 1),
    y: samples.map(({ value }) => value),
    mode: "markers",
    marker: {
      color: chosen.map((is) => colour(is ? "culprit" : "int8")),
      symbol: chosen.map((is) => (is ? "diamond" : "circle")),
      size: chosen.map((is) => (is ? 11 : 6)),
    },
    text: samples.map(({ sample, value }) => `sample ${sample}<br>${metric.text(value)}`),
    cliponaxis: false,
    hovertemplate: "%{text}<extra></extra>",
  };
  drawPoints(element, [points], "inputs, worst first; diamonds: used in the search", report, metric);
}

function drawPoints(element, traces, title, report, metric) {
  const threshold = isNumber(report.threshold) ? [targetLine(report.threshold)] : [];
  draw(element, traces, {
    height: 260,
    margin: { l: 80 },
    xaxis: axis(title, { zeroline: false }),
    yaxis: axis(metric.label, { zeroline: false, tickformat: metric.fraction ? ".1%" : "" }),
    shapes: threshold,
  });
}
