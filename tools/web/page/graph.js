// The network's graph: folding, colours, selection. `canvas.js` puts it on the screen.

import { READABLE, Canvas } from "./canvas.js";
import { byId, legendItem, onPrint, options, show } from "./dom.js";
import { measure } from "./drawing.js";
import { LOW, clamp, isNumber, plural } from "./format.js";
import { groupsAround, openAtFirst, treeOf, visibleGraph } from "./tree.js";
import { wrapped } from "./wrap.js";

const MOST = 500;
const AT_FIRST = [60, 40, 25, 16, 10, 0];
const NARROW_AT_FIRST = [16, 10, 0];
const WIDE = 720;

export function startGraph(store) {
  const graph = new Graph(store);
  graph.control();
  store.on("model", () => graph.renew());
  store.on("selection", () => {
    graph.revealed = store.selected;
    requestAnimationFrame(() => graph.refresh({ reveal: true }));
  });
  store.on("search", () => graph.canvas.mark(store));
  graph.renew();
}

function isWide() {
  return byId("graph").clientWidth >= WIDE;
}

function tell(words) {
  byId("graph-state").textContent = words;
}

class Graph {
  // The ids of the groups that are unfolded, and the layer that was selected.
  open = new Set();
  revealed = null;
  shade = "precision";
  // What is on the screen, and what was there at first: the groups, the ids of all nodes, the layout.
  drawn = null;
  first = null;
  // The newest request to draw, and what comes when none is left.
  wanted = null;
  working = null;
  key = "";

  constructor(store) {
    this.store = store;
    this.canvas = new Canvas(byId("graph"), byId("minimap"), {
      pick: (name) => store.select(name),
      toggle: (id) => this.toggle(id),
    });
  }

  control() {
    const { canvas } = this;
    show(byId("shade"), options(Object.entries(SHADES), this.shade));
    byId("shade").addEventListener("change", ({ target }) => {
      this.shade = target.value;
      this.paint();
    });
    const clicks = {
      unfold: () => this.unfold(openAtFirst(this.tree, MOST)),
      fold: () => this.unfold(new Set()),
      "zoom-in": () => canvas.zoomBy(1.4),
      "zoom-out": () => canvas.zoomBy(1 / 1.4),
      "zoom-fit": () => canvas.fit(),
    };
    for (const [id, click] of Object.entries(clicks)) byId(id).addEventListener("click", click);
    // Paper shows what was shown at first, whole.
    const printed = () => {
      if (!this.first) return;
      this.paint(this.first);
      canvas.toPaper();
    };
    onPrint(printed, () => {
      this.paint();
      canvas.toScreen();
    });
  }

  // A new model: the same network keeps its folding and layout, another one starts afresh.
  renew() {
    const { data, rows } = this.store.model;
    const isKnown = data.graph !== null && rows.length > 0;
    byId("graph-empty").hidden = isKnown;
    byId("graph-box").hidden = !isKnown;
    if (!isKnown) return;
    const key = JSON.stringify(rows.map((row) => row.name));
    const isSame = this.key === key;
    this.key = key;
    this.tree = treeOf(rows);
    if (isSame) return this.paint();
    this.drawn = null;
    this.first = null;
    this.revealed = null;
    this.begin();
  }

  // As much unfolded as can be read at once. A selection meanwhile changes nothing of that; folding by hand ends it.
  async begin() {
    for (const most of isWide() ? AT_FIRST : NARROW_AT_FIRST) {
      const open = openAtFirst(this.tree, most);
      await this.unfold(open);
      if (!this.drawn || this.open !== open) return;
      if (this.canvas.overview(isWide()).k >= READABLE) break;
    }
    this.first = this.drawn;
    performance.mark("graph");
  }

  unfold(open, how = {}) {
    this.open = open;
    return this.refresh(how);
  }

  // Groups around a layer that was selected are open as long as it is selected.
  get around() {
    return this.revealed === null ? [] : groupsAround(this.tree, this.revealed);
  }

  get opened() {
    return new Set([...this.open, ...this.around]);
  }

  visible(opened) {
    return visibleGraph(this.tree, this.store.model.data.graph, opened);
  }

  toggle(id) {
    const isOpen = this.opened.has(id);
    const open = new Set(this.open);
    if (isOpen) open.delete(id);
    else open.add(id);
    if (isOpen && this.around.includes(id)) this.store.select(null);
    this.unfold(open, { anchor: id });
  }

  // Of requests that come while one is laid out, only the newest counts. Returns when none is left.
  refresh(how) {
    this.wanted = how;
    this.working ??= this.work();
    return this.working;
  }

  async work() {
    while (this.wanted) {
      const how = this.wanted;
      this.wanted = null;
      try {
        await this.redraw(how);
      } catch (error) {
        tell(`This part could not be laid out (${error.message}); fold some groups.`);
      }
    }
    this.working = null;
  }

