// The canvas of the graph: panned and zoomed by d3, by the small map and by keys.

import { select } from "d3-selection";
import { zoom, zoomIdentity, zoomTransform } from "d3-zoom";
import { svg } from "./dom.js";
import { drawing } from "./drawing.js";
import { clamp } from "./format.js";

const CLOSEST = 2.5;
const LEAST = 0.3;
const HIGHEST = 640;
const PAPER = { width: 690, height: 340 };
const STEPS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
export const READABLE = 0.62;

// The page scrolls by wheel and by one finger; the graph zooms by Ctrl and wheel, and by two fingers.
function wanted(event) {
  if (event.type === "wheel") return event.ctrlKey || event.metaKey;
  return event.touches ? event.touches.length > 1 : !event.button;
}

// `pick` takes the name of a layer that is clicked, `toggle` the id of a group.
export class Canvas {
  world = svg("g");
  boxes = new Map();
  extent = { width: 1, height: 1 };
  height = 1;

  constructor(element, minimap, { pick, toggle }) {
    Object.assign(this, { element, pick, toggle });
    element.replaceChildren(this.world);
    this.map = makeMinimap(minimap, (x, y) => this.view.call(this.behaviour.translateTo, x, y));
    this.behaviour = zoom()
      .scaleExtent([0.02, CLOSEST])
      .filter(wanted)
      .extent(() => [
        [0, 0],
        [this.room.width, this.height],
      ])
      .on("zoom", ({ transform }) => {
        this.world.setAttribute("transform", transform);
        this.showSight();
      });
    this.view = select(element).call(this.behaviour).on("dblclick.zoom", null);
    element.addEventListener("click", (event) => this.act(event.target.closest("[data-id]"), event));
    element.addEventListener("keydown", (event) => this.onKey(event));
  }

  get transform() {
    return zoomTransform(this.element);
  }

  // What there is for the graph on the screen.
  get room() {
    return { width: this.element.clientWidth || 800, height: clamp(0.7 * window.innerHeight, 280, HIGHEST) };
  }

  show(transform) {
    this.view.call(this.behaviour.transform, transform);
  }

  zoomBy(factor) {
    this.view.call(this.behaviour.scaleBy, factor);
  }

  showSight() {
    showSight(this.map, this.transform, { width: this.room.width, height: this.height });
  }

  // All of it, in the middle; or its whole width, from the top.
  overview(isWhole) {
    const { width, height } = this.extent;
    const { room } = this;
    const scale = Math.min(1, room.width / width, isWhole ? room.height / height : 1);
    return zoomIdentity.translate((room.width - scale * width) / 2, isWhole ? 8 : 0).scale(scale);
  }

  // All of it, or where that would be a ribbon its whole width.
  fit() {
    const all = this.overview(true);
    this.show(all.k >= LEAST ? all : this.overview(false));
  }

  // At first: readable, at the selected layer or at the beginning.
  begin(row) {
    const all = this.overview(true);
    if (all.k >= READABLE) return this.show(all);
    const begun = this.overview(false);
    const box = this.boxOf(row);
    const y = box ? Math.min(begun.y, this.height / 2 - begun.k * box.y) : begun.y;
    this.show(zoomIdentity.translate(begun.x, y).scale(begun.k));
  }

  // A layer's box, or that of the folded group that it is in.
  boxOf(row) {
    return row && this.boxes.get(this.shownAs.get(row.name));
  }

  reveal(row) {
    const box = this.boxOf(row);
    if (!box) return;
    const { k } = this.transform;
    const [left, top] = this.transform.apply([box.x, box.y]);
    const isInSight = left > 60 && left < this.room.width - 60 && top > 40 && top < this.height - 40 && k > 0.4;
    if (isInSight) return;
    this.view.call(this.behaviour.scaleTo, Math.max(k, READABLE)).call(this.behaviour.translateTo, box.x, box.y);
  }

  // After folding: what was clicked stays where it was.
  keep(id) {
    const box = this.boxes.get(id);
    if (box) this.view.call(this.behaviour.translateTo, box.x, box.y - box.height / 2, this.clicked);
  }

  // Whole, as wide as the paper.
  toPaper() {
    const { width, height } = this.extent;
    this.world.removeAttribute("transform");
    this.element.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.element.style.height = `${Math.min(PAPER.height, (PAPER.width * height) / width)}px`;
  }

  toScreen() {
    this.world.setAttribute("transform", this.transform);
    this.element.removeAttribute("viewBox");
    this.element.style.height = `${this.height}px`;
  }

