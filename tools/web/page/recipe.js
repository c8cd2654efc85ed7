// The recipe in every form that another tool reads, each to be copied.

import { byId, command, copyButton, h, show } from "./dom.js";
import { LOW, bytes, isNumber, plural } from "./format.js";

const STRONG = "network.qdq.onnx";
const WEAK = "trtexec.flags";
const CASTS = ["Strong typing", "The network with Casts, the culprits in FP32: for TensorRT 10, 11 and RTX."];
const WHOLE = ["FP16", "The whole network in FP16, instead of the recipe: for TensorRT 10, 11 and RTX."];
// By file what the form is called, and what it is.
const FORMS = {
  [STRONG]: [
    "Strong typing",
    "The network with Q/DQ pairs, none at the layers in high precision: for TensorRT 10, 11 and RTX.",
  ],
  [WEAK]: ["Weak typing", "Flags for trtexec: for TensorRT before 11, deprecated from 10.12 on."],
  "polygraphy_postprocess.py": ["Polygraphy", "A script for Polygraphy with weak typing."],
  "modelopt_nodes_to_exclude.json": ["ModelOpt", "nodes_to_exclude for modelopt.onnx.quantization."],
  "network.fp16.onnx": LOW === "FP16" ? CASTS : WHOLE,
  "network.bf16.onnx": CASTS,
  "plan.json": ["Plan", "The precision of every layer, by name."],
  "calibration.cache": ["Scales", "The scales as TensorRT reads them."],
};
const STEPS = { ArrowRight: 1, ArrowLeft: -1 };

export function startRecipe(store) {
  const view = { chosen: null };
  store.always(({ model }) => showRecipe(model, view), "model");
}

function showRecipe(model, view) {
  const { recipe: files, commands } = model.data;
  const known = Object.keys(FORMS).filter((name) => Object.hasOwn(files, name));
  const names = [...new Set([...known, ...Object.keys(files)])];
  byId("recipe-words").textContent = words(model);
  byId("recipe-empty").hidden = names.length > 0;
  if (!names.length) return show(byId("recipe-body"), []);
  if (!names.includes(view.chosen)) view.chosen = firstForm(names, model.report);
  const { chosen } = view;
  const choose = (name) => {
    view.chosen = name;
    showRecipe(model, view);
    byId("recipe-body").querySelector('[aria-selected="true"]').focus();
  };
  const keydown = (event) => {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    choose(names.at((names.indexOf(chosen) + step) % names.length));
  };
  const tab = (name, place) => {
    const about = { type: "button", role: "tab", id: `tab-${place}`, "aria-controls": "recipe-panel" };
    const state = { "aria-selected": String(name === chosen), tabindex: name === chosen ? 0 : -1 };
    return h("button", { ...about, ...state, on: { click: () => choose(name) } }, FORMS[name]?.[0] ?? name);
  };
  show(byId("recipe-body"), [
    h("div", { role: "tablist", "aria-label": "Forms of the recipe", on: { keydown } }, names.map(tab)),
    content(chosen, files[chosen], commands[chosen]),
  ]);
}

// The form that the user's TensorRT takes: that of strong typing from 10.12 on, and where no TensorRT is known.
function firstForm(names, { engine, typing, versions }) {
  const [major, minor] = (versions.tensorrt ?? "").split(".").map(Number);
  const isOld = engine === "tensorrt" && typing === "weak" && (major < 10 || (major === 10 && minor < 12));
  const wanted = isOld ? WEAK : STRONG;
  return names.includes(wanted) ? wanted : names[0];
}

function words({ data: { status, layers_high }, report: { answer, recipe, similarity } }) {
  const { high, added } = recipe;
  if (status !== "finished" && !answer) return "It is decided at the end of the run.";
  if (!isNumber(similarity.recipe)) return "There is no recipe yet.";
  if (!high.length) return `Every quantizable layer is in ${LOW}.`;
  const others = added.length ? `, of which ${plural(added.length, "is no culprit", "are no culprits")}` : "";
  return `${layers_high}${others}.`;
}

// `file` is a text, or the size of a file that is none.
function content(name, file, applied) {
  const isText = typeof file === "string";
  const copy = isText && copyButton(file, "Copy file");
  return h(
    "div",
    { role: "tabpanel", id: "recipe-panel" },
    h("p.bar-line", h("code", `recipe/${name}`), h("span.under", FORMS[name]?.[1] ?? ""), copy),
    applied && command(applied, { label: "Copy command" }),
    isText ? h("pre", { tabindex: 0 }, file) : h("p", `A file of ${bytes(file.bytes)} in the run folder.`),
  );
}
