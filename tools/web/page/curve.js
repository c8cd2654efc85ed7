// Similarity over k. The line is the network with the suspects ruled out; each suspect hangs from it by what it costs.

import { byId, legendItem, show } from "./dom.js";
import { LOW, capital, count, isNumber, plural } from "./format.js";
import { axis, draw, label, markSelected, over, plain, points, scaleOf, selectedAt, targetLine } from "./plot.js";
import { colour } from "./theme.js";

const RUG = [0, 0.07];
const HEIGHT = 380;
const MARGIN = { top: 12, bottom: 40, label: 16, wide: 190 };
const ROOMY = 640;

export function startCurve(store) {
  const element = byId("curve-plot");
  const redraw = () => drawCurve(element, store);
  store.always(redraw, "model", "theme");
  store.on("selection", () => requestAnimationFrame(() => markSelected(element, selected(store))));
  byId("curve-log").addEventListener("change", redraw);
}

function drawCurve(element, store) {
  const { model } = store;
  const { metric, report } = model;
  const switched = byId("curve-log");
  switched.closest("label").hidden = !metric.loss;
  const tried = model.rows.filter((row) => row.quantizable);
  const failed = tried.filter((row) => row.failed && !isNumber(row.similarity));
  const groups = groupsOf(tried, failed, model);
  const levels = levelsOf(model);
  const isEmpty = failed.length === 0 && !tried.some((row) => isNumber(row.similarity));
  byId("curve-empty").hidden = !isEmpty;
  element.hidden = isEmpty;
  // The curve is measured on the judged inputs, and without the suspects: its end is not the figure of full INT8.
  byId("curve-title").textContent =
    `${capital(metric.label)} of the outputs with layers 0 to k in ${LOW} ` +
    `(${plural(report.inputs.judged, "input")}, suspects in high precision)`;
  const roomy = element.clientWidth >= ROOMY;
  show(byId("curve-legend"), [
    roomy ? [] : levels.map(({ tone, words }) => legendItem(`line ${tone}`, words)),
    groups.map(({ mark, words, rows }) => legendItem(mark, `${words} (${rows.length})`)),
  ]);
  if (isEmpty) return;
  const figures = [...model.rows.map((row) => row.similarity), ...levels.map(({ value }) => value)];
  const scale = scaleOf(figures, metric, switched.checked && metric.loss);
  const make = () => [tracesOf(tried, groups, scale, model), layoutOf(store, levels, failed, scale, roomy)];
  draw(element, HEIGHT, make, store.select);
}

// What the curve tells apart: its layers, the entry of the legend, and the marker of those that have one.
function groupsOf(tried, failed, { report, data }) {
  const measured = tried.filter((row) => isNumber(row.similarity));
  const isDecided = data.status === "finished" || report.answer?.not_done.length === 0;
  const rim = { color: colour("background"), width: 1 };
  const groups = [
    {
      rows: measured.filter((row) => !row.culprit && !row.added && !row.setAside),
      mark: "dot int8",
      words: `this layer and all before it in ${LOW}, suspects in ${report.precision.toUpperCase()}`,
      marker: { size: 6, color: colour("int8"), symbol: "circle" },
    },
    {
      rows: tried.filter((row) => row.culprit),
      mark: "diamond culprit",
      words: "culprit",
      marker: { size: 12, color: colour("culprit"), symbol: "diamond", line: rim },
      zorder: 1,
    },
    {
      rows: measured.filter((row) => row.setAside && !row.culprit),
      mark: "diamond suspect",
      words: `suspect: a large loss, ${isDecided ? "no culprit" : "not decided yet"}`,
      marker: { size: 10, color: colour("warn"), symbol: "diamond-open", line: { width: 2 } },
    },
    {
      rows: tried.filter((row) => row.setAside),
      mark: "line stem",
      words: "dotted: the loss of one suspect or culprit",
    },
    {
      rows: measured.filter((row) => row.added && !row.culprit),
      mark: "square high",
      words: `no culprit, in ${data.kept_in} too`,
      marker: { size: 8, color: colour("high"), symbol: "square" },
    },
    {
      rows: failed,
      mark: "cross warn",
      words: "not measured: hover for the message",
      marker: { size: 10, color: failed.map((row) => colour(row.culprit ? "culprit" : "warn")), symbol: "x" },
      yaxis: "y2",
      cliponaxis: false,
    },
    { rows: tried.filter((row) => row.outcome === "not tried"), mark: "none", words: "not tried" },
  ];
  return groups.filter(({ rows }) => rows.length > 0);
}

function tracesOf(tried, groups, scale, model) {
  const x = (row) => row.index;
  const y = (row) => (isNumber(row.similarity) ? scale.at(row.similarity) : null);
  const marked = groups.filter(({ marker }) => marker);
  return [
    // A failed or untried layer breaks the line; a suspect does not, since the line is the network without it.
    lines(
      over(
        tried.filter((row) => !row.setAside),
        { x, y },
      ),
      "int8",
      {},
    ),
    lines(stems(tried, y), "culprit", { dash: "dot" }),
    ...marked.map(({ rows, mark, words, ...look }) => {
      const height = look.yaxis ? () => 0 : y;
      const text = (row) => hover(row, model);
      return points(rows, { x, y: height, text, customdata: (row) => row.name }, look);
    }),
  ];
}

