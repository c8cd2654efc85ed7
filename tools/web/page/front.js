// The front of accuracy against cost as a plot and a list, and a plan of it that was clicked.

import { byId, h, offerSection, show } from "./dom.js";
import { LOW, capital, count, isNumber, plural } from "./format.js";
import { facts, folded, layerLink, plainTable } from "./parts.js";
import { axis, draw, label, plain, points, targetLine } from "./plot.js";
import { scaleOf } from "./scale.js";
import { colour } from "./theme.js";

const NAMED = 60;
const HOVERED = 5;
const HEIGHT = 340;
const COSTS = { macs: "multiply-adds", measured: "the times measured" };

export function startFront(store) {
  const view = { store, chosen: null };
  const redraw = () => showFront(view);
  store.on("model", redraw);
  store.on("theme", () => plot(view));
  store.on("selection", () => markSelected(store));
  redraw();
}

function showFront(view) {
  const { report, figure } = view.store.model;
  const { front, goal, engine, arithmetic } = report;
  offerSection("front", front.length > 0);
  if (!front.length) return;
  const basis = [
    ["Cost by", COSTS[goal.costs] ?? goal.costs],
    ["Measured with", `${engine} ${arithmetic && `(${arithmetic})`}`.trim()],
  ];
  show(byId("front-words"), facts(basis));
  show(byId("front-body"), plans(front, figure, view));
  const recipe = front.findIndex(({ names }) => names.includes("recipe"));
  choose(view, front[view.chosen] ? view.chosen : Math.max(0, recipe));
}

function choose(view, place) {
  view.chosen = place;
  plot(view);
  show(byId("front-point"), point(view));
  for (const button of document.querySelectorAll("#front-plans button")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.place) === place));
  }
  markSelected(view.store);
}

// The plan that was clicked: what it costs and gives, and all that it leaves high.
function point({ store, chosen }) {
  const { report, figure, cost } = store.model;
  const plan = report.front[chosen];
  const high = Object.entries(plan.high);
  const more = high.length - NAMED;
  return h(
    "div.plan",
    h(
      "p",
      h("strong", plan.names.join(", ") || "A plan of the front"),
      `: cost ${cost.text(plan.cost)}, ${figure.label} ${figure.text(plan.figure)}, `,
      high.length ? `${plural(high.length, "layer")} in high precision:` : `every layer in ${LOW}.`,
    ),
    h(
      "ul.chips",
      high.slice(0, NAMED).map(([name, precision]) => h("li", layerLink(store, name), ` ${precision}`)),
      more > 0 ? h("li", `and ${count(more)} more, in front.csv`) : null,
    ),
  );
}

function markSelected({ selected }) {
  for (const button of document.querySelectorAll("#front [data-layer]")) {
    button.closest("li, tr").classList.toggle("chosen", button.dataset.layer === selected);
  }
}

// What the plot shows, for the keyboard and for print.
function plans(front, figure, view) {
  const { cost } = view.store.model;
  const button = (plan, place) => {
    const on = { click: () => choose(view, place) };
    return h("button.link", { type: "button", "data-place": place, "aria-pressed": "false", on }, cost.text(plan.cost));
  };
  const line = (plan, place) => [
    button(plan, place),
    figure.text(plan.figure),
    count(Object.keys(plan.high).length),
    plan.names.join(", "),
  ];
  const table = plainTable(
    "front-table",
    [["Cost", capital(cost.title)], figure.label, "layers high", ""],
    0,
    front.map(line),
  );
  return folded(`All ${plural(front.length, "plan")} of the front`, table, { id: "front-plans" });
}

// The figure over the cost: better is higher, as in the curve.
function plot(view) {
  const { report, cost } = view.store.model;
  const element = byId("front-plot");
  const shown = report.front
    .map((plan, place) => ({ ...plan, place, x: cost.at(plan.cost), costText: cost.text(plan.cost) }))
    .filter((plan) => isNumber(plan.figure));
  element.hidden = shown.length === 0;
  if (element.hidden) return;
  draw(
    element,
    HEIGHT,
    () => drawn(shown, view),
    (place) => isNumber(place) && choose(view, place),
  );
}

