// The front as a plot: the figure over the cost, better is higher, as in the curve.

import { LOW, isNumber, percent, plural } from "./format.js";
import { axis, draw, plain, targetLabel, targetLine } from "./plot.js";
import { scaleOf } from "./scale.js";
import { colour } from "./theme.js";

const HOVERED = 5;

export function frontPlot(element, { front, chosen, metric, least }, choose) {
  const scale = scaleOf([...front.map((plan) => plan.figure), least], metric, metric.loss !== null);
  const shown = front.map((plan, place) => ({ ...plan, place })).filter((plan) => isNumber(plan.figure));
  element.hidden = shown.length === 0;
  if (element.hidden) return;
  const height = isNumber(least) ? scale.at(least) : null;
  draw(element, [line(shown, scale), points(shown, scale, chosen, metric)], {
    height: 340,
    margin: { l: 104 },
    hovermode: "closest",
    xaxis: axis(`given up of ${LOW}'s gain in speed`, { ticksuffix: "%", zeroline: false, range: [-3, 103] }),
    yaxis: axis(metric.label, {
      ...scale.axis,
      zeroline: false,
      ...(metric.loss ? {} : { tickformat: metric.fraction ? ".1%" : "" }),
    }),
    shapes: height === null ? [] : [targetLine(height)],
    annotations: [
      ...(height === null ? [] : [targetLabel(`target ${metric.text(least)}`, height, scale)]),
      ...shown.filter((plan) => plan.names?.length).map((plan) => label(plan, scale)),
    ],
  });
  listen(element, choose);
}

// Plotly keeps listeners when it draws again.
function listen(element, choose) {
  element.removeAllListeners("plotly_click");
  element.on("plotly_click", (event) => {
    const place = event.points[0].customdata;
    if (isNumber(place)) choose(place);
  });
}

// Between two plans there is none: the figure of the cheaper one holds up to the next.
function line(shown, scale) {
  return {
    x: shown.map((plan) => 100 * plan.cost),
    y: shown.map((plan) => scale.at(plan.figure)),
    mode: "lines",
    line: { shape: "hv", color: colour("int8"), width: 1.5 },
    hoverinfo: "skip",
  };
}

function points(front, scale, chosen, metric) {
  const shown = [...front].sort((one, other) => rank(one) - rank(other));
  return {
    x: shown.map((plan) => 100 * plan.cost),
    y: shown.map((plan) => scale.at(plan.figure)),
    mode: "markers",
    cliponaxis: false,
    marker: {
      opacity: 1,
      size: shown.map((plan) => (plan.names?.length ? 12 : 8)),
      symbol: shown.map((plan) => (plan.names?.length ? "diamond" : "circle")),
      color: shown.map((plan) => colour(plan.names?.includes("recipe") ? "good" : "int8")),
      line: {
        width: shown.map((plan) => (plan.place === chosen ? 3 : 1)),
        color: shown.map((plan) => colour(plan.place === chosen ? "accent" : "background")),
      },
    },
    customdata: shown.map((plan) => plan.place),
    text: shown.map((plan) => hover(plan, metric)),
    hovertemplate: "%{text}<extra></extra>",
  };
}

// Plans with a name are drawn over those without.
function rank({ names }) {
  return names?.length ? 1 : 0;
}

function hover({ names, cost, figure, high }, metric) {
  const left = Object.keys(high ?? {});
  const lines = [
    `gives up ${percent(cost)}`,
    plain(`${metric.label} ${metric.text(figure)}`),
    left.length ? `${plural(left.length, "layer")} left high` : `every layer in ${LOW}`,
    ...left.slice(0, HOVERED).map((name) => plain(name.slice(0, 60))),
  ];
  if (left.length > HOVERED) lines.push(`and ${left.length - HOVERED} more`);
  if (names?.length) lines.unshift(`<b>${plain(names.join(", "))}</b>`);
  return lines.join("<br>");
}

// Nothing of the front is lower at the right of a plan, or higher at its left; the words stand over the target's line.
function label({ names, cost, figure }, scale) {
  const left = cost > 0.5;
  const y = scale.at(figure);
  return {
    x: 100 * cost,
    y: scale.axis.type === "log" ? Math.log10(y) : y,
    xanchor: left ? "right" : "left",
    yanchor: left ? "middle" : "top",
    xshift: left ? -10 : 6,
    yshift: left ? 0 : -4,
    bgcolor: colour("background"),
    borderpad: 1,
    showarrow: false,
    text: plain(names.join(", ")),
    font: { size: 12, color: colour("text") },
  };
}