function lines(ends, tone, look) {
  return { ...ends, mode: "lines", line: { color: colour(tone), width: 1.5, ...look }, hoverinfo: "skip" };
}

// From where the line stood before a suspect down to the suspect.
function stems(tried, height) {
  const [x, y] = [[], []];
  let before = null;
  for (const row of tried.filter(({ similarity }) => isNumber(similarity))) {
    if (!row.setAside) before = height(row);
    else if (before !== null) {
      x.push(row.index, row.index, null);
      y.push(before, height(row), null);
    }
  }
  return { x, y };
}

function hover(row, { metric, figure }) {
  const about = [
    `${row.index} · ${row.op_type} · ${row.shapeText}`,
    isNumber(row.similarity) ? `${metric.label} ${metric.text(row.similarity)}` : row.outcome,
    isNumber(row.loss) && `loss ${metric.lossText(row.loss)}`,
    row.culprit && "culprit",
    isNumber(row.put_back) && `if put back in ${LOW}: ${figure.text(row.put_back)}${row.putBackOn}`,
    row.setAside && "in high precision for the layers after it",
    row.suspect && `suspect: ${row.suspect.split(":")[0]}`,
    row.added && "in high precision in the recipe too",
    row.message.slice(0, 160),
  ];
  return [`<b>${plain(row.name)}</b>`, ...about.filter(Boolean).map(plain)].join("<br>");
}

// Where layers failed, a strip under the curve marks them.
function layoutOf(store, levels, failed, scale, roomy) {
  const { rows, metric } = store.model;
  const bottom = failed.length ? 0.1 : 0;
  const spare = 0.5 + 0.01 * rows.length;
  return {
    margin: { l: 88, t: MARGIN.top, b: MARGIN.bottom, r: roomy ? MARGIN.wide : 12 },
    uirevision: scale.axis.type ?? "linear",
    xaxis: axis("layer k, in execution order", {
      range: [-spare, rows.length - 1 + spare],
      zeroline: false,
      anchor: failed.length ? "y2" : "y",
    }),
    yaxis: axis(metric.label, { ...scale.axis, domain: [bottom, 1], zeroline: false }),
    yaxis2: { domain: RUG, range: [-1, 1], visible: false, fixedrange: true },
    shapes: [
      ...gaps(failed),
      ...levels.map(({ value, tone, dash }) => targetLine(scale.at(value), tone, dash)),
      ...selected(store),
    ],
    annotations: roomy ? levelLabels(levels, scale, (HEIGHT - MARGIN.top - MARGIN.bottom) * (1 - bottom)) : [],
  };
}

// Lines across: what has to be reached, and what full INT8 and the recipe measure on all inputs.
function levelsOf({ report: { answer, similarity, threshold }, metric, hasRecipe }) {
  const inputs = answer?.given?.inputs;
  const on = inputs > 1 ? `, ${count(inputs)} inputs` : "";
  const levels = [
    { name: "threshold", value: threshold, tone: "good" },
    { name: `full ${LOW}${on}`, value: answer && similarity.int8, tone: "culprit", dash: "dot" },
    { name: `recipe${on}`, value: answer && hasRecipe && similarity.recipe, tone: "high", dash: "dot" },
  ];
  const known = levels.filter(({ value }) => isNumber(value));
  return known.map((level) => ({ ...level, words: `${level.name} ${metric.text(level.value)}` }));
}

// Beside their lines, pushed apart where lines are close; where there is no room for them, the legend has them.
function levelLabels(levels, scale, room) {
  const place = ({ value }) => (1 - scale.part(value)) * room;
  const beside = { xref: "paper", x: 1, xanchor: "left", xshift: 8, yref: "paper", y: 1, yanchor: "middle" };
  let above = -Infinity;
  const downwards = [...levels].sort((one, other) => place(one) - place(other));
  return downwards.map((level) => {
    above = Math.max(place(level), above + MARGIN.label);
    return label(level.words, level.tone, { ...beside, yshift: -Math.min(above, room) });
  });
}

// Layers that could not be measured, neighbours together, as bands.
function gaps(failed) {
  const bands = [];
  for (const { index } of failed) {
    const last = bands.at(-1);
    if (last && index - last.x1 < 1) last.x1 = index + 0.5;
    else bands.push({ x0: index - 0.5, x1: index + 0.5 });
  }
  const style = { type: "rect", yref: "paper", y0: 0, y1: 1, line: { width: 0 }, layer: "below" };
  return bands.map((band) => ({ ...style, ...band, fillcolor: colour("warn"), opacity: 0.12 }));
}

function selected(store) {
  const row = store.row();
  return row ? [selectedAt(row.index)] : [];
}
