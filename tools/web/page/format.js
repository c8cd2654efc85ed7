// Figures as a person reads them, and how each metric is drawn.

// The low precision in question, as texts name it.
export const LOW = document.documentElement.dataset.low;

export const NOTHING = "–";

const FRACTIONS = { cosine: "cosine similarity", top1: "top-1 agreement", agreement: "agreement with FP32" };
const ACCURACY = "accuracy";
const DECIBELS = new Set(["sqnr", "centered_sqnr"]);
const MOST_DECIMALS = 6;
const ERRORS = new Set(["mse", "l1", "kl", "max_abs", "max_rel"]);

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

// With so many decimals, and no minus before a zero.
export function fixed(value, digits) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

export function percent(value, digits = 4) {
  return isNumber(value) ? `${fixed(100 * value, digits)}%` : NOTHING;
}

// With the digits that matter: two of the distance to the nearer end, four decimals at most, and as many as tell on
// which side of the threshold it is. A figure that is exact has no zeros at its end.
export function similarityText(value, threshold) {
  if (!isNumber(value)) return NOTHING;
  const wanted = 1 - Math.floor(Math.log10(100 * Math.min(Math.abs(value), Math.abs(1 - value)) || 100));
  const isTold = (digits) =>
    !isNumber(threshold) || Number(fixed(100 * value, digits)) >= shown(threshold) === value >= threshold;
  let digits = Math.max(1, Math.min(4, wanted));
  while (digits < MOST_DECIMALS && !isTold(digits)) digits += 1;
  return `${shortened(100 * value, digits)}%`;
}

// Three digits, four decimals at most.
export function dropText(value) {
  if (!isNumber(value)) return NOTHING;
  const wanted = 2 - Math.floor(Math.log10(100 * Math.abs(value) || 100));
  return `${shortened(100 * value, Math.max(1, Math.min(4, wanted)))}%`;
}

function shown(share) {
  return Number((100 * share).toPrecision(12));
}

function shortened(value, digits) {
  const text = fixed(value, digits);
  return Math.abs(Number(text) - value) < 1e-9 ? String(Number(text)) : text;
}

// The same in a sentence that was written with four decimals throughout.
export function inShort(sentence, metric) {
  return sentence.replace(/(\d+\.\d{4})%/g, (_, figure) =>
    metric.fraction ? metric.text(figure / 100) : `${figure}%`,
  );
}

export function decibels(value, digits = 1) {
  return isNumber(value) ? `${fixed(value, digits)} dB` : NOTHING;
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

// How a metric is written and drawn: `loss` is what a logarithmic axis shows, null where the metric has no such axis.
export function metricOf(name, threshold) {
  if (Object.hasOwn(FRACTIONS, name)) {
    return {
      name,
      label: FRACTIONS[name],
      fraction: true,
      text: (value) => similarityText(value, threshold),
      drop: dropText,
      loss: (value) => 1 - value,
      value: (loss) => 1 - loss,
      perfect: 1,
    };
  }
  if (DECIBELS.has(name)) {
    const label = name === "sqnr" ? "SQNR" : "SQNR, mean taken out";
    return { name, label, text: (value) => decibels(value, 2), drop: number, loss: null };
  }
  if (ERRORS.has(name)) {
    return {
      name,
      label: name,
      text: number,
      drop: number,
      loss: (value) => value,
      value: (loss) => loss,
      perfect: 0,
    };
  }
  if (name === ACCURACY) {
    const text = (value) => similarityText(value, threshold);
    return { name, label: name, fraction: true, text, drop: dropText, loss: null };
  }
  return { name: name ?? "", label: name ?? "similarity", text: number, drop: number, loss: null };
}
