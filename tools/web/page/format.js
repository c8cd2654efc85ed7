// Figures as a person reads them, and how each metric is drawn.

// The low precision in question, as texts name it.
export const LOW = document.documentElement.dataset.low;

// The precision that users would ship instead, over which a speedup is counted.
export const OTHER = ["FP16", "BF16"].includes(LOW) ? "FP32" : "FP16";

export const NOTHING = "–";

// The plans that are shown side by side.
export const PLANS = { fp32: "FP32", fp16: "FP16", int8: `Full ${LOW}`, recipe: "Recipe" };

const ACCURACY = "accuracy";
const SHARES = new Set(["cosine", "top1", "agreement", "equal"]);
const DECIBELS = new Set(["sqnr", "centered_sqnr"]);
const ERRORS = new Set(["mse", "l1", "kl", "max_abs", "max_rel"]);
const LABELS = new Map([
  ["cosine", "cosine similarity"],
  ["top1", "top-1 agreement"],
  ["agreement", "agreement with FP32"],
  ["equal", "share of equal elements"],
  ["sqnr", "SQNR"],
  ["centered_sqnr", "SQNR, mean taken out"],
]);

// What a percentage of these is; said once on a page.
export const EXPLAINED = {
  cosine:
    "Percentages are cosine similarities of the final outputs with FP32's, times 100: 100% is the same direction. " +
    "They are not accuracies, and 99% can be a bad network.",
  top1: "Percentages are the share of positions whose most probable class is FP32's. They are not accuracies.",
  agreement: "Percentages are the share of results that agree with FP32's. They are not accuracies.",
  equal: "Percentages are the share of elements that equal FP32's. They are not accuracies.",
};
const DECIMALS = 4;
const TELLING = 6;

export const clamp = (value, least, most) => Math.max(least, Math.min(most, value));

// By a key of theirs the items that have it.
export function grouped(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return groups;
}

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function number(value, digits = 4) {
  if (!isNumber(value)) return NOTHING;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}

// With this number of decimals, and no minus before a zero.
export function fixed(value, digits) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

// A share of 1 in percent, by the rule of trt_bisect/support/text.py: two decimals, or up to four near 0 and 100; up
// to six where the figure would else seem to be on the other side of the threshold. An exact one has no zeros at its end.
export function percent(share, threshold) {
  if (!isNumber(share)) return NOTHING;
  const value = 100 * share;
  if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -DECIMALS) return `${value < 0 ? "-" : ""}<0.0001%`;
  const distance = Math.min(Math.abs(value), Math.abs(100 - value));
  let decimals = distance ? clamp(1 - Math.floor(Math.log10(distance)), 2, DECIMALS) : 0;
  const least = Number((100 * threshold).toFixed(9));
  const isTold = () => !isNumber(threshold) || Number(value.toFixed(decimals)) >= least === share >= threshold;
  while (decimals < TELLING && !isTold()) decimals += 1;
  const text = value.toFixed(decimals);
  if (Math.abs(Number(text) - value) < 1e-9) return `${Number(text)}%`;
  return value < 100 && Number(text) >= 100 ? ">99.9999%" : `${text}%`;
}

// An accuracy; that by the user's own function need not be a share of 1.
export function accuracyText(value, threshold) {
  return value >= 0 && value <= 1 ? percent(value, threshold) : number(value);
}

export function decibels(value, digits = 1) {
  return isNumber(value) ? `${fixed(value, digits)} dB` : NOTHING;
}

export function capital(words) {
  return words[0].toUpperCase() + words.slice(1);
}

export function count(value) {
  return isNumber(value) ? value.toLocaleString("en") : NOTHING;
}

export function bytes(value) {
  if (!isNumber(value)) return NOTHING;
  if (value < 1024) return `${value} bytes`;
  const units = ["KiB", "MiB", "GiB"];
  const place = Math.min(2, Math.floor(Math.log2(value) / 10) - 1);
  return `${(value / 1024 ** (place + 1)).toFixed(1)} ${units[place]}`;
}

export function shapeText(shape) {
  if (!Array.isArray(shape)) return "?";
  return shape.map((size) => size ?? "?").join("×") || "scalar";
}

export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function duration(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  if (seconds < 90) return `${seconds.toFixed(1)} s`;
  return seconds < 5400 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

// How a metric, or the accuracy, is written and drawn: `loss` is what a logarithmic axis shows, of what has such an axis.
export function metricOf(name, threshold) {
  const isAccuracy = name === ACCURACY;
  const isShare = isAccuracy ? threshold >= 0 && threshold <= 1 : SHARES.has(name);
  const inDecibels = (value) => decibels(value, 2);
  const inPercent = (value) => (isAccuracy ? accuracyText : percent)(value, threshold);
  return {
    name,
    label: LABELS.get(name) ?? name,
    isAccuracy,
    tickformat: isShare ? ".1%" : "",
    text: isShare ? inPercent : DECIBELS.has(name) ? inDecibels : number,
    lossText: isShare ? (loss) => percent(loss) : number,
    ...(ERRORS.has(name) && { loss: (value) => value, perfect: 0 }),
    ...(isShare && !isAccuracy && { loss: (value) => 1 - value, perfect: 1 }),
  };
}
