// The network's graph: folding, colours, selection. `drawing.js` puts it on the screen.

import { byId, h, show } from "./dom.js";
import { plural } from "./format.js";
import { drawGraph, makeCanvas } from "./drawing.js";
import { laidOut } from "./layout.js";
import { SHADES, legendOf, shader } from "./shades.js";
import { ancestorsOf, openAtFirst, treeOf } from "./tree.js";
import { visibleGraph } from "./visible.js";

const READABLE = 60;
const MOST = 500;

export function startGraph(store) {
  const state = { open: new Set(), shade: "precision", key: "", canvas: null, laid: null };
  const graph = { store, state };
  state.canvas = makeCanvas(byId("graph"), {
    pick: (name) => store.select(name),
    toggle: (id) => toggle(graph, id),
  });
  controls(graph);
  store.on("model", () => renew(graph));
  store.on("selection", () => requestAnimationFrame(() => refresh(graph, { reveal: true })));
  store.on("search", () => state.canvas.mark(store));
  renew(graph);
}

function controls(graph) {
  const { state, store } = graph;
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
  window.addEventListener("beforeprint", () => state.canvas.fit());
  byId("find-in-graph").addEventListener("click", () => findNext(store));
}

// The next layer, after the selected one, whose name holds what is searched for.
function findNext(store) {
  const found = store.model.rows.filter((row) => store.search !== "" && store.matches(row));
  if (!found.length) return;
  const here = store.row()?.index ?? -1;
  store.select((found.find((row) => row.index > here) ?? found[0]).name);
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
  state.open = openAtFirst(state.tree, READABLE);
  state.laid = null;
  refresh(graph, {});
}

// Groups around the selected layer are open as long as it is selected.
function opened({ state, store }) {
  return new Set([...state.open, ...(state.ancestors.get(store.selected) ?? [])]);
}

function visible(graph) {
  return visibleGraph(graph.state.tree, graph.store.model.data.graph, opened(graph));
}

function toggle(graph, id) {
  const { state, store } = graph;
  if (opened(graph).has(id)) {
    state.open.delete(id);
    if ((state.ancestors.get(store.selected) ?? []).includes(id)) store.select(null);
  } else {
    state.open.add(id);
  }
  refresh(graph, { anchor: id });
}

async function refresh(graph, { reveal = false, anchor = null }) {
  const { state, store } = graph;
  if (byId("graph-box").hidden) return;
  const wanted = visible(graph);
  const ids = (of) => of.nodes.map((node) => node.id + node.frame).join("\n");
  if (state.laid && ids(wanted) === ids(state.visible)) {
    state.canvas.mark(store);
    if (reveal) state.canvas.reveal(store.row());
    return;
  }
  state.canvas.size(wanted.nodes);
  byId("graph-state").textContent = "Laying out …";
  try {
    const laid = await laidOut(wanted.nodes, wanted.edges);
    if (!laid) return;
    state.visible = wanted;
    state.laid = laid;
    paint(graph);
    if (reveal) state.canvas.reveal(store.row());
    else if (anchor) state.canvas.keep(anchor);
    else state.canvas.begin(store.row());
    byId("graph-state").textContent =
      `${plural(wanted.nodes.filter((node) => !node.frame).length, "node")} drawn of ${plural(store.model.rows.length, "layer")}`;
    performance.mark("graph");
  } catch (error) {
    byId("graph-state").textContent = `This part could not be laid out (${error.message}); fold some groups.`;
  }
}

function paint({ state, store }) {
  if (!state.laid) return;
  show(byId("graph-legend"), legendOf(state.shade, store.model));
  drawGraph(state.canvas, state.visible, state.laid, shader(state.shade, store.model), store);
}
