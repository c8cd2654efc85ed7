// The elements of the graph: SVG nodes that can be clicked, focused and read out.

import { curveMonotoneX, curveMonotoneY, line } from "d3-shape";
import { svg } from "./dom.js";
import { clamp, plural, shapeText } from "./format.js";
import { verdictWord } from "./model.js";

const LETTER = 6.9;
const WIDTH = { least: 84, most: 230, padding: 22 };
const HEIGHT = { layer: 40, end: 26, culprit: 18 };
// The number of culprits that a folded group names.
const NAMED = 3;

// The culprits that a folded group hides.
function culpritsIn({ rows, children, frame }) {
  return frame || !children ? [] : rows.filter((row) => row.culprit);
}

// Gives a node that is to be laid out its width and height.
export function measure(node) {
  const culprits = culpritsIn(node).slice(0, NAMED);
  const texts = [...wordsOf(node), ...culprits.map((row) => row.name)];
  const longest = Math.max(...texts.map((text) => text.length));
  node.width = clamp(longest * LETTER + WIDTH.padding, WIDTH.least, WIDTH.most);
  node.height = node.rows ? HEIGHT.layer : HEIGHT.end;
  if (culprits.length) node.height += culprits.length * HEIGHT.culprit + 4;
}

function wordsOf({ end, layer, label, rows }) {
  if (!rows) return [end];
  if (layer) return [layer.op_type, label];
  const culprits = rows.filter((row) => row.culprit).length;
  return [`▸ ${label}`, plural(rows.length, "layer") + (culprits ? `, ${plural(culprits, "culprit")}` : "")];
}

function shortened(text, width) {
  const most = Math.floor((width - WIDTH.padding + LETTER) / LETTER);
  return text.length <= most ? text : `…${text.slice(1 - most)}`;
}

// All elements: what can be clicked lies over the rest, in the order of the network.
export function drawing(visible, laid, shade, tensors) {
  const frames = visible.nodes.filter((node) => node.frame);
  return [
    ...frames.flatMap(({ id }) => laid.pieces.get(id).map((box) => rectangle("around", box, 8))),
    ...visible.edges.map((edge, place) => edgeElement(edge, laid.lines[place], tensors, laid.isWide)),
    ...visible.nodes.flatMap((node) => {
      const box = laid.boxes.get(node.id);
      return node.frame ? foldElement(node, box) : [nodeElement(node, box, shade), ...culpritElements(node, box)];
    }),
  ];
}

function rectangle(kind, { x, y, width, height }, rx) {
  return svg(`rect.${kind}`, { x: x - width / 2, y: y - height / 2, width, height, rx });
}

// What a click or the Enter key selects, unfolds or folds.
function button(id, [x, y], attributes, ...children) {
  const place = { transform: `translate(${x},${y})`, role: "button", tabindex: -1 };
  return svg("g", { ...place, "data-id": id, ...attributes }, children);
}

function nodeElement(node, { x, y, width, height }, shade) {
  const { layer, children, rows } = node;
  const full = wordsOf(node);
  const words = full.map((text) => shortened(text, width));
  const corner = [x - width / 2, y - height / 2];
  const text = (word, place) => {
    const attributes = { x: width / 2, y: words.length === 1 ? height / 2 : 14 + 14 * place };
    return [place > 0 && " ", svg(place ? "text.second" : "text.first", attributes, word)];
  };
  const content = [
    svg("title", layer ? layer.name : full.join(", ")),
    svg("rect.halo", { width: width + 10, height: height + 10, x: -5, y: -5, rx: 10 }),
    svg("rect.box", { width, height, rx: rows ? 6 : height / 2 }),
    children && svg("rect.inner", { width: width - 6, height: height - 6, x: 3, y: 3, rx: 4 }),
    words.map(text),
  ];
  if (!rows) return svg("g.node.end", { transform: `translate(${corner})` }, content);
  const { class: look, style } = shade(node);
  const isCulprit = rows.some((row) => row.culprit);
  const attributes = {
    class: `node ${layer ? "layer" : "group"} ${look}${isCulprit ? " culprit" : ""}`,
    style,
    "data-layer": layer?.name,
    "aria-label": layer ? spoken(words.join(" "), layer) : `${words.join(" ").replace("▸ ", "")}, unfold`,
  };
  return button(node.id, corner, attributes, content);
}

// In a folded group the names of its culprits, each to be clicked.
function culpritElements(node, { x, y, width, height }) {
  const [left, top] = [x - width / 2 + 6, y - height / 2 + HEIGHT.layer];
  const element = (row, place) => {
    const { name } = row;
    const word = shortened(name, width - 8);
    return button(
      `c${row.index}`,
      [left, top + place * HEIGHT.culprit],
      { class: "hidden-culprit", "data-layer": name, "aria-label": spoken(word, row) },
      svg("title", name),
      svg("rect.box", { width: width - 12, height: HEIGHT.culprit - 2, rx: 4 }),
      svg("text.second", { x: width / 2 - 6, y: HEIGHT.culprit / 2 - 1 }, word),
    );
  };
  return culpritsIn(node).slice(0, NAMED).map(element);
}

// What is read out begins with what is seen.
function spoken(seen, layer) {
  return [seen, layer.name, verdictWord(layer), layer.precision].filter(Boolean).join(", ");
}

function foldElement({ id, label }, { x, y, width, height }) {
  const title = `▾ ${label}`;
  const word = shortened(title, width);
  return button(
    id,
    [x - width / 2 + 8, y - height / 2 - 10],
    { class: "fold", "aria-label": `${word.replace("▾ ", "")}, fold` },
    svg("rect.box", { width: Math.min(width, title.length * LETTER + 16), height: 20, rx: 6 }),
    svg("text.title", { x: 8, y: 10 }, word),
  );
}

// An edge that goes on in another row is several lines; the last one has the arrow.
function edgeElement({ tensors }, lines, known, isWide) {
  const about = tensors.map((name) => {
    const { shape } = known.get(name);
    return shape?.length ? `${name}  ${shapeText(shape)}` : name;
  });
  const path = line()
    .x((point) => point.x)
    .y((point) => point.y)
    .curve(isWide ? curveMonotoneX : curveMonotoneY);
  const arrow = (place) => place === lines.length - 1 && "url(#arrow)";
  const parts = lines.map((points, place) => svg("path", { d: path(points), "marker-end": arrow(place) }));
  return svg("g.edge", svg("title", about.join("\n")), parts);
}
