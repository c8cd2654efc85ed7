// The front of accuracy against cost, a plan of it that was clicked, and the scales of other calibrators.

import { byId, facts, h, offerSection, show } from "./dom.js";
import { frontPlot } from "./front.js";
import { LOW, count, number, percent, plural } from "./format.js";
import { layerLink, plainTable } from "./plain_table.js";

const LISTED = 200;
const NAMED = 60;

export function startFront(store) {
  const view = { chosen: null, front: [] };
  const redraw = () => showFront(store, view);
  store.on("model", redraw);
  store.on("theme", () => plot(view));
  store.on("selection", () => markSelected(store));
  redraw();
}

function showFront(store, view) {
  const { report, figure, least } = store.model;
  view.front = report.front ?? [];
  const moves = report.moves ?? [];
  offerSection("front", view.front.length + moves.length > 0);
  Object.assign(view, { metric: figure, least });
  if (view.chosen === null || view.chosen >= view.front.length) view.chosen = named(view.front, "recipe");
  view.choose = (place) => choose(store, view, place);
  show(byId("front-words"), basis(report));
  show(byId("front-body"), [movesTable(moves), view.front.length ? plans(view) : null]);
  byId("front-plot").hidden = view.front.length === 0;
  if (view.front.length) choose(store, view, view.chosen);
}

function named(front, name) {
  return Math.max(
    0,
    front.findIndex((point) => point.names?.includes(name)),
  );
}

function basis({ goal, engine, arithmetic }) {
  const by = { macs: "multiply-adds", measured: "the times measured" }[goal?.costs] ?? goal?.costs;
  return facts([
    ["Cost by", by],
    ["Measured with", [engine, arithmetic && `(${arithmetic})`].filter(Boolean).join(" ")],
  ]);
}

function choose(store, view, place) {
  view.chosen = place;
  plot(view);
  show(byId("front-point"), point(store, view));
  for (const button of document.querySelectorAll("#front-plans button")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.place) === place));
  }
  markSelected(store);
}

function plot(view) {
  if (view.front.length) frontPlot(byId("front-plot"), view, view.choose);
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
      `: gives up ${percent(plan.cost)}, ${metric.label} ${metric.text(plan.figure)}, `,
      high.length ? `${plural(high.length, "layer")} in high precision:` : `every layer in ${LOW}.`,
    ),
    h(
      "ul",
      { class: "chips" },
      high.slice(0, NAMED).map(([name, precision]) => h("li", {}, layerLink(store, name), ` ${precision}`)),
      high.length > NAMED ? h("li", {}, `and ${count(high.length - NAMED)} more, in front.csv`) : null,
    ),
  );
}

function markSelected({ selected }) {
  for (const button of document.querySelectorAll("#front [data-layer]")) {
    button.closest("li, tr").classList.toggle("chosen", button.dataset.layer === selected);
  }
}

function movesTable(rows) {
  if (!rows.length) return null;
  const line = (move) => [h("code", {}, move.tensor), move.calibrator, number(move.scale_before), number(move.scale)];
  const titles = ["Scale of another calibrator", "by", "scale before", "scale"];
  return plainTable("front-moves", titles, 2, rows.slice(0, LISTED).map(line), rows.length - LISTED);
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
    { id: "front-plans" },
    h("summary", {}, `All ${plural(front.length, "plan")} of the front`),
    plainTable("front-table", ["Gives up", metric.label, "layers high", ""], 0, front.map(line)),
  );
}