function drawn(shown, { store, chosen }) {
  const { figure, least, cost } = store.model;
  const scale = scaleOf([...shown.map((plan) => plan.figure), least], figure, figure.loss);
  const target = { xref: "paper", x: 1, xanchor: "right", y: scale.label(least), yanchor: "bottom" };
  const traces = [line(shown, scale), plansDrawn(shown, scale, chosen, figure)];
  const ends = [cost.at(0), Math.max(...shown.map(({ x }) => x), cost.at(1))];
  const spare = 0.03 * (ends[1] - ends[0]);
  const settings = {
    margin: { l: 104 },
    hovermode: "closest",
    xaxis: axis(cost.title, { ticksuffix: cost.unit, zeroline: false, range: [ends[0] - spare, ends[1] + spare] }),
    yaxis: axis(figure.label, { ...scale.axis, zeroline: false, tickformat: figure.tickformat }),
    shapes: isNumber(least) ? [targetLine(scale.at(least))] : [],
    annotations: [
      ...(isNumber(least) ? [label(`target ${figure.text(least)}`, "good", target)] : []),
      ...shown.filter(({ names }) => names.length).map((plan) => nameOf(plan, scale, ends)),
    ],
  };
  return [traces, settings];
}

// Between two plans there is none: the figure of the cheaper one holds up to the next.
function line(shown, scale) {
  return {
    x: shown.map(({ x }) => x),
    y: shown.map((plan) => scale.at(plan.figure)),
    mode: "lines",
    line: { shape: "hv", color: colour("int8"), width: 1.5 },
    hoverinfo: "skip",
  };
}

// Plans with a name are drawn over those without.
function plansDrawn(front, scale, chosen, figure) {
  const shown = [...front.filter(({ names }) => !names.length), ...front.filter(({ names }) => names.length)];
  const marker = {
    opacity: 1,
    size: shown.map(({ names }) => (names.length ? 12 : 8)),
    symbol: shown.map(({ names }) => (names.length ? "diamond" : "circle")),
    color: shown.map(({ names }) => colour(names.includes("recipe") ? "good" : "int8")),
    line: {
      width: shown.map(({ place }) => (place === chosen ? 3 : 1)),
      color: shown.map(({ place }) => colour(place === chosen ? "accent" : "background")),
    },
  };
  return points(
    shown.map(({ x }) => x),
    shown.map((plan) => scale.at(plan.figure)),
    shown.map((plan) => hover(plan, figure)),
    { marker, cliponaxis: false, customdata: shown.map(({ place }) => place) },
  );
}

function hover({ names, costText, figure: value, high }, figure) {
  const left = Object.keys(high);
  const more = left.length - HOVERED;
  const lines = [
    names.length && `<b>${plain(names.join(", "))}</b>`,
    `cost ${costText}`,
    plain(`${figure.label} ${figure.text(value)}`),
    left.length ? `${plural(left.length, "layer")} left high` : `every layer in ${LOW}`,
    ...left.slice(0, HOVERED).map((name) => plain(name.slice(0, 60))),
    more > 0 && `and ${more} more`,
  ];
  return lines.filter(Boolean).join("<br>");
}

// Nothing of the front is lower at the right of a plan, or higher at its left; the words stand over the target's line.
function nameOf({ names, x, figure }, scale, ends) {
  const isLeft = 2 * x > ends[0] + ends[1];
  return label(names.join(", "), "text", {
    x,
    y: scale.label(figure),
    xanchor: isLeft ? "right" : "left",
    yanchor: isLeft ? "middle" : "top",
    xshift: isLeft ? -10 : 6,
    yshift: isLeft ? 0 : -4,
    bgcolor: colour("background"),
    borderpad: 1,
  });
}
