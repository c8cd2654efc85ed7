// For several inputs: all of them from the worst to the best, and the worst by number.

import { byId, h, offerSection, show } from "./dom.js";
import { count, isNumber } from "./format.js";
import { axis, draw, targetLine } from "./plot.js";
import { colour } from "./theme.js";

const LISTED = 10;

export function startInputs(store) {
  for (const what of ["model", "theme"]) store.on(what, () => showInputs(store));
  showInputs(store);
}

function showInputs({ model: { report, metric } }) {
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
    ? `; ${count(faint.length)} passed over, since FP32's output on them is almost zero`
    : "";
  byId("inputs-words").textContent =
    `${count(samples.length)} inputs of ${source ?? "the data"} in full INT8${passedOver}.`;
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
  const figures = [
    ["Worst", at(0)],
    ["Worst 10%", at(0.1)],
    ["Median", at(0.5)],
    ["Best", at(1)],
  ];
  return h(
    "dl",
    { class: "facts" },
    figures.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", { class: "number" }, text))),
  );
}

function list(samples, metric, judged) {
  const line = ({ sample, value }) =>
    h(
      "tr",
      {},
      h("td", { class: "number" }, count(sample)),
      h("td", { class: "number" }, metric.text(value)),
      h("td", {}, judged.has(sample) ? "judged" : ""),
    );
  return h(
    "table",
    { class: "plain" },
    h("caption", {}, samples.length > LISTED ? `The ${LISTED} worst` : "From the worst"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ["Sample", metric.label, ""].map((title) => h("th", { scope: "col" }, title)),
      ),
    ),
    h("tbody", {}, samples.slice(0, LISTED).map(line)),
  );
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
  const threshold = isNumber(report.threshold) ? [targetLine(report.threshold)] : [];
  draw(element, [points], {
    height: 260,
    margin: { l: 80 },
    xaxis: axis("inputs, from the worst; diamonds are judged", { zeroline: false }),
    yaxis: axis(metric.label, { zeroline: false, tickformat: metric.text(1) === "100.0000%" ? ".1%" : "" }),
    shapes: threshold,
  });
}
