// The graph on the screen: SVG nodes that can be clicked, focused and read out, panned and zoomed by d3.

import { select } from "d3-selection";
import { curveMonotoneX, curveMonotoneY, line } from "d3-shape";
import { zoom, zoomIdentity } from "d3-zoom";
import { svg } from "./dom.js";
import { plural } from "./format.js";
import { drawMinimap, makeMinimap, showSight } from "./minimap.js";
import { leaves } from "./shades.js";
import { verdictWord } from "./model.js";

const LETTER = 6.9;
const WIDTH = { least: 84, most: 230, padding: 22 };
const HEIGHT = { layer: 40, end: 26, culprit: 18 };
const NAMED = 3;
const CLOSEST = 2.5;
const LEAST = 0.3;
const HIGHEST = 640;
const PAPER = { width: 690, height: 340 };
export const READABLE = 0.62;
const paths = [curveMonotoneY, curveMonotoneX].map((curve) =>
  line(
    (point) => point.x,
    (point) => point.y,
  ).curve(curve),
);

export function makeCanvas(element, minimap, { pick, toggle }) {
  const world = svg("g", {});
  element.replaceChildren(world);
  const canvas = {
    element,
    world,
    pick,
    toggle,
    boxes: new Map(),
    frames: new Map(),
    extent: { width: 1, height: 1 },
    height: 1,
  };
  canvas.map = makeMinimap(minimap, { go: (place) => show(movedTo(canvas, place)) });
  const behaviour = zoom()
    .scaleExtent([0.02, CLOSEST])
    .filter(wanted)
    .on("zoom", ({ transform }) => {
      world.setAttribute("transform", transform);
      showSight(canvas.map, transform, { width: room(canvas).width, height: canvas.height });
    });
  const view = select(element).call(behaviour).on("dblclick.zoom", null);
  const show = (transform) => view.call(behaviour.transform, transform);
  Object.assign(canvas, {
    zoomBy: (factor) => view.call(behaviour.scaleBy, factor),
    fit: () => show(fitted(canvas)),
    scale: (isWhole) => (isWhole ? whole(canvas) : across(canvas)).k,
    room: () => room(canvas),
    begin: (row) => show(beginning(canvas, row)),
    reveal: (row) => revealed(canvas, row, show),
    keep: (id) => kept(canvas, id, show),
    size: (nodes) => nodes.forEach(sized),
    mark: (store) => mark(canvas, store),
    toPaper: () => toPaper(canvas),
    toScreen: () => toScreen(canvas),
  });
  element.addEventListener("click", (event) => act(canvas, event.target.closest("[data-id]"), event));
  element.addEventListener("keydown", (event) => onKey(canvas, event));
  return canvas;
}

// The page scrolls by wheel and by one finger; the graph zooms by Ctrl and wheel, and by two fingers.
function wanted(event) {
  if (event.type === "wheel") return event.ctrlKey || event.metaKey;
  return event.touches ? event.touches.length > 1 : !event.button;
}

const transformOf = (canvas) => canvas.element.__zoom ?? zoomIdentity;

function room({ element }) {
  return { width: element.clientWidth || 800, height: Math.min(HIGHEST, Math.max(280, 0.7 * window.innerHeight)) };
}

// Whole, as wide as the paper.
function toPaper({ element, world, extent }) {
  world.removeAttribute("transform");
  element.setAttribute("viewBox", `0 0 ${extent.width} ${extent.height}`);
  element.style.height = `${Math.min(PAPER.height, (PAPER.width * extent.height) / extent.width)}px`;
}

function toScreen({ element, world, height }) {
  world.setAttribute("transform", transformOf({ element }));
  element.removeAttribute("viewBox");
  element.style.height = `${height}px`;
}

// The canvas is as high as what is drawn, if that is less than it may be.
function grow(canvas) {
  const { k } = whole(canvas);
  const scale = k >= LEAST ? k : 1;
  const most = room(canvas).height;
  canvas.height = Math.max(120, Math.min(most, scale * canvas.extent.height + 16));
  canvas.element.style.height = `${canvas.height}px`;
}

