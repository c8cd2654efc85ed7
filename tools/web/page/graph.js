// The network's graph: folding, colours, selection. `drawing.js` puts it on the screen.

import { byId, h, show } from "./dom.js";
import { plural } from "./format.js";
import { READABLE, drawGraph, makeCanvas } from "./drawing.js";
import { forgetLayouts, laidOut } from "./layout.js";
import { SHADES, legendOf, shader } from "./shades.js";
import { ancestorsOf, openAtFirst, treeOf } from "./tree.js";
import { visibleGraph } from "./visible.js";
import { wrapped } from "./wrap.js";

const MOST = 500;
const AT_FIRST = [60, 40, 25, 16, 10, 0];
const NARROW_AT_FIRST = [16, 10, 0];
const WIDE = 720;

export function startGraph(store) {
  const state = {
    open: new Set(),
    shade: "precision",
    key: "",
    canvas: null,
    laid: null,
    revealed: null,
    first: null,
    newest: null,
  };
  const graph = { store, state };
  state.canvas = makeCanvas(byId("graph"), byId("minimap"), {
    pick: (name) => store.select(name),
    toggle: (id) => toggle(graph, id),
  });
  controls(graph);
  store.on("model", () => renew(graph));
  store.on("selection", () => {
    state.revealed = store.selected;
    requestAnimationFrame(() => refresh(graph, { reveal: true }));
  });
  store.on("search", () => state.canvas.mark(store));
  renew(graph);
}

function controls(graph) {
  const { state } = graph;
  show(
    byId("shade"),
    Object.entries(SHADES).map(([value, text]) => h("option", { value }, text)),
  );
  byId("shade").addEventListener("change", (event) => {
    state.shade = event.target.value;
    paint(graph);
  });
  byId("unfold").addEventListener("click", () => {
    state.open = openAtFirst(state.tree, MOST);
    refresh(graph, {});
  });
  byId("fold").addEventListener("click", () => {
    state.open = new Set();
    refresh(graph, {});
  });
  for (const [id, factor] of [
    ["zoom-in", 1.4],
    ["zoom-out", 1 / 1.4],
  ]) {
    byId(id).addEventListener("click", () => state.canvas.zoomBy(factor));
  }
  byId("zoom-fit").addEventListener("click", () => state.canvas.fit());
  window.addEventListener("beforeprint", () => printed(graph));
  window.addEventListener("afterprint", () => {
    paint(graph);
    state.canvas.toScreen();
  });
}

// Paper shows what was shown at first, whole.
function printed(graph) {
  if (!graph.state.first) return;
  paint(graph, graph.state.first);
  graph.state.canvas.toPaper();
}

// A new model: the same network keeps its folding and layout, another one starts afresh.
function renew(graph) {
  const { state, store } = graph;
  const { data, rows } = store.model;
  const key = JSON.stringify([Boolean(data.graph), rows.map((row) => row.name)]);
  const known = data.graph && rows.length > 0;
  byId("graph-empty").hidden = Boolean(known);
  byId("graph-box").hidden = !known;
  if (!known) return;
  const same = state.key === key;
  state.key = key;
  state.tree = treeOf(rows);
  state.ancestors = ancestorsOf(state.tree);
  if (same) {
    state.visible = visible(graph);
    paint(graph);
    return;
  }
  state.laid = null;
  state.revealed = null;
  begin(graph);
}

function isWide() {
  return byId("graph").clientWidth >= WIDE;
}

// As much unfolded as can be read at once. A selection meanwhile changes nothing of that; folding by hand ends it.
async function begin(graph) {
  const { state } = graph;
  for (const most of isWide() ? AT_FIRST : NARROW_AT_FIRST) {
    const open = openAtFirst(state.tree, most);
    state.open = open;
    refresh(graph, {});
    if (!(await settled(state)) || state.open !== open) return;
    if (state.canvas.scale(isWide()) >= READABLE) break;
  }
  state.first = { visible: state.visible, laid: state.laid };
  performance.mark("graph");
}

// Groups around a layer that was selected are open as long as it is selected.
function opened({ state }) {
  return new Set([...state.open, ...(state.ancestors.get(state.revealed) ?? [])]);
}

function visible(graph) {
  return visibleGraph(graph.state.tree, graph.store.model.data.graph, opened(graph));
}

function toggle(graph, id) {
  const { state, store } = graph;
  if (opened(graph).has(id)) {
    state.open = new Set([...state.open].filter((each) => each !== id));
    if ((state.ancestors.get(state.revealed) ?? []).includes(id)) store.select(null);
  } else {
    state.open = new Set([...state.open, id]);
  }
  refresh(graph, { anchor: id });
}

function refresh(graph, how) {
  graph.state.newest = redrawn(graph, how);
}

// What came of the newest request, those included that come in between.
async function settled(state) {
  for (;;) {
    const { newest } = state;
    const done = await newest;
    if (newest === state.newest) return done;
  }
}

// Draws what is unfolded; false where it could not, or where a newer request came in between.
async function redrawn(graph, { reveal = false, anchor = null }) {
  const { state, store } = graph;
  if (byId("graph-box").hidden) return false;
  const wanted = visible(graph);
  const ids = (of) => of.nodes.map((node) => node.id + node.frame).join("\n");
  if (state.laid && ids(wanted) === ids(state.visible)) {
    forgetLayouts();
    tellSize(graph);
    state.canvas.mark(store);
    if (reveal) state.canvas.reveal(store.row());
    return true;
  }
  state.canvas.size(wanted.nodes);
  byId("graph-state").textContent = "Laying out …";
  try {
    const inARow = await laidOut(wanted.nodes, wanted.edges, isWide());
    if (!inARow) return false;
    const laid = wrapped(inARow, wanted.nodes, state.canvas.room(), READABLE);
    state.visible = wanted;
    state.laid = laid;
    paint(graph);
    if (reveal) state.canvas.reveal(store.row());
    else if (anchor) state.canvas.keep(anchor);
    else state.canvas.begin(store.row());
    tellSize(graph);
    return true;
  } catch (error) {
    byId("graph-state").textContent = `This part could not be laid out (${error.message}); fold some groups.`;
    return false;
  }
}

function tellSize({ state, store }) {
  const nodes = state.visible.nodes.filter((node) => !node.frame);
  byId("graph-state").textContent =
    `${plural(nodes.length, "node")} drawn of ${plural(store.model.rows.length, "layer")}`;
}

function paint({ state, store }, { visible: nodes, laid } = state) {
  if (!laid) return;
  show(byId("graph-legend"), legendOf(state.shade, store.model));
  drawGraph(state.canvas, nodes, laid, shader(state.shade, store.model), store);
}
