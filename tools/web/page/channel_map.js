// How the values of each channel of a weight are spread: a heat map with a column for each channel, as a canvas.

import { h } from "./dom.js";
import { count, number } from "./format.js";
import { colour } from "./theme.js";

const LEAST = 0.14;

export function mapBox(map) {
  const canvas = h("canvas", {
    width: map.rows.length,
    height: map.rows[0].length,
    role: "img",
    "aria-label": `How the values of ${map.rows.length * map.step} channels are spread from ${number(map.low)} to ${number(map.high)}`,
  });
  const said = h("p", { class: "under" }, ABOUT);
  canvas.addEventListener("pointermove", (event) => (said.textContent = wordsAt(canvas, map, event)));
  canvas.addEventListener("pointerleave", () => (said.textContent = ABOUT));
  const last = map.rows.length * map.step - 1;
  return h(
    "div",
    { class: "map" },
    h("span", { class: "map-high" }, number(map.high)),
    h("span", { class: "map-low" }, number(map.low)),
    canvas,
    h("span", { class: "map-first" }, "channel 0"),
    h("span", { class: "map-last" }, map.step > 1 ? `about ${count(last)}` : count(last)),
    said,
  );
}

const ABOUT = "The darker, the more values of the channel.";

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

function wordsAt(canvas, { rows, step, low, high }, { offsetX, offsetY }) {
  const inside = (share, parts) => Math.max(0, Math.min(parts - 1, Math.floor(share * parts)));
  const x = inside(offsetX / canvas.clientWidth, rows.length);
  const bins = rows[x].length;
  const bin = bins - 1 - inside(offsetY / canvas.clientHeight, bins);
  const level = parseInt(rows[x][bin], 36);
  const width = (high - low) / bins;
  const values =
    level === 0
      ? "no value"
      : level === 1
        ? "1 value"
        : `${count(2 ** (level - 1))} to ${count(2 ** level - 1)} values`;
  const channels = step > 1 ? `channels ${x * step} to ${(x + 1) * step - 1}` : `channel ${x}`;
  return `${channels}, ${number(low + bin * width)} … ${number(low + (bin + 1) * width)}: ${values}`;
}
