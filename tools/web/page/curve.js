// Similarity over k. The line is the network with the suspects ruled out; each suspect hangs from it by what it costs.

import { byId, h, offerSection, show } from "./dom.js";
import { LOW, capital, count, isNumber, plural } from "./format.js";
import { axis, draw, plain, targetLine } from "./plot.js";
import { scaleOf } from "./scale.js";
import { colour } from "./theme.js";

const RUG = [0, 0.07];
const HEIGHT = 380;
const MARGIN = { top: 12, bottom: 40, label: 16, wide: 190 };
const ROOMY = 640;

export function startCurve(store) {
  const element = byId("curve-plot");
  const view = { logarithmic: true, bound: false };
  const redraw = () => drawCurve(element, store, view);
  for (const what of ["model", "theme"]) store.on(what, redraw);
  store.on("selection", () => requestAnimationFrame(() => markSelected(element, store)));
  byId("curve-log").addEventListener("change", (event) => {
    view.logarithmic = event.target.checked;
    redraw();
  });
  redraw();
}

function drawCurve(element, store, view) {
  const { model } = store;
  const { metric } = model;
  const logarithmic = view.logarithmic && metric.loss !== null;
  byId("curve-log").closest("label").hidden = metric.loss === null;
  const figures = [...model.rows.map((row) => row.similarity), ...levelsOf(model).map(({ value }) => value)];
  const scale = scaleOf(figures, metric, logarithmic);
  const groups = groupsOf(model.rows);
  byId("curve-empty").hidden = groups.measured.length + groups.failed.length > 0;
  element.hidden = !byId("curve-empty").hidden;
  offerSection("curve", true);
  byId("curve-title").textContent =
    `${capital(metric.label)} of the final outputs, with layers 0 to k in ${LOW}${judgedOn(model.report)}`;
  const roomy = element.clientWidth >= ROOMY;
  legend(groups, model, roomy);
  if (element.hidden) return;
  draw(element, tracesOf(groups, scale, model), layoutOf(model, scale, store, groups.failed.length > 0, roomy));
  if (!view.bound) {
    view.bound = true;
    element.on("plotly_click", (event) => store.select(event.points[0].customdata));
  }
}

// The curve is measured on the judged inputs, and without the suspects: its end is not the figure of full INT8.
function judgedOn({ inputs }) {
  return isNumber(inputs?.judged)
    ? `; on ${plural(inputs.judged, "input")} used in the search, suspects in high precision`
    : "";
}

