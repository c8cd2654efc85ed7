// For each culprit the evidence and what to do, cheapest first; and what else was found abnormal.

import { byId, copyButton, h, offerSection, show } from "./dom.js";
import { count, number, plural } from "./format.js";

export function showAdvice(store) {
  const { culprits, data } = store.model;
  const advice = new Map((data.explanation?.advice ?? []).map((one) => [one.culprit, one]));
  const cards = culprits.map((row) => card(row, advice.get(row.name), store));
  offerSection("advice", cards.length > 0 || findings(data).length > 0);
  show(byId("advice-body"), [cards, others(data, store)]);
}

function card(row, advice, { model, select }) {
  return h(
    "article",
    { class: "advice" },
    h(
      "h3",
      {},
      h("button", { type: "button", class: "link", on: { click: () => select(row.name) } }, row.name),
      h("span", { class: "under" }, ` ${row.op_type}, drop ${model.metric.drop(row.drop)}`),
    ),
    h(
      "p",
      { class: "chips" },
      reasons(advice).map((reason) => h("span", { class: "chip" }, reason)),
    ),
    h("p", {}, advice?.evidence || plainEvidence(row)),
    advice?.remedies?.length
      ? h(
          "ol",
          { class: "remedies" },
          advice.remedies.map((remedy) => item(remedy, model.metric)),
        )
      : null,
  );
}

function reasons(advice) {
  const blame = advice?.blame === "both" ? "weights and activations" : advice?.blame ? `${advice.blame}s` : "";
  return [...(advice?.reasons ?? []), blame].filter(Boolean);
}

function plainEvidence(row) {
  const rounded = (row.rounds ?? []).map((one) => `${one.tensor} (${one.kind}, scale ${number(one.scale)})`);
  return rounded.length ? `INT8 rounds ${rounded.join(" and ")} here.` : "Nothing more is known of it.";
}

function item({ remedy, why, speed, commands, tried }, metric) {
  return h(
    "li",
    {},
    h(
      "p",
      {},
      h("strong", {}, remedy),
      why ? ` — ${why}` : "",
      speed ? h("span", { class: "under" }, ` Speed: ${speed}.`) : null,
    ),
    tried
      ? h(
          "p",
          { class: tried.meets ? "tried good" : "tried" },
          `Tried ${tried.what}: ${metric.text(tried.similarity)}, ${tried.meets ? "meets" : "misses"} the threshold.`,
        )
      : null,
    commands?.length
      ? h("details", {}, h("summary", {}, commands.map((one) => one.tool).join(", ")), commands.map(command))
      : null,
  );
}

function command({ tool, text }) {
  return h("div", { class: "command" }, h("span", { class: "tool" }, tool), h("code", {}, text), copyButton(text));
}

function findings(data) {
  return data.explanation?.findings ?? [];
}

function others(data, { model, select }) {
  const found = findings(data);
  if (!found.length) return null;
  const line = ({ layer, tensor, reason, words }) =>
    h(
      "li",
      {},
      h("span", { class: "chip" }, reason),
      " ",
      model.byName.has(layer)
        ? h("button", { type: "button", class: "link", on: { click: () => select(layer) } }, layer)
        : (layer ?? tensor ?? ""),
      words ? `: ${words}` : "",
    );
  const title = `${plural(found.length, "abnormal tensor")}: explains, and does not convict`;
  return h(
    "details",
    { class: "findings" },
    h("summary", {}, title),
    h("ul", {}, found.slice(0, 200).map(line)),
    found.length > 200 ? `${count(found.length - 200)} more stand in explanation.json.` : null,
  );
}
