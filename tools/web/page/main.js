// The page: what can be read at once is shown at once, the plots when they come near, the graph when nothing else waits.

import { showAdvice } from "./advice.js";
import { showAnswer } from "./answer.js";
import { startCurve } from "./curve.js";
import { startDetails } from "./details.js";
import { afterPaint, byId, whenIdle } from "./dom.js";
import { startFront } from "./front.js";
import { startGraph } from "./graph.js";
import { startInputs } from "./inputs.js";
import { startLive, tellStatus } from "./live.js";
import { modelOf } from "./model.js";
import { startKeys } from "./panel.js";
import { showPictures } from "./pictures.js";
import { startPrint } from "./print.js";
import { startRecipe } from "./recipe.js";
import { startSearch } from "./search.js";
import { makeStore } from "./store.js";
import { startTable } from "./table.js";
import { startTheme } from "./theme.js";
import { showVerdict } from "./verdict.js";

const data = JSON.parse(byId("data").textContent);
const store = makeStore(modelOf(data));
store.selected = blamed()[0]?.name ?? null;

function start() {
  startTheme(store.repaint);
  for (const part of [showVerdict, showAnswer, showAdvice, showPictures]) {
    part(store);
    store.on("model", part);
  }
  startRecipe(store);
  startPrint();
  startTable(store);
  startSearch(store);
  startKeys(store, { n: nextCulprit });
  startNextCulprit();
  for (const start of [startDetails, startCurve, startFront, startInputs]) start(store);
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

function startNextCulprit() {
  const buttons = [...document.querySelectorAll(".next-culprit")];
  const offer = () =>
    buttons.forEach((button) => {
      button.hidden = blamed().length < 2;
      button.textContent = store.model.culprits.length ? "Next culprit" : "Next suspect";
    });
  buttons.forEach((button) => button.addEventListener("click", nextCulprit));
  store.on("model", offer);
  offer();
}

start();
