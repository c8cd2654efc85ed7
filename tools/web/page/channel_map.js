// How the values of each channel of a weight are spread: a heat map with a column for each channel, as a canvas, and
// the histogram of a channel that is chosen on it, by a click or with the arrow keys.

import { h } from "./dom.js";
import { count, number } from "./format.js";
import { axis, draw } from "./plot.js";
import { colour } from "./theme.js";

const LEAST = 0.14;

export function mapBox(map) {
  const canvas = h("canvas", {
    width: map.rows.length,
    height: map.rows[0].length,
    role: "slider",
    tabindex: 0,
    "aria-valuemin": 0,
    "aria-valuemax": map.rows.length - 1,
    "aria-valuenow": 0,
    "aria-label": `How the values of ${map.rows.length * map.step} channels are spread from ${number(map.low)} to ${number(map.high)}`,
  });
  const plot = h("div", { class: "plot small" });
  const choose = (place) => {
    canvas.setAttribute("aria-valuenow", place);
    canvas.setAttribute("aria-valuetext", channelsOf(map, place));
    box.append(plot);
    drawChannel(plot, map, place);
  };
  canvas.addEventListener("click", ({ offsetX }) => choose(placeOf(canvas, map, offsetX)));
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Enter: 0, " ": 0 }[event.key];
    if (steps === undefined) return;
    event.preventDefault();
    const now = Number(canvas.getAttribute("aria-valuenow"));
    choose(Math.max(0, Math.min(map.rows.length - 1, now + (plot.isConnected ? steps : 0))));
  });
  const said = h("p", { class: "under" }, ABOUT);
  canvas.addEventListener("pointermove", (event) => (said.textContent = wordsAt(canvas, map, event)));
  canvas.addEventListener("pointerleave", () => (said.textContent = ABOUT));
  const last = map.rows.length * map.step - 1;
  const box = h(
    "div",
    { class: "map" },
    h("span", { class: "map-high" }, number(map.high)),
    h("span", { class: "map-low" }, number(map.low)),
    canvas,
    h("span", { class: "map-first" }, "channel 0"),
    h("span", { class: "map-last" }, map.step > 1 ? `about ${count(last)}` : count(last)),
    said,
  );
  return box;
}

const ABOUT = "The darker, the more values of the channel. A click shows the histogram of a channel.";

export function drawMap(box, map) {
  const canvas = box.querySelector("canvas");
  const levels = map.rows.map((row) => [...row].map((digit) => parseInt(digit, 36)));
  const most = Math.max(1, ...levels.map((row) => Math.max(...row)));
  const paint = canvas.getContext("2d");
  paint.clearRect(0, 0, canvas.width, canvas.height);
  paint.fillStyle = colour("int8");
  levels.forEach((row, x) =>
    row.forEach((level, bin) => {
      if (!level) return;
      paint.globalAlpha = LEAST + ((1 - LEAST) * level) / most;
      paint.fillRect(x, row.length - 1 - bin, 1, 1);
    }),
  );
}

function wordsAt(canvas, map, { offsetX, offsetY }) {
  const { rows, low, high } = map;
  const x = placeOf(canvas, map, offsetX);
  const bins = rows[x].length;
  const bin = bins - 1 - inside(offsetY / canvas.clientHeight, bins);
  const width = (high - low) / bins;
  const values = valuesOf(parseInt(rows[x][bin], 36));
  return `${channelsOf(map, x)}, ${number(low + bin * width)} … ${number(low + (bin + 1) * width)}: ${values}`;
}

const inside = (share, parts) => Math.max(0, Math.min(parts - 1, Math.floor(share * parts)));
const placeOf = (canvas, { rows }, offset) => inside(offset / canvas.clientWidth, rows.length);

function channelsOf({ step }, place) {
  return step > 1 ? `channels ${place * step} to ${(place + 1) * step - 1}` : `channel ${place}`;
}

// A level is the number of bits of a count.
function valuesOf(level) {
  if (level < 2) return level ? "1 value" : "no value";
  return `${count(2 ** (level - 1))} to ${count(2 ** level - 1)} values`;
}

function drawChannel(element, map, place) {
  const levels = [...map.rows[place]].map((digit) => parseInt(digit, 36));
  const width = (map.high - map.low) / levels.length;
  const bars = {
    x: levels.map((_, bin) => map.low + (bin + 0.5) * width),
    y: levels.map((level) => (level ? Math.sqrt(2 ** (level - 1) * (2 ** level - 1)) : null)),
    text: levels.map(valuesOf),
    textposition: "none",
    type: "bar",
    width,
    marker: { color: colour("int8"), line: { width: 0 } },
    hovertemplate: "%{x:.4g}: %{text}<extra></extra>",
  };
  draw(element, [bars], {
    height: 170,
    bargap: 0,
    margin: { l: 58, t: 8, b: 34, r: 8 },
    xaxis: axis(`value in ${channelsOf(map, place)}`, { nticks: 6 }),
    yaxis: axis("count", { type: "log", dtick: 1, exponentformat: "SI" }),
  });
}