// All of it, in the middle.
function whole({ extent, element }) {
  const { width, height } = room({ element });
  const scale = Math.min(1, width / extent.width, height / extent.height);
  return zoomIdentity.translate((width - scale * extent.width) / 2, 8).scale(scale);
}

// All of it, or where that would be a ribbon its whole width, from the top.
function fitted(canvas) {
  const all = whole(canvas);
  return all.k >= LEAST ? all : across(canvas);
}

function across({ extent, element }) {
  const { width } = room({ element });
  const scale = Math.min(1, width / extent.width);
  return zoomIdentity.translate((width - scale * extent.width) / 2, 0).scale(scale);
}

// At first: readable, at the selected layer or at the beginning.
function beginning(canvas, row) {
  const all = whole(canvas);
  if (all.k >= READABLE) return all;
  const begun = across(canvas);
  const box = row && boxOf(canvas, row);
  const there = box && centred(canvas, box, begun.k);
  return there && there.y < 0 ? zoomIdentity.translate(begun.x, there.y).scale(begun.k) : begun;
}

function movedTo(canvas, place) {
  return centred(canvas, place, transformOf(canvas).k);
}

function centred(canvas, box, scale) {
  const { width } = room(canvas);
  const { height } = canvas;
  return zoomIdentity.translate(width / 2 - scale * box.x, height / 2 - scale * box.y).scale(scale);
}

// A layer's box, or that of the folded group that names it.
function boxOf(canvas, row) {
  return canvas.boxes.get(`l${row.index}`) ?? canvas.boxes.get(canvas.named?.get(row.name));
}

function revealed(canvas, row, show) {
  const box = row && boxOf(canvas, row);
  if (!box) return;
  const { k, x, y } = transformOf(canvas);
  const { width } = room(canvas);
  const { height } = canvas;
  const [left, top] = [x + k * box.x, y + k * box.y];
  const inSight = left > 60 && left < width - 60 && top > 40 && top < height - 40 && k > 0.4;
  if (!inSight) show(centred(canvas, box, Math.max(k, READABLE)));
}

// After folding: what was clicked stays where it was.
function kept(canvas, id, show) {
  const box = canvas.boxes.get(id);
  if (!box || !canvas.clicked) return;
  const { k } = transformOf(canvas);
  const top = box.y - box.height / 2;
  show(zoomIdentity.translate(canvas.clicked.x - k * box.x, canvas.clicked.y - k * top).scale(k));
}

function sized(node) {
  const words = wordsOf(node);
  const names = culpritsIn(node).map((row) => row.name);
  const longest = Math.max(...[...words, ...names.slice(0, NAMED)].map((text) => text.length));
  node.width = Math.min(WIDTH.most, Math.max(WIDTH.least, longest * LETTER + WIDTH.padding));
  const named = Math.min(NAMED, names.length) * HEIGHT.culprit;
  node.height = node.end !== undefined ? HEIGHT.end : HEIGHT.layer + (named && named + 4);
}

// The culprits that a folded group hides.
function culpritsIn({ node, frame }) {
  return frame || !node?.children ? [] : leaves(node).filter((row) => row.culprit);
}

function wordsOf(node) {
  if (node.end !== undefined) return [node.end];
  const { layer, label, size } = node.node;
  if (layer) return [layer.op_type, label];
  const culprits = leaves(node.node).filter((row) => row.culprit).length;
  return [`▸ ${label}`, plural(size, "layer") + (culprits ? `, ${plural(culprits, "culprit")}` : "")];
}

function shortened(text, width) {
  const most = Math.floor((width - WIDTH.padding + LETTER) / LETTER);
  return text.length <= most ? text : `…${text.slice(1 - most)}`;
}

