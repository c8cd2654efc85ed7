// The front of accuracy against cost as a plot and a list, and a plan of it that was clicked.

import { andMore, byId, facts, folded, h, layerLink, offerSection, plainTable, show } from "./dom.js";
import { LOW, capital, count, isNumber, plural } from "./format.js";
import { axis, draw, label, over, plain, points, scaleOf, targetLine } from "./plot.js";
import { colour } from "./theme.js";

const NAMED = 60;
const HOVERED = 5;
const HEIGHT = 340;
const COSTS = { macs: "multiply-adds", measured: "the times measured" };

export function startFront(store) {
  const view = { store, chosen: null };
  store.always(() => showFront(view), "model");
  store.on("theme", () => plot(view));
  store.on("selection", () => markSelected(store));
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
  show(byId("front-point"), point(view.store, view.store.model.report.front[place]));
  for (const button of document.querySelectorAll("#front-plans button")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.place) === place));
  }
  markSelected(view.store);
}

// The plan that was clicked: what it costs and gives, and all that it leaves high.
function point(store, plan) {
  const { figure, cost } = store.model;
  const high = Object.entries(plan.high);
  const links = high.map(([name, precision]) => h("li", layerLink(store, name), ` ${precision}`));
  const left = high.length ? `${plural(high.length, "layer")} in high precision:` : `every layer in ${LOW}.`;
  return h(
    "div.plan",
    h(
      "p",
      h("strong", plan.names.join(", ") || "A plan of the front"),
      `: cost ${cost.text(plan.cost)}, ${figure.label} ${figure.text(plan.figure)}, ${left}`,
    ),
    h(
      "ul.chips",
      andMore(links, NAMED, (more) => h("li", `and ${more} more, in front.csv`)),
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
  const line = (plan, place) => {
    const about = {
      type: "button",
      "data-place": place,
      "aria-pressed": "false",
      on: { click: () => choose(view, place) },
    };
    const high = count(Object.keys(plan.high).length);
    return [h("button.link", about, cost.text(plan.cost)), figure.text(plan.figure), high, plan.names.join(", ")];
  };
  const titles = [["Cost", capital(cost.title)], figure.label, "layers high", ""];
  const table = plainTable("front-table", titles, 0, front.map(line));
  return folded(`All ${plural(front.length, "plan")} of the front`, table, { id: "front-plans" });
}

// The figure over the cost: better is higher, as in the curve.
function plot(view) {
  const { report } = view.store.model;
  const element = byId("front-plot");
  const shown = report.front.map((plan, place) => ({ ...plan, place })).filter((plan) => isNumber(plan.figure));
  element.hidden = shown.length === 0;
  if (element.hidden) return;
  const make = () => drawn(shown, view.store.model, view.chosen);
  draw(element, HEIGHT, make, (place) => isNumber(place) && choose(view, place));
}

function drawn(shown, model, chosen) {
  const { figure, least, cost } = model;
  const scale = scaleOf([...shown.map((plan) => plan.figure), least], figure, figure.loss);
  const ends = [cost.at(0), Math.max(...shown.map((plan) => cost.at(plan.cost)), cost.at(1))];
  const spare = 0.03 * (ends[1] - ends[0]);
  const isAimed = isNumber(least);
  const target = { xref: "paper", x: 1, xanchor: "right", y: scale.label(least), yanchor: "bottom" };
  const named = shown.filter((plan) => plan.names.length);
  const parts = { x: (plan) => cost.at(plan.cost), y: (plan) => scale.at(plan.figure) };
  // Between two plans there is none: the figure of the cheaper one holds up to the next.
  const line = { mode: "lines", line: { shape: "hv", color: colour("int8"), width: 1.5 }, hoverinfo: "skip" };
  // Plans with a name are drawn over those without.
  const marked = [...shown.filter((plan) => !plan.names.length), ...named];
  const traces = [{ ...over(shown, parts), ...line }, plansDrawn(marked, parts, model, chosen)];
  const settings = {
    margin: { l: 104 },
    xaxis: axis(cost.title, { ticksuffix: cost.unit, zeroline: false, range: [ends[0] - spare, ends[1] + spare] }),
    yaxis: axis(figure.label, { ...scale.axis, zeroline: false, tickformat: figure.tickformat }),
    shapes: isAimed ? [targetLine(scale.at(least))] : [],
    annotations: [
      ...(isAimed ? [label(`target ${figure.text(least)}`, "good", target)] : []),
      ...named.map((plan) => nameOf(plan.names, parts.x(plan), scale.label(plan.figure), ends)),
    ],
  };
  return [traces, settings];
}

function plansDrawn(marked, parts, model, chosen) {
  const marker = {
    opacity: 1,
    ...over(marked, {
      size: (plan) => (plan.names.length ? 12 : 8),
      symbol: (plan) => (plan.names.length ? "diamond" : "circle"),
      color: (plan) => colour(plan.names.includes("recipe") ? "good" : "int8"),
    }),
    line: over(marked, {
      width: (plan) => (plan.place === chosen ? 3 : 1),
      color: (plan) => colour(plan.place === chosen ? "accent" : "background"),
    }),
  };
  const text = (plan) => hover(plan, model);
  const customdata = (plan) => plan.place;
  return points(marked, { ...parts, text, customdata }, { marker, cliponaxis: false });
}

function hover(plan, { figure, cost }) {
  const left = Object.keys(plan.high);
  const names = left.map((name) => plain(name.slice(0, 60)));
  const lines = [
    plan.names.length && `<b>${plain(plan.names.join(", "))}</b>`,
    `cost ${cost.text(plan.cost)}`,
    plain(`${figure.label} ${figure.text(plan.figure)}`),
    left.length ? `${plural(left.length, "layer")} left high` : `every layer in ${LOW}`,
    ...andMore(names, HOVERED, (more) => `and ${more} more`),
  ];
  return lines.filter(Boolean).join("<br>");
}

// Nothing of the front is lower at the right of a plan, or higher at its left; the words stand over the target's line.
function nameOf(names, x, y, ends) {
  const place =
    2 * x > ends[0] + ends[1]
      ? { xanchor: "right", yanchor: "middle", xshift: -10, yshift: 0 }
      : { xanchor: "left", yanchor: "top", xshift: 6, yshift: -4 };
  return label(names.join(", "), "text", { x, y, ...place, bgcolor: colour("background"), borderpad: 1 });
}
