// Similarity over k. The line is the network with the suspects ruled out; each suspect hangs from it by what it costs.

import { byId, offerSection, show } from "./dom.js";
import { LOW, capital, count, isNumber, plural } from "./format.js";
import { hasRecipe } from "./model.js";
import { legendItem } from "./parts.js";
import { axis, draw, label, plain, points, reshape, targetLine, upright } from "./plot.js";
import { scaleOf } from "./scale.js";
import { colour } from "./theme.js";

const RUG = [0, 0.07];
const HEIGHT = 380;
const MARGIN = { top: 12, bottom: 40, label: 16, wide: 190 };
const ROOMY = 640;

export function startCurve(store) {
  const element = byId("curve-plot");
  const redraw = () => drawCurve(element, store);
  for (const what of ["model", "theme"]) store.on(what, redraw);
  store.on("selection", () => requestAnimationFrame(() => reshape(element, (shapes) => marked(shapes, store))));
  byId("curve-log").addEventListener("change", redraw);
  redraw();
}

function drawCurve(element, store) {
  const { model } = store;
  const { metric } = model;
  const switched = byId("curve-log");
  switched.closest("label").hidden = !metric.loss;
  const figures = [...model.rows.map((row) => row.similarity), ...levelsOf(model).map(({ value }) => value)];
  const scale = scaleOf(figures, metric, switched.checked && metric.loss);
  const groups = groupsOf(model.rows);
  const isEmpty = groups.measured.length + groups.failed.length === 0;
  byId("curve-empty").hidden = !isEmpty;
  element.hidden = isEmpty;
  offerSection("curve", true);
  byId("curve-title").textContent =
    `${capital(metric.label)} of the outputs with layers 0 to k in ${LOW} (${judgedOn(model.report)})`;
  const roomy = element.clientWidth >= ROOMY;
  legend(groups, model, roomy);
  if (isEmpty) return;
  const make = () => [tracesOf(groups, scale, model), layoutOf(model, scale, store, groups.failed.length > 0, roomy)];
  draw(element, HEIGHT, make, store.select);
}

// The curve is measured on the judged inputs, and without the suspects: its end is not the figure of full INT8.
function judgedOn({ inputs }) {
  return `${plural(inputs.judged, "input")}, suspects in high precision`;
}

function groupsOf(rows) {
  const tried = rows.filter((row) => row.quantizable);
  const measured = tried.filter((row) => isNumber(row.similarity));
  return {
    tried,
    measured,
    standing: measured.filter((row) => !row.culprit && !row.added && !row.setAside),
    suspects: measured.filter((row) => row.setAside && !row.culprit),
    culprits: tried.filter((row) => row.culprit),
    added: measured.filter((row) => row.added && !row.culprit),
    failed: tried.filter((row) => row.failed && !isNumber(row.similarity)),
  };
}

function tracesOf(groups, scale, model) {
  return [line(groups, scale), stems(groups, scale), ...markers(groups, scale, model), rug(groups, model)];
}

// A failed or untried layer breaks the line; a suspect does not, since the line is the network without it.
function line({ tried }, scale) {
  const x = [];
  const y = [];
  for (const row of tried) {
    if (row.setAside) continue;
    x.push(row.index);
    y.push(isNumber(row.similarity) ? scale.at(row.similarity) : null);
  }
  return { x, y, mode: "lines", line: { color: colour("int8"), width: 1.5 }, hoverinfo: "skip", connectgaps: false };
}

// From where the line stood before a suspect down to the suspect.
function stems({ tried }, scale) {
  const x = [];
  const y = [];
  let before = null;
  for (const row of tried) {
    if (!isNumber(row.similarity)) continue;
    if (row.setAside && before !== null) {
      x.push(row.index, row.index, null);
      y.push(before, scale.at(row.similarity), null);
    }
    if (!row.setAside) before = scale.at(row.similarity);
  }
  return { x, y, mode: "lines", line: { color: colour("culprit"), width: 1.5, dash: "dot" }, hoverinfo: "skip" };
}

function markers({ standing, suspects, added, culprits }, scale, model) {
  const rim = { color: colour("background"), width: 1 };
  const marks = [
    [standing, { size: 6, color: colour("int8"), symbol: "circle" }],
    [suspects, { size: 10, color: colour("warn"), symbol: "diamond-open", line: { width: 2 } }],
    [added, { size: 8, color: colour("high"), symbol: "square" }],
    [culprits, { size: 12, color: colour("culprit"), symbol: "diamond", line: rim }],
  ];
  return marks.map(([rows, marker]) => {
    const measured = rows.filter((row) => isNumber(row.similarity));
    return layerPoints(measured, (row) => scale.at(row.similarity), model, { marker });
  });
}

function rug({ failed }, model) {
  const marker = { size: 10, symbol: "x", color: failed.map((row) => colour(row.culprit ? "culprit" : "warn")) };
  return layerPoints(failed, () => 0, model, { marker, yaxis: "y2", cliponaxis: false });
}

function layerPoints(rows, height, model, settings) {
  return points(
    rows.map((row) => row.index),
    rows.map(height),
    rows.map((row) => hover(row, model)),
    { customdata: rows.map((row) => row.name), ...settings },
  );
}

