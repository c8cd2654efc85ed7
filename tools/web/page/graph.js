// The network's graph: folding, colours, selection. `canvas.js` puts it on the screen.

import { Canvas, READABLE } from "./canvas.js";
import { byId, h, onPrint, show } from "./dom.js";
import { measure } from "./drawing.js";
import { plural } from "./format.js";
import { forgetLayouts, laidOut } from "./layout.js";
import { SHADES, legendOf, shader } from "./shades.js";
import { groupsAround, openAtFirst, treeOf } from "./tree.js";
import { visibleGraph } from "./visible.js";
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
  // The newest request to draw.
  newest = null;
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
    const options = Object.entries(SHADES).map(([value, text]) => h("option", { value }, text));
    show(byId("shade"), options);
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
      this.unfold(open);
      if (!(await this.settled()) || this.open !== open) return;
      if (this.canvas.overview(isWide()).k >= READABLE) break;
    }
    this.first = this.drawn;
    performance.mark("graph");
  }

  unfold(open, how = {}) {
    this.open = open;
    this.refresh(how);
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

  refresh(how) {
    this.newest = this.redrawn(how);
  }

  // What came of the newest request, those included that come in between.
  async settled() {
    for (;;) {
      const { newest } = this;
      const done = await newest;
      if (newest === this.newest) return done;
    }
  }

  // Draws what is unfolded; false where it could not, or where a newer request came in between.
  async redrawn({ reveal = false, anchor = null }) {
    if (byId("graph-box").hidden) return false;
    const { store, canvas, opened } = this;
    const { nodes, edges } = this.visible(opened);
    const ids = nodes.map((node) => node.id + node.frame).join("\n");
    if (this.drawn?.ids === ids) {
      forgetLayouts();
      this.tellSize(nodes);
      canvas.mark(store);
      if (reveal) canvas.reveal(store.row());
      return true;
    }
    tell("Laying out …");
    nodes.forEach(measure);
    try {
      const laid = await laidOut(nodes, edges, isWide());
      if (!laid) return false;
      this.drawn = { opened, ids, laid: wrapped(laid, nodes, canvas.room, READABLE) };
      this.paint();
      if (reveal) canvas.reveal(store.row());
      else if (anchor) canvas.keep(anchor);
      else canvas.begin(store.row());
      this.tellSize(nodes);
      return true;
    } catch (error) {
      tell(`This part could not be laid out (${error.message}); fold some groups.`);
      return false;
    }
  }

  tellSize(nodes) {
    const size = nodes.filter((node) => !node.frame).length;
    tell(`${plural(size, "node")} drawn of ${plural(this.store.model.rows.length, "layer")}`);
  }

  paint(drawn = this.drawn) {
    if (!drawn) return;
    const { shade, store, canvas } = this;
    show(byId("graph-legend"), legendOf(shade, store.model));
    canvas.draw(this.visible(drawn.opened), drawn.laid, shader(shade, store.model), store);
  }
}