export function drawGraph(canvas, visible, laid, shade, store) {
  const hadFocus = canvas.element.contains(document.activeElement) ? document.activeElement.dataset.id : null;
  canvas.boxes = laid.boxes;
  canvas.extent = { width: laid.width, height: laid.height };
  const frames = visible.nodes.filter((node) => node.frame);
  const nodes = visible.nodes.filter((node) => !node.frame);
  canvas.named = new Map(nodes.flatMap((node) => culpritsIn(node).map((row) => [row.name, node.id])));
  canvas.order = visible.nodes.flatMap((node) => [node.id, ...culpritsIn(node).slice(0, NAMED).map(hiddenId)]);
  canvas.world.replaceChildren(
    ...frames.flatMap((node) => laid.pieces.get(node.id).map(aroundElement)),
    ...visible.edges.map((edge, place) => edgeElement(edge, laid.lines[place], store.model.tensors, laid.isWide)),
    ...nodes.map((node) => nodeElement(node, laid.boxes.get(node.id), shade)),
    ...nodes.flatMap((node) => culpritElements(node, laid.boxes.get(node.id))),
    ...frames.map((node) => foldElement(node, laid.boxes.get(node.id))),
  );
  drawMinimap(canvas.map, visible, laid, shade);
  grow(canvas);
  showSight(canvas.map, transformOf(canvas), { width: room(canvas).width, height: canvas.height });
  mark(canvas, store);
  if (hadFocus) elementOf(canvas, hadFocus)?.focus({ preventScroll: true });
}

function nodeElement(node, box, shade) {
  const words = wordsOf(node);
  const { width, height } = box;
  const look = node.end !== undefined ? { class: "end" } : shade(node.node);
  const layer = node.node?.layer;
  const culprit = node.node && leaves(node.node).some((row) => row.culprit);
  const kind = layer ? "layer" : node.node ? "group" : "end";
  const lines = words.map((text, place) =>
    svg(
      "text",
      { x: width / 2, y: words.length === 1 ? height / 2 : 14 + 14 * place, class: place ? "second" : "first" },
      shortened(text, width),
    ),
  );
  return svg(
    "g",
    {
      class: `node ${kind} ${look.class}${culprit ? " culprit" : ""}`,
      transform: `translate(${box.x - width / 2},${box.y - height / 2})`,
      style: look.heat === undefined ? null : { "--heat": `${Math.round(100 * look.heat)}%` },
      ...(kind === "end"
        ? {}
        : {
            role: "button",
            tabindex: -1,
            "data-id": node.id,
            "data-layer": layer?.name,
            "aria-label": spoken(
              node,
              words.map((text) => shortened(text, width)),
            ),
          }),
    },
    svg("title", {}, layer ? layer.name : words.join(", ")),
    svg("rect", { width: width + 10, height: height + 10, x: -5, y: -5, rx: 10, class: "halo" }),
    svg("rect", { width, height, rx: kind === "end" ? height / 2 : 6, class: "box" }),
    kind === "group" ? svg("rect", { width: width - 6, height: height - 6, x: 3, y: 3, rx: 4, class: "inner" }) : null,
    lines.flatMap((line, place) => (place ? [" ", line] : [line])),
  );
}

const hiddenId = (row) => `c${row.index}`;

// In a folded group the names of its culprits, each to be clicked.
function culpritElements(node, box) {
  return culpritsIn(node)
    .slice(0, NAMED)
    .map((row, place) =>
      svg(
        "g",
        {
          class: "hidden-culprit",
          role: "button",
          tabindex: -1,
          transform: `translate(${box.x - box.width / 2 + 6},${box.y - box.height / 2 + HEIGHT.layer + place * HEIGHT.culprit})`,
          "data-id": hiddenId(row),
          "data-layer": row.name,
          "aria-label": spoken({ node: { layer: row } }, [shortened(row.name, box.width - 8)]),
        },
        svg("title", {}, row.name),
        svg("rect", { width: box.width - 12, height: HEIGHT.culprit - 2, rx: 4, class: "box" }),
        svg(
          "text",
          { x: box.width / 2 - 6, y: HEIGHT.culprit / 2 - 1, class: "second" },
          shortened(row.name, box.width - 8),
        ),
      ),
    );
}

