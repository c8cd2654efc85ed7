// The whole network in small, in a corner of the graph: where the culprits are, and what is in sight.

import { svg } from "./dom.js";

const LARGEST = { width: 200, height: 130 };
const SPARE = 1.02;
const FLAG = 7;

// `go` takes the place in the graph that is clicked.
export function makeMinimap(element, go) {
  const map = { element, frame: svg("rect.sight"), scale: 1, extent: { width: 1, height: 1 } };
  const there = (event) => {
    const box = element.getBoundingClientRect();
    go({ x: (event.clientX - box.left) / map.scale, y: (event.clientY - box.top) / map.scale });
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
  const layers = nodes.filter(({ node }) => node);
  const marks = layers.map(({ id, node }) => svg("g", shade(node), rectangle("box", laid.boxes.get(id))));
  const flags = layers
    .filter(({ node }) => node.rows.some((row) => row.culprit))
    .map(({ id }) => rectangle("flag", laid.boxes.get(id), FLAG / map.scale));
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
