// What to do: the culprits grouped by their cause, with each cause what was measured against it, what else is known to
// help, and the evidence on each culprit; then what else was found abnormal.

import { byId, copyButton, h, offerSection, show } from "./dom.js";
import { count, dropText, number, plural } from "./format.js";
import { layerLink, plainTable } from "./plain_table.js";

const NAMED = 40;

export function showAdvice(store) {
  const { data } = store.model;
  const causes = causesOf(store.model);
  offerSection("advice", causes.length > 0 || findings(data).length > 0);
  show(byId("advice-body"), [causes.map((cause) => card(cause, store)), others(data, store)]);
}

// Older explanations have no causes: then each culprit is a group of its own.
function causesOf({ culprits, data }) {
  if (data.explanation?.causes?.length) return data.explanation.causes;
  const advice = adviceOf(data);
  return culprits.map(({ name }) => {
    const known = advice.get(name);
    const remedies = known?.remedies ?? [];
    const [words] = known?.reasons ?? [];
    return {
      culprits: [name],
      words: words ?? "",
      measured: remedies.flatMap(({ tried }) => tried ?? []),
      remedies: remedies.filter(({ tried }) => !tried),
    };
  });
}

function adviceOf(data) {
  return new Map((data.explanation?.advice ?? []).map((one) => [one.culprit, one]));
}

function card({ culprits, words, measured, remedies }, store) {
  const { data, metric, culprits: all } = store.model;
  const advice = adviceOf(data);
  const commands = new Map(
    culprits.flatMap((name) =>
      (advice.get(name)?.remedies ?? []).flatMap(({ tried, commands: own }) => (tried ? [[tried.what, own]] : [])),
    ),
  );
  return h(
    "article",
    { class: "advice" },
    h(
      "h3",
      {},
      all.length > 1 ? `${count(culprits.length)} of ${plural(all.length, "culprit")}` : "The culprit",
      words && `: ${words}`,
    ),
    h(
      "p",
      { class: "chips" },
      culprits.slice(0, NAMED).map((name) => layerLink(store, name)),
      more(culprits),
    ),
    results(measured, metric, commands),
    remedies.length
      ? h(
          "details",
          {},
          h("summary", {}, `Not measured: ${remedies.map(({ remedy }) => remedy).join(", ")}`),
          h("ul", { class: "remedies" }, remedies.map(item)),
        )
      : null,
    h(
      "details",
      {},
      h("summary", {}, "Evidence"),
      culprits.slice(0, NAMED).map((name) => evidence(name, advice.get(name), store)),
    ),
  );
}

function more(names) {
  return names.length > NAMED ? h("span", { class: "under" }, `and ${count(names.length - NAMED)} more`) : null;
}

// What was measured, those that meet the threshold first, each with what applies it.
function results(measured, metric, commands) {
  if (!measured.length) return null;
  const line = (tried) => [
    tried.what,
    metric.text(tried.similarity),
    tried.high === undefined ? "" : count(tried.high),
    tried.high === undefined ? "" : dropText(tried.cost),
    h("span", { class: tried.meets ? "good" : "" }, tried.meets ? "meets" : "misses"),
  ];
  const own = measured.filter(({ what }) => commands.get(what)?.length);
  return [
    plainTable("", ["Measured", "gives", "layers high", "cost", "the threshold"], [1, 4], measured.map(line)),
    own.map(({ what }) => h("details", {}, h("summary", {}, `Commands: ${what}`), commands.get(what).map(command))),
  ];
}

function item({ remedy, why, speed, commands }) {
  return h(
    "li",
    {},
    h(
      "p",
      {},
      h("strong", {}, remedy),
      why ? `: ${why}` : "",
      speed ? h("span", { class: "under" }, ` Speed: ${speed}.`) : null,
    ),
    commands?.map(command),
  );
}

function command({ tool, text }) {
  return h("div", { class: "command" }, h("span", { class: "tool" }, tool), h("code", {}, text), copyButton(text));
}

function evidence(name, advice, store) {
  const { byName, metric } = store.model;
  const row = byName.get(name);
  const blame = advice?.blame === "both" ? "weights and activations" : advice?.blame ? `${advice.blame}s` : "";
  const reasons = [...(advice?.reasons ?? []), blame].filter(Boolean);
  return h(
    "section",
    { class: "evidence" },
    h("h4", {}, layerLink(store, name), row ? ` ${row.op_type}, drop ${metric.drop(row.drop)}` : ""),
    h(
      "p",
      { class: "chips" },
      reasons.map((reason) => h("span", { class: "chip" }, reason)),
    ),
    h("p", {}, advice?.evidence || plainEvidence(row)),
  );
}

function plainEvidence(row) {
  const rounded = (row?.rounds ?? []).map((one) => `${one.tensor} (${one.kind}, scale ${number(one.scale)})`);
  return rounded.length ? `INT8 rounds ${rounded.join(" and ")} here.` : "Nothing more is known of it.";
}

function findings(data) {
  return data.explanation?.findings ?? [];
}

function others(data, store) {
  const found = findings(data);
  if (!found.length) return null;
  const line = ({ layer, tensor, reason, words }) =>
    h(
      "li",
      {},
      h("span", { class: "chip" }, reason),
      " ",
      store.model.byName.has(layer) ? layerLink(store, layer) : (layer ?? tensor ?? ""),
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
