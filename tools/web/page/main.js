// The page: what can be read at once is drawn at once, the plots after the first paint, the graph when nothing else waits.

import { showAdvice } from "./advice.js";
import { showAnswer } from "./answer.js";
import { startBest } from "./best.js";
import { startCurve } from "./curve.js";
import { closeDetails, startDetails } from "./details.js";
import { byId, whenIdle } from "./dom.js";
import { startGraph } from "./graph.js";
import { startInputs } from "./inputs.js";
import { startLive, tellStatus } from "./live.js";
import { modelOf } from "./model.js";
import { startRecipe } from "./recipe.js";
import { makeStore } from "./store.js";
import { startTable } from "./table.js";
import { startTheme } from "./theme.js";
import { showVerdict } from "./verdict.js";

const data = JSON.parse(byId("data").textContent);
const store = makeStore(modelOf(data));
store.selected = store.model.culprits[0]?.name ?? data.recovery?.high?.[0]?.layer ?? null;

function start() {
  startTheme(store.repaint);
  for (const part of [showVerdict, showAnswer, showAdvice]) {
    part(store);
    store.on("model", part);
  }
  startRecipe(store);
  startTable(store);
  startKeys();
  performance.mark("usable");
  afterPaint(() => {
    startDetails(store);
    startCurve(store);
    startBest(store);
    startInputs(store);
    performance.mark("plots");
    whenIdle(() => startGraph(store));
  });
  const { live } = document.body.dataset;
  if (live) startLive(live, (newer) => store.renew(modelOf(newer)));
  else tellStatus(data);
}

// Plotly's script stands behind this one; by the time of a second frame it has run.
function afterPaint(work) {
  const ready = () => requestAnimationFrame(() => setTimeout(work));
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", ready);
  else ready();
}

function startKeys() {
  const search = byId("search");
  search.addEventListener("input", () => store.find(search.value.trim()));
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") byId("find-in-graph").click();
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, select, textarea");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "Escape") {
      clear(search);
    }
  });
}

// What was searched for first, the selection then.
function clear(search) {
  if (search.value) {
    search.value = "";
    store.find("");
  } else {
    store.select(null);
    closeDetails();
  }
}

start();
