// The page: what can be read at once is shown at once, the plots when they come near, the graph when nothing else waits.

import { showAdvice } from "./advice.js";
import { startCurve } from "./curve.js";
import { startDetails } from "./details.js";
import { afterPaint, byId, whenIdle } from "./dom.js";
import { startFront } from "./front.js";
import { startGraph } from "./graph.js";
import { showInputs } from "./inputs.js";
import { startLive, tellStatus } from "./live.js";
import { modelOf } from "./model.js";
import { startKeys } from "./panel.js";
import { showPictures } from "./pictures.js";
import { startPrint } from "./plot.js";
import { startRecipe } from "./recipe.js";
import { startSearch } from "./search.js";
import { makeStore } from "./store.js";
import { startTable } from "./table.js";
import { startTheme } from "./theme.js";
import { showVerdict } from "./verdict.js";

const data = JSON.parse(byId("data").textContent);
const store = makeStore(modelOf(data));
const nextButtons = document.querySelectorAll(".next-culprit");
store.selected = blamed()[0]?.name ?? null;

function start() {
  startTheme(store.repaint);
  for (const part of [showVerdict, showAdvice, showPictures, offerNext]) store.always(part, "model");
  for (const start of [startRecipe, startTable, startSearch, startDetails, startCurve, startFront]) start(store);
  store.always(showInputs, "model", "theme");
  startPrint();
  startKeys(store, { n: nextCulprit });
  for (const button of nextButtons) button.addEventListener("click", nextCulprit);
  performance.mark("usable");
  afterPaint(() => whenIdle(() => startGraph(store)));
  const { live } = document.body.dataset;
  if (live) startLive(live, (newer) => store.renew(modelOf(newer)));
  else tellStatus(data);
}

// The culprits; where there are none, or none yet, the suspects.
function blamed() {
  const { culprits, suspects } = store.model;
  return culprits.length ? culprits : suspects;
}

// The culprit after the selected layer, and after the last one the first.
function nextCulprit() {
  const rows = blamed();
  const here = store.row()?.index ?? -1;
  const next = rows.find((row) => row.index > here) ?? rows[0];
  if (next) store.select(next.name);
}

function offerNext() {
  for (const button of nextButtons) {
    button.hidden = blamed().length < 2;
    button.textContent = store.model.culprits.length ? "Next culprit" : "Next suspect";
  }
}

start();