function hover(row, { metric, figure }) {
  const lines = [
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
  return [`<b>${plain(row.name)}</b>`, ...lines.filter(Boolean).map(plain)].join("<br>");
}

// Where layers failed, a strip under the curve marks them.
function layoutOf(model, scale, store, strip, roomy) {
  const levels = levelsOf(model);
  return {
    margin: { l: 88, t: MARGIN.top, b: MARGIN.bottom, r: roomy ? MARGIN.wide : 12 },
    hovermode: "closest",
    uirevision: scale.axis.type ?? "linear",
    xaxis: axis("layer k, in execution order", {
      range: [-0.5 - model.rows.length * 0.01, model.rows.length - 0.5 + model.rows.length * 0.01],
      zeroline: false,
      anchor: strip ? "y2" : "y",
    }),
    yaxis: axis(model.metric.label, { ...scale.axis, domain: [strip ? 0.1 : 0, 1], zeroline: false }),
    yaxis2: { domain: RUG, range: [-1, 1], visible: false, fixedrange: true },
    shapes: shapesOf(model, store, levels, scale),
    annotations: roomy ? levelLabels(levels, model.metric, scale, strip) : [],
  };
}

// Lines across: what has to be reached, and what full INT8 and the recipe measure on all inputs.
function levelsOf({ report }) {
  const { answer, similarity, threshold } = report;
  const inputs = answer?.given?.inputs;
  const on = inputs > 1 ? `, ${count(inputs)} inputs` : "";
  return [
    { name: "threshold", value: threshold, tone: "good" },
    { name: `full ${LOW}${on}`, value: answer && similarity.int8, tone: "culprit", dash: "dot" },
    { name: `recipe${on}`, value: answer && hasRecipe(report) && similarity.recipe, tone: "high", dash: "dot" },
  ].filter(({ value }) => isNumber(value));
}

// Beside their lines, pushed apart where lines are close; where there is no room for them, the legend has them.
function levelLabels(levels, metric, scale, strip) {
  const room = (HEIGHT - MARGIN.top - MARGIN.bottom) * (strip ? 0.9 : 1);
  const placed = levels
    .map((level) => ({ ...level, y: (1 - scale.part(level.value)) * room }))
    .sort((one, other) => one.y - other.y);
  let above = -Infinity;
  for (const level of placed) {
    level.shown = Math.max(level.y, above + MARGIN.label);
    above = level.shown;
  }
  const over = Math.max(0, above - room);
  if (over) placed.at(-1).shown -= over;
  const beside = { xref: "paper", x: 1, xanchor: "left", xshift: 8, yref: "paper", y: 1, yanchor: "middle" };
  return placed.map(({ name, value, tone, shown }) =>
    label(`${name} ${metric.text(value)}`, tone, { ...beside, yshift: -shown }),
  );
}

function shapesOf(model, store, levels, scale) {
  const lines = levels.map(({ value, tone, dash }) => targetLine(scale.at(value), tone, dash));
  return [...gaps(model.rows), ...lines, ...selected(store)];
}

// Layers that could not be measured, neighbours together, as bands.
function gaps(rows) {
  const bands = [];
  for (const row of rows) {
    if (!row.quantizable || !row.failed || isNumber(row.similarity)) continue;
    const last = bands.at(-1);
    if (last && row.index - last.x1 < 1) last.x1 = row.index + 0.5;
    else bands.push({ x0: row.index - 0.5, x1: row.index + 0.5 });
  }
  const style = { type: "rect", yref: "paper", y0: 0, y1: 1, line: { width: 0 }, layer: "below" };
  return bands.map((band) => ({ ...style, ...band, fillcolor: colour("warn"), opacity: 0.12 }));
}

function marked(shapes, store) {
  return [...shapes.filter(({ name }) => name !== "selected"), ...selected(store)];
}

function selected(store) {
  const row = store.row();
  const look = { layer: "below", opacity: 0.55, name: "selected" };
  return row ? [{ ...upright(row.index, { color: colour("accent"), width: 4 }), ...look }] : [];
}

function legend(groups, model, roomy) {
  const { report, metric, data, keptIn } = model;
  const high = report.precision.toUpperCase();
  const decided = data.status === "finished" || report.answer?.not_done.length === 0;
  const untried = groups.tried.filter((row) => row.outcome === "not tried");
  const entries = [
    ["dot int8", `this layer and all before it in ${LOW}, suspects in ${high}`, groups.standing],
    ["diamond culprit", "culprit", groups.culprits],
    ["diamond suspect", `suspect: a large loss, ${decided ? "no culprit" : "not decided yet"}`, groups.suspects],
    ["line stem", "dotted: the loss of one suspect or culprit", groups.tried.filter((row) => row.setAside)],
    ["square high", `no culprit, in ${keptIn} too`, groups.added],
    ["cross warn", "not measured: hover for the message", groups.failed],
    ["none", "not tried", untried],
  ].filter(([, , rows]) => rows.length > 0);
  const lines = levelsOf(model).map(({ name, value, tone }) => [`line ${tone}`, `${name} ${metric.text(value)}`]);
  show(byId("curve-legend"), [
    roomy ? [] : lines.map(([mark, words]) => legendItem(mark, words)),
    entries.map(([mark, words, rows]) => legendItem(mark, `${words} (${rows.length})`)),
  ]);
}