// What is read out begins with what is seen.
function spoken(node, words) {
  const { layer } = node.node;
  if (!layer) return `${words.join(" ").replace("▸ ", "")}, unfold`;
  return [words.join(" "), layer.name, verdictWord(layer), layer.precision].filter(Boolean).join(", ");
}

function aroundElement({ x, y, width, height }) {
  return svg("rect", { x: x - width / 2, y: y - height / 2, width, height, rx: 8, class: "around" });
}

function foldElement(node, { x, y, width, height }) {
  const title = `▾ ${node.node.label}`;
  const place = `translate(${x - width / 2 + 8},${y - height / 2 - 10})`;
  return svg(
    "g",
    {
      class: "fold",
      transform: place,
      role: "button",
      tabindex: -1,
      "data-id": node.id,
      "aria-label": `${shortened(title, width).replace("▾ ", "")}, fold`,
    },
    svg("rect", { width: Math.min(width, title.length * LETTER + 16), height: 20, rx: 6, class: "box" }),
    svg("text", { x: 8, y: 10, class: "title" }, shortened(title, width)),
  );
}

// An edge that goes on in another row is several lines; the last one has the arrow.
function edgeElement({ tensors }, lines, known, isWide) {
  const about = tensors.map((name) =>
    [name, (known.get(name)?.shape ?? []).map((size) => size ?? "?").join("×")].filter(Boolean).join("  "),
  );
  return svg(
    "g",
    { class: "edge" },
    svg("title", {}, about.join("\n")),
    lines.map((points, place) =>
      svg("path", {
        d: paths[Number(isWide)](points),
        "marker-end": place === lines.length - 1 ? "url(#arrow)" : null,
      }),
    ),
  );
}

function elementOf(canvas, id) {
  return [...canvas.world.querySelectorAll("[data-id]")].find((element) => element.dataset.id === id);
}

// What is selected, what is searched for, and which node the Tab key stops at.
function mark(canvas, store) {
  const nodes = [...canvas.world.querySelectorAll("[data-id]")];
  let stop = nodes[0];
  for (const element of nodes) {
    const name = element.dataset.layer;
    const selected = name !== undefined && name === store.selected;
    element.classList.toggle("selected", selected);
    if (name !== undefined) {
      element.setAttribute("aria-pressed", String(selected));
      element.classList.toggle(
        "missed",
        store.search !== "" && !store.matches(store.model.byName.get(name) ?? { name }),
      );
    }
    element.setAttribute("tabindex", "-1");
    if (selected) stop = element;
  }
  stop?.setAttribute("tabindex", "0");
}

function act(canvas, element, event) {
  if (!element) return;
  const { id, layer } = element.dataset;
  if (layer !== undefined) return canvas.pick(layer);
  const box = canvas.element.getBoundingClientRect();
  const own = element.getBoundingClientRect();
  canvas.clicked = { x: own.left + own.width / 2 - box.left, y: own.top - box.top };
  canvas.toggle(id);
  event.preventDefault();
}

const STEPS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };

function onKey(canvas, event) {
  const element = event.target.closest("[data-id]");
  if (!element) return;
  if (event.key === "Enter" || event.key === " ") {
    act(canvas, element, event);
    event.preventDefault();
  } else if (event.key in STEPS) {
    const near = elementOf(canvas, nextOf(canvas, element.dataset.id, STEPS[event.key]));
    near?.focus();
    event.preventDefault();
  }
}

function nextOf({ order, world }, id, step) {
  const known = new Set([...world.querySelectorAll("[data-id]")].map((element) => element.dataset.id));
  const ids = order.filter((one) => known.has(one));
  return ids[Math.max(0, Math.min(ids.length - 1, ids.indexOf(id) + step))];
}
