// What `recover` found: the front of accuracy against cost, a plan of it that was clicked, and the cheapest that will do.

import { byId, facts, h, offerSection, show } from "./dom.js";
import { frontPlot } from "./front.js";
import { LOW, count, isNumber, metricOf, number, percent, plural } from "./format.js";
import { layerLink, plainTable } from "./plain_table.js";

const LISTED = 200;
const NAMED = 60;

export function startBest(store) {
  const view = { chosen: null, recovery: null };
  const redraw = () => showBest(store, view);
  store.on("model", redraw);
  store.on("theme", () => plot(store, view));
  store.on("selection", () => markSelected(store));
  redraw();
}

function showBest(store, view) {
  const recovery = store.model.data.recovery ?? null;
  offerSection("best", recovery !== null);
  if (recovery === null) return;
  view.recovery = recovery;
  view.metric = metricOf(recovery.figure, recovery.target?.least);
  view.front = recovery.front ?? [];
  if (view.chosen === null || view.chosen >= view.front.length) view.chosen = named(view.front, "recipe");
  view.choose = (place) => choose(store, view, place);
  show(byId("best-words"), [(recovery.lines ?? []).map((line) => h("p", {}, line.text)), basis(recovery)]);
  show(byId("best-body"), [leftHigh(store, view), moves(recovery), plans(view)]);
  choose(store, view, view.chosen);
}

function named(front, name) {
  return Math.max(
    0,
    front.findIndex((point) => point.names?.includes(name)),
  );
}

function basis({ costs, engine, arithmetic, plans }) {
  const by = { macs: "multiply-adds", measured: "the times measured" }[costs] ?? costs;
  return facts([
    ["Cost by", by],
    ["Measured with", [engine, arithmetic && `(${arithmetic})`].filter(Boolean).join(" ")],
    ["Plans measured", count(plans)],
  ]);
}

function choose(store, view, place) {
  view.chosen = place;
  plot(store, view);
  show(byId("best-point"), point(store, view));
  for (const button of document.querySelectorAll("#best-plans button")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.place) === place));
  }
  markSelected(store);
}

function plot(store, view) {
  if (view.recovery !== null) frontPlot(byId("best-plot"), view, view.choose);
}

// The plan that was clicked: what it costs and gives, and all that it leaves high.
function point(store, { front, chosen, metric }) {
  const plan = front[chosen];
  if (!plan) return null;
  const high = Object.entries(plan.high ?? {});
  const names = (plan.names ?? []).join(", ");
  return h(
    "div",
    { class: "plan" },
    h(
      "p",
      {},
      h("strong", {}, names || "A plan of the front"),
      `: cost ${percent(plan.cost)}, ${metric.label} ${metric.text(plan.figure)}, `,
      high.length ? `${plural(high.length, "layer")} in high precision:` : `every layer in ${LOW}.`,
    ),
    h(
      "ul",
      { class: "chips" },
      high.slice(0, NAMED).map(([name, precision]) => h("li", {}, layerLink(store, name), ` ${precision}`)),
      high.length > NAMED ? h("li", {}, `and ${count(high.length - NAMED)} more, in recovery.json`) : null,
    ),
  );
}

function markSelected({ selected }) {
  for (const button of document.querySelectorAll("#best [data-layer]")) {
    button.closest("li, tr").classList.toggle("chosen", button.dataset.layer === selected);
  }
}

function leftHigh(store, { recovery, metric }) {
  const rows = recovery.high ?? [];
  if (!rows.length) return null;
  const line = (row) => [
    layerLink(store, row.layer),
    row.op_type,
    row.precision,
    percent(row.cost),
    isNumber(row.back) ? metric.text(row.back) : "not measured",
  ];
  const titles = ["In high precision", "op", "in", "cost", `if put back in ${LOW}`];
  return plainTable("best-high", titles, 3, rows.slice(0, LISTED).map(line), rows.length - LISTED);
}

function moves(recovery) {
  const rows = recovery.moves ?? [];
  if (!rows.length) return null;
  const line = (move) => [h("code", {}, move.tensor), move.calibrator, number(move.scale_before), number(move.scale)];
  const titles = ["Tensor with another scale", "by", "scale before", "scale"];
  return plainTable("best-moves", titles, 2, rows.slice(0, LISTED).map(line), rows.length - LISTED);
}

// What the plot shows, for the keyboard and for print.
function plans({ front, metric, choose }) {
  const button = (plan, place) =>
    h(
      "button",
      {
        type: "button",
        class: "link",
        "data-place": place,
        "aria-pressed": "false",
        on: { click: () => choose(place) },
      },
      percent(plan.cost),
    );
  const line = (plan, place) => [
    button(plan, place),
    metric.text(plan.figure),
    count(Object.keys(plan.high ?? {}).length),
    (plan.names ?? []).join(", "),
  ];
  return h(
    "details",
    { id: "best-plans" },
    h("summary", {}, `All ${plural(front.length, "plan")} of the front`),
    plainTable("best-front", ["Cost", metric.label, "layers high", ""], 0, front.map(line)),
  );
}