function groupsOf(rows) {
  const tried = rows.filter((row) => row.quantizable);
  return {
    tried,
    measured: tried.filter((row) => isNumber(row.similarity)),
    standing: tried.filter((row) => isNumber(row.similarity) && !row.culprit && !row.added && !row.setAside),
    suspects: tried.filter((row) => isNumber(row.similarity) && row.setAside && !row.culprit),
    culprits: tried.filter((row) => row.culprit),
    added: tried.filter((row) => isNumber(row.similarity) && row.added && !row.culprit),
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

function markers(groups, scale, model) {
  const marks = [
    [groups.standing, { size: 6, color: colour("int8"), symbol: "circle" }],
    [groups.suspects, { size: 10, color: colour("warn"), symbol: "diamond-open", line: { width: 2 } }],
    [groups.added, { size: 8, color: colour("high"), symbol: "square" }],
    [
      groups.culprits.filter((row) => isNumber(row.similarity)),
      { size: 12, color: colour("culprit"), symbol: "diamond", line: { color: colour("background"), width: 1 } },
    ],
  ];
  return marks.map(([rows, marker]) =>
    points(
      rows,
      rows.map((row) => scale.at(row.similarity)),
      marker,
      model,
    ),
  );
}

function rug({ failed }, model) {
  const marker = {
    size: 10,
    symbol: "x",
    color: failed.map((row) => colour(row.culprit ? "culprit" : "warn")),
  };
  return {
    ...points(
      failed,
      failed.map(() => 0),
      marker,
      model,
    ),
    yaxis: "y2",
    cliponaxis: false,
  };
}

function points(rows, y, marker, model) {
  return {
    x: rows.map((row) => row.index),
    y,
    mode: "markers",
    marker,
    customdata: rows.map((row) => row.name),
    text: rows.map((row) => hover(row, model)),
    hovertemplate: "%{text}<extra></extra>",
  };
}

function hover(row, { metric, figure }) {
  const lines = [
    `<b>${plain(row.name)}</b>`,
    plain(`${row.index} · ${row.op_type} · ${row.shapeText}`),
    isNumber(row.similarity) ? plain(`${metric.label} ${metric.text(row.similarity)}`) : plain(row.outcome),
  ];
  if (isNumber(row.drop)) lines.push(plain(`loss here ${metric.drop(row.drop)}`));
  if (row.culprit) lines.push("culprit");
  if (isNumber(row.taken_back)) lines.push(plain(`if put back in ${LOW}: ${figure.text(row.taken_back)}`));
  if (row.setAside) lines.push("in high precision for the layers after it");
  if (row.suspect) lines.push(plain(`suspect: ${row.suspect.split(":")[0]}`));
  if (row.added) lines.push("in high precision in the recipe too");
  if (row.message) lines.push(plain(row.message.slice(0, 160)));
  return lines.join("<br>");
}

// Where layers failed, a strip under the curve marks them.
function layoutOf(model, scale, store, strip, roomy) {
  const levels = levelsOf(model);
  return {
    height: HEIGHT,
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
  const whole = report.answer ? report.similarity : {};
  const inputs = report.answer?.given?.inputs;
  const on = inputs > 1 ? `, ${count(inputs)} inputs` : "";
  return [
    { name: "threshold", value: report.threshold, tone: "good" },
    { name: `full ${LOW}${on}`, value: whole?.int8, tone: "culprit", dash: "dot" },
    { name: `recipe${on}`, value: whole?.recipe, tone: "high", dash: "dot" },
  ].filter(({ value }) => isNumber(value));
}

// Beside their lines, pushed apart where lines are close; where there is no room for them, the legend has them.
function levelLabels(levels, metric, scale, strip) {
  const room = (HEIGHT - MARGIN.top - MARGIN.bottom) * (strip ? 0.9 : 1);
  const placed = levels
    .map((level) => ({ ...level, y: (1 - scale.part(level.value)) * room }))
    .sort((one, other) => one.y - other.y);
  let above = -Infinity;
  for (const label of placed) {
    label.shown = Math.max(label.y, above + MARGIN.label);
    above = label.shown;
  }
  const over = Math.max(0, above - room);
  return placed.map(({ name, value, tone, shown }, place) => ({
    xref: "paper",
    x: 1,
    xanchor: "left",
    xshift: 8,
    yref: "paper",
    y: 1,
    yanchor: "middle",
    yshift: -(over && place === placed.length - 1 ? shown - over : shown),
    text: plain(`${name} ${metric.text(value)}`),
    showarrow: false,
    font: { size: 12, color: colour(tone) },
  }));
}

function shapesOf(model, store, levels, scale) {
  const shapes = gaps(model.rows);
  shapes.push(...levels.map(({ value, tone, dash }) => targetLine(scale.at(value), tone, dash)));
  const row = store.row();
  if (row) {
    shapes.push(selected(row));
  }
  return shapes;
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

function markSelected(element, store) {
  if (element.hidden || !element.layout) return;
  const others = element.layout.shapes.filter((shape) => shape.name !== "selected");
  const row = store.row();
  window.Plotly.relayout(element, { shapes: row ? [...others, selected(row)] : others });
}

function selected({ index }) {
  const place = { yref: "paper", y0: 0, y1: 1, x0: index, x1: index };
  return {
    type: "line",
    ...place,
    layer: "below",
    line: { color: colour("accent"), width: 4 },
    opacity: 0.55,
    name: "selected",
  };
}

function legend(groups, model, roomy) {
  const { report, metric } = model;
  const high = (report.precision ?? "fp32").toUpperCase();
  const { answer } = model.report;
  const decided = model.data.status === "finished" || Boolean(answer && !answer.not_done?.length);
  const untried = groups.tried.filter((row) => row.outcome === "not tried").length;
  const entries = [
    ["dot int8", `this layer and all before it in ${LOW}, suspects in ${high}`, groups.standing.length],
    ["diamond culprit", "culprit", groups.culprits.length],
    ["diamond suspect", `suspect: a large loss, ${decided ? "no culprit" : "not decided yet"}`, groups.suspects.length],
    ["line stem", "dotted: the loss of one suspect or culprit", groups.tried.filter((row) => row.setAside).length],
    ["square high", `no culprit, in ${high} too`, groups.added.length],
    ["cross warn", "not measured: hover for the message", groups.failed.length],
    ["none", "not tried", untried],
  ].filter(([, , size]) => size > 0);
  const item = ([mark, words, size]) => h("li", {}, h("i", { class: mark, "aria-hidden": true }), `${words} (${size})`);
  const line = ({ name, value, tone }) =>
    h("li", {}, h("i", { class: `line ${tone}`, "aria-hidden": true }), `${name} ${metric.text(value)}`);
  show(byId("curve-legend"), [...(roomy ? [] : levelsOf(model).map(line)), ...entries.map(item)]);
}
