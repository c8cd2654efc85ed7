// The recipe in every form that another tool reads, each to be copied.

import { byId, copyButton, h, show } from "./dom.js";
import { LOW, bytes, isNumber, plural } from "./format.js";

const STRONG = "network.qdq.onnx";
const WEAK = "trtexec.flags";
const FORMS = [
  [
    STRONG,
    "Strong typing",
    "The network with Q/DQ pairs, none at the layers in high precision: for TensorRT 10, 11 and RTX.",
  ],
  [WEAK, "Weak typing", "Flags for trtexec: for TensorRT before 11, deprecated from 10.12 on."],
  ["polygraphy_postprocess.py", "Polygraphy", "A script for Polygraphy with weak typing."],
  ["modelopt_nodes_to_exclude.json", "ModelOpt", "nodes_to_exclude for modelopt.onnx.quantization."],
  ...["fp16", "bf16"].map((low) => [
    `network.${low}.onnx`,
    "Strong typing",
    "The network with Casts, the culprits in FP32: for TensorRT 10, 11 and RTX.",
  ]),
  ["plan.json", "Plan", "The precision of every layer, by name."],
  ["calibration.cache", "Scales", "The scales as TensorRT reads them."],
];

export function startRecipe(store) {
  const view = { chosen: null };
  const render = () => showRecipe(store, view);
  store.on("model", render);
  render();
}

function showRecipe({ model }, view) {
  const { data, report } = model;
  const files = new Map(Object.entries(data.recipe ?? {}));
  const known = FORMS.filter(([name]) => files.has(name));
  const forms = [
    ...known,
    ...[...files.keys()].filter((name) => !FORMS.some(([own]) => own === name)).map((name) => [name, name, ""]),
  ];
  byId("recipe-words").textContent = words(model);
  byId("recipe-empty").hidden = forms.length > 0;
  if (!forms.length) return show(byId("recipe-body"), []);
  if (!forms.some(([name]) => name === view.chosen)) view.chosen = firstForm(forms, report);
  const choose = (name) => {
    view.chosen = name;
    showRecipe({ model }, view);
    byId("recipe-body").querySelector('[aria-selected="true"]').focus();
  };
  show(byId("recipe-body"), [
    h(
      "div",
      {
        role: "tablist",
        "aria-label": "Forms of the recipe",
        on: { keydown: (event) => onKey(event, forms, view, choose) },
      },
      forms.map((form, place) => tab(form, place, view, choose)),
    ),
    content(
      forms.find(([name]) => name === view.chosen),
      files.get(view.chosen),
      data.commands?.[view.chosen],
    ),
  ]);
}

// The form that the user's TensorRT takes: that of strong typing from 10.12 on, and where no TensorRT is known.
function firstForm(forms, { engine, typing, versions }) {
  const [major, minor] = (versions?.tensorrt ?? "").split(".").map(Number);
  const isOld = engine === "tensorrt" && typing === "weak" && (major < 10 || (major === 10 && minor < 12));
  const wanted = isOld ? WEAK : STRONG;
  return (forms.find(([name]) => name === wanted) ?? forms[0])[0];
}

function words({ data: { status }, report: { answer, recipe, similarity }, keptIn }) {
  if (status !== "finished" && !answer) return "It is decided at the end of the run.";
  const high = recipe?.high ?? [];
  if (!recipe || !isNumber(similarity?.recipe)) return "There is no recipe yet.";
  if (!high.length) return `Every quantizable layer is in ${LOW}.`;
  const added = recipe.added?.length
    ? `, of which ${plural(recipe.added.length, "is no culprit", "are no culprits")}`
    : "";
  return `${plural(high.length, "layer")} in ${keptIn}${added}.`;
}

function tab([name, title], place, view, choose) {
  const chosen = name === view.chosen;
  return h(
    "button",
    {
      type: "button",
      role: "tab",
      id: `tab-${place}`,
      "aria-selected": String(chosen),
      "aria-controls": "recipe-panel",
      tabindex: chosen ? 0 : -1,
      on: { click: () => choose(name) },
    },
    title,
  );
}

function content([name, , about], file, command) {
  const text = typeof file === "string" ? file : null;
  return h(
    "div",
    { role: "tabpanel", id: "recipe-panel" },
    h(
      "p",
      { class: "bar-line" },
      h("code", {}, `recipe/${name}`),
      h("span", { class: "under" }, about),
      text === null ? null : copyButton(text, "Copy file"),
    ),
    command ? h("div", { class: "command" }, h("code", {}, command), copyButton(command, "Copy command")) : null,
    text === null ? h("p", {}, `A file of ${bytes(file?.bytes)} in the run folder.`) : h("pre", { tabindex: 0 }, text),
  );
}

function onKey(event, forms, view, choose) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const place = forms.findIndex(([name]) => name === view.chosen);
  choose(forms[(place + step + forms.length) % forms.length][0]);
}