  // Draws what is unfolded, unless a newer request has come in between.
  async redraw({ reveal = false, anchor = null }) {
    if (byId("graph-box").hidden) return;
    const { store, canvas, opened } = this;
    const { nodes, edges } = this.visible(opened);
    const ids = nodes.map((node) => node.id + node.frame).join("\n");
    if (this.drawn?.ids === ids) canvas.mark(store);
    else {
      tell("Laying out …");
      nodes.forEach(measure);
      const laid = await laidOut(nodes, edges, isWide());
      if (this.wanted) return;
      this.drawn = { opened, ids, laid: wrapped(laid, nodes, canvas.room, READABLE) };
      this.paint();
      if (anchor) canvas.keep(anchor);
      else if (!reveal) canvas.begin(store.row());
    }
    if (reveal) canvas.reveal(store.row());
    const size = nodes.filter((node) => !node.frame).length;
    tell(`${plural(size, "node")} drawn of ${plural(store.model.rows.length, "layer")}`);
  }

  paint(drawn = this.drawn) {
    if (!drawn) return;
    const { shade, store, canvas } = this;
    show(byId("graph-legend"), legendOf(shade, store.model));
    canvas.draw(this.visible(drawn.opened), drawn.laid, shader(shade, store.model), store);
  }
}

// What the graph's nodes are coloured by, and the legend that says so.
const DECADES = 4;

export const SHADES = { precision: "Precision in the recipe", loss: "Loss", similarity: "Similarity" };

// From a node of the tree to the attributes that colour it, by one of SHADES.
export function shader(shade, { rows, metric }) {
  if (shade === "precision") return (node) => ({ class: `p-${precision(node)}` });
  const loss = metric.loss ?? ((decibels) => 10 ** (-decibels / 10));
  const value = shade === "loss" ? (row) => row.loss : (row) => isNumber(row.similarity) && loss(row.similarity);
  const figures = (some) =>
    some
      .filter((row) => row.quantizable)
      .map(value)
      .filter(isNumber);
  const top = figures(rows).reduce((one, other) => Math.max(one, other), 0);
  return (node) => {
    const found = figures(node.rows);
    if (!found.length) return { class: "p-follows" };
    return { class: "heated", style: { "--heat": `${Math.round(100 * heat(Math.max(...found), top))}%` } };
  };
}

// 0 to 1 over the four decades below the largest.
function heat(value, top) {
  if (value <= 0 || top <= 0) return 0;
  return clamp(1 + Math.log10(value / top) / DECADES, 0, 1);
}

function precision(node) {
  const found = new Set(node.rows.map((row) => (row.isLow ? "low" : row.precision)));
  found.delete("follows");
  if (found.size === 0) return "follows";
  if (found.size > 1) return "mixed";
  return found.has("low") ? "int8" : found.has("") ? "unknown" : "high";
}

export function legendOf(shade, { data }) {
  const swatch = (kind, words) => legendItem(`swatch ${kind}`, words);
  const culprit = swatch("ring", "culprit");
  if (shade === "precision") {
    return [
      swatch("p-int8", LOW),
      swatch("p-high", data.kept_in),
      swatch("p-mixed", "both, in a folded group"),
      swatch("p-follows", "follows its neighbours"),
      culprit,
    ];
  }
  const ramp = legendItem("ramp", "the largest, in four decades");
  ramp.prepend(shade === "loss" ? "no loss" : "no loss of similarity");
  return [ramp, swatch("p-follows", "no figure"), culprit];
}

// Asks the worker for a layout. The worker is made of text that stands in the page, so no request goes out.
let worker;

function startedWorker() {
  if (!worker) {
    const address = URL.createObjectURL(new Blob([byId("layout-worker").textContent], { type: "text/javascript" }));
    worker = new Worker(address);
  }
  return worker;
}

// Boxes by node and points by edge, in the order of `edges`, from left to right where `isWide`, else downwards. One layout
// at a time; the worker knows nodes by their place: names may be anything.
export function laidOut(nodes, edges, isWide) {
  const places = new Map(nodes.map((node, place) => [node.id, String(place)]));
  const machine = startedWorker();
  return new Promise((resolve, reject) => {
    machine.onmessage = ({ data }) => {
      if (data.error) reject(new Error(data.error));
      else resolve({ ...data, isWide, boxes: new Map(data.boxes.map((box, place) => [nodes[place].id, box])) });
    };
    machine.onerror = ({ message }) => reject(new Error(message));
    machine.postMessage({
      direction: isWide ? "LR" : "TB",
      nodes: nodes.map(({ parent, width, height }) => ({ parent: places.get(parent), width, height })),
      edges: edges.map(({ from, to }) => [places.get(from), places.get(to)]),
    });
  });
}