  // What of the network is `visible`, as it is `laid` out. The canvas is as high as that, if it may be.
  draw(visible, laid, shade, store) {
    const { activeElement } = document;
    const hadFocus = this.element.contains(activeElement) ? activeElement.dataset.id : null;
    const nodes = visible.nodes.filter((node) => !node.frame);
    this.boxes = laid.boxes;
    this.extent = { width: laid.width, height: laid.height };
    this.shownAs = visible.shownAs;
    this.world.replaceChildren(...drawing(visible, laid, shade, store.model.tensors));
    drawMinimap(this.map, nodes, laid, shade);
    const { k } = this.overview(true);
    this.height = clamp((k >= LEAST ? k : 1) * laid.height + 16, 120, this.room.height);
    this.element.style.height = `${this.height}px`;
    this.showSight();
    this.mark(store);
    if (hadFocus) this.elementOf(hadFocus)?.focus({ preventScroll: true });
  }

  get elements() {
    return [...this.world.querySelectorAll("[data-id]")];
  }

  elementOf(id) {
    return this.elements.find((element) => element.dataset.id === id);
  }

  // What is selected, what is searched for, and which node the Tab key stops at.
  mark(store) {
    const { elements } = this;
    for (const element of elements) {
      const name = element.dataset.layer;
      element.setAttribute("tabindex", "-1");
      if (name === undefined) continue;
      const isSelected = name === store.selected;
      element.classList.toggle("selected", isSelected);
      element.classList.toggle("missed", !store.matches({ name }));
      element.setAttribute("aria-pressed", String(isSelected));
    }
    const stop = elements.find((element) => element.classList.contains("selected")) ?? elements[0];
    stop?.setAttribute("tabindex", "0");
  }

  act(element, event) {
    if (!element) return;
    const { id, layer } = element.dataset;
    if (layer !== undefined) return this.pick(layer);
    const canvas = this.element.getBoundingClientRect();
    const box = element.getBoundingClientRect();
    this.clicked = [box.left + box.width / 2 - canvas.left, box.top - canvas.top];
    this.toggle(id);
    event.preventDefault();
  }

  onKey(event) {
    const element = event.target.closest("[data-id]");
    if (!element) return;
    const step = STEPS[event.key];
    if (event.key === "Enter" || event.key === " ") this.act(element, event);
    else if (step) this.elements[this.elements.indexOf(element) + step]?.focus();
    else return;
    event.preventDefault();
  }
}

// The whole network in small, in a corner of the graph: where the culprits are, and what is in sight.
const LARGEST = { width: 200, height: 130 };
const SPARE = 1.02;
const FLAG = 7;

// `go` takes x and y of the place in the graph that is clicked.
export function makeMinimap(element, go) {
  const map = { element, frame: svg("rect.sight"), scale: 1, extent: { width: 1, height: 1 } };
  const there = (event) => {
    const box = element.getBoundingClientRect();
    go((event.clientX - box.left) / map.scale, (event.clientY - box.top) / map.scale);
  };
  element.addEventListener("pointerdown", (event) => {
    element.setPointerCapture(event.pointerId);
    there(event);
  });
  element.addEventListener("pointermove", (event) => event.buttons && there(event));
  return map;
}

export function drawMinimap(map, nodes, laid, shade) {
  const { width, height } = laid;
  map.extent = { width, height };
  map.scale = Math.min(LARGEST.width / width, LARGEST.height / height);
  map.element.setAttribute("viewBox", `0 0 ${width} ${height}`);
  map.element.style.width = `${map.scale * width}px`;
  map.element.style.height = `${map.scale * height}px`;
  const layers = nodes.filter((node) => node.rows);
  const marks = layers.map((node) => svg("g", shade(node), rectangle("box", laid.boxes.get(node.id))));
  const flags = layers
    .filter((node) => node.rows.some((row) => row.culprit))
    .map((node) => rectangle("flag", laid.boxes.get(node.id), FLAG / map.scale));
  map.element.replaceChildren(...marks, ...flags, map.frame);
}

// At least so large as can be seen.
function rectangle(kind, box, least = 0) {
  const [width, height] = [Math.max(box.width, least), Math.max(box.height, least)];
  return svg(`rect.${kind}`, { x: box.x - width / 2, y: box.y - height / 2, width, height });
}

// After each pan and zoom: the part in sight; no map where that is all.
export function showSight({ element, frame, extent }, { k, x, y }, room) {
  const isAll = k * extent.width <= SPARE * room.width && k * extent.height <= SPARE * room.height;
  element.toggleAttribute("hidden", isAll);
  const [left, top] = [Math.max(0, -x / k), Math.max(0, -y / k)];
  const right = Math.min(extent.width, (room.width - x) / k);
  const bottom = Math.min(extent.height, (room.height - y) / k);
  const sight = { x: left, y: top, width: Math.max(0, right - left), height: Math.max(0, bottom - top) };
  for (const [name, value] of Object.entries(sight)) frame.setAttribute(name, value);
}
