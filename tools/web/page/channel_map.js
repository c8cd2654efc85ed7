// How the values of each channel of a weight are spread: a heat map with a column for each channel, as a canvas, and
// the histogram of a channel that is chosen on it, by a click or with the arrow keys.

import { h } from "./dom.js";
import { clamp, count, number } from "./format.js";
import { bars, counted, draw } from "./plot.js";
import { colour } from "./theme.js";

const LEAST = 0.14;
const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Enter: 0, " ": 0 };
const ABOUT = "The darker, the more values of the channel. A click shows the histogram of a channel.";

export function mapBox(map) {
  const width = map.rows.length;
  const canvas = h("canvas", {
    width,
    height: map.rows[0].length,
    role: "slider",
    tabindex: 0,
    "aria-valuemin": 0,
    "aria-valuemax": width - 1,
    "aria-valuenow": 0,
    "aria-label": `How the values of ${width * map.step} channels are spread from ${number(map.low)} to ${number(map.high)}`,
  });
  const plot = h("div.plot.small");
  const choose = (place) => {
    canvas.setAttribute("aria-valuenow", place);
    canvas.setAttribute("aria-valuetext", channelsOf(map, place));
    box.append(plot);
    draw(plot, 170, () => channel(map, place));
  };
  canvas.addEventListener("click", ({ offsetX }) => choose(placeOf(canvas, map, offsetX)));
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    const now = Number(canvas.getAttribute("aria-valuenow"));
    choose(clamp(now + (plot.isConnected ? STEPS[event.key] : 0), 0, width - 1));
  });
  const said = h("p.under", ABOUT);
  canvas.addEventListener("pointermove", (event) => (said.textContent = wordsAt(canvas, map, event)));
  canvas.addEventListener("pointerleave", () => (said.textContent = ABOUT));
  const last = count(width * map.step - 1);
  const box = h(
    "div.map",
    h("span.map-high", number(map.high)),
    h("span.map-low", number(map.low)),
    canvas,
    h("span.map-first", "channel 0"),
    h("span.map-last", map.step > 1 ? `about ${last}` : last),
    said,
  );
  paintMap(canvas, map);
  return box;
}

function paintMap(canvas, map) {
  const levels = map.rows.map(levelsOf);
  const most = Math.max(1, ...levels.map((row) => Math.max(...row)));
  const paint = canvas.getContext("2d");
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

const inside = (share, parts) => clamp(Math.floor(share * parts), 0, parts - 1);
const placeOf = (canvas, { rows }, offset) => inside(offset / canvas.clientWidth, rows.length);

function channelsOf({ step }, place) {
  return step > 1 ? `channels ${place * step} to ${(place + 1) * step - 1}` : `channel ${place}`;
}

// A level is the number of bits of a count.
function valuesOf(level) {
  if (level < 2) return level ? "1 value" : "no value";
  return `${count(2 ** (level - 1))} to ${count(2 ** level - 1)} values`;
}

// A row has a digit to the base of 36 for each bin.
function levelsOf(row) {
  return [...row].map((digit) => parseInt(digit, 36));
}

function channel(map, place) {
  const levels = levelsOf(map.rows[place]);
  const width = (map.high - map.low) / levels.length;
  const drawn = bars(
    levels.map((_, bin) => map.low + (bin + 0.5) * width),
    levels.map((level) => (level ? Math.sqrt(2 ** (level - 1) * (2 ** level - 1)) : null)),
    colour("int8"),
    { width, text: levels.map(valuesOf), hovertemplate: "%{x:.4g}: %{text}<extra></extra>" },
  );
  return counted([drawn], `value in ${channelsOf(map, place)}`);
}
