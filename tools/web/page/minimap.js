// The whole network in small, in a corner of the graph: where the culprits are, and what is in sight.

import { svg } from "./dom.js";
import { leaves } from "./shades.js";

const LARGEST = { width: 200, height: 130 };
const SPARE = 1.02;
const FLAG = 7;

export function makeMinimap(element, { go }) {
  const frame = svg("rect", { class: "sight" });
  const map = { element, frame, scale: 1, extent: { width: 1, height: 1 } };
  const there = (event) => {
    const box = element.getBoundingClientRect();
    go({ x: (event.clientX - box.left) / map.scale, y: (event.clientY - box.top) / map.scale });
  };
  element.addEventListener("pointerdown", (event) => {
    element.setPointerCapture(event.pointerId);
    there(event);
  });
  element.addEventListener("pointermove", (event) => {
    if (event.buttons) there(event);
  });
  return map;
}

export function drawMinimap(map, visible, laid, shade) {
  const { width, height } = laid;
  map.extent = { width, height };
  map.scale = Math.min(LARGEST.width / width, LARGEST.height / height);
  map.element.setAttribute("viewBox", `0 0 ${width} ${height}`);
  map.element.style.width = `${map.scale * width}px`;
  map.element.style.height = `${map.scale * height}px`;
  const nodes = visible.nodes.filter((node) => !node.frame && node.node);
  const marks = nodes.map((node) => markOf(laid.boxes.get(node.id), shade(node.node)));
  const culprits = nodes.filter((node) => leaves(node.node).some((row) => row.culprit));
  const flags = culprits.map((node) => flagOf(laid.boxes.get(node.id), FLAG / map.scale));
  map.element.replaceChildren(...marks, ...flags, map.frame);
}

function markOf({ x, y, width, height }, look) {
  const style = look.heat === undefined ? null : { "--heat": `${Math.round(100 * look.heat)}%` };
  const box = svg("rect", { x: x - width / 2, y: y - height / 2, width, height, class: "box" });
  return svg("g", { class: look.class, style }, box);
}

// Large enough to be seen.
function flagOf(box, least) {
  const [width, height] = [Math.max(box.width, least), Math.max(box.height, least)];
  return svg("rect", { x: box.x - width / 2, y: box.y - height / 2, width, height, class: "flag" });
}

// After each pan and zoom: the part in sight; no map where that is all.
export function showSight({ element, frame, extent }, { k, x, y }, room) {
  const isAll = k * extent.width <= SPARE * room.width && k * extent.height <= SPARE * room.height;
  element.toggleAttribute("hidden", isAll);
  const [left, top] = [Math.max(0, -x / k), Math.max(0, -y / k)];
  const [right, bottom] = [
    Math.min(extent.width, (room.width - x) / k),
    Math.min(extent.height, (room.height - y) / k),
  ];
  const sight = { x: left, y: top, width: Math.max(0, right - left), height: Math.max(0, bottom - top) };
  for (const [name, value] of Object.entries(sight)) frame.setAttribute(name, value);
}
