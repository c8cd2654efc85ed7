// Asks the worker for a layout. The worker is made of text that stands in the page, so no request goes out.

import { byId } from "./dom.js";

let worker;
let asked = 0;

function startedWorker() {
  if (!worker) {
    const address = URL.createObjectURL(new Blob([byId("layout-worker").textContent], { type: "text/javascript" }));
    worker = new Worker(address);
  }
  return worker;
}

// Answers that are still to come are answers to what is no longer asked.
export function forgetLayouts() {
  asked += 1;
}

// Boxes by node and points by edge, in the order of `edges`, from left to right where `isWide`, else downwards; null
// where a newer layout was asked for meanwhile. The worker knows nodes by their place: names may be anything.
export function laidOut(nodes, edges, isWide) {
  const id = ++asked;
  const places = new Map(nodes.map((node, place) => [node.id, String(place)]));
  const request = {
    id,
    direction: isWide ? "LR" : "TB",
    nodes: nodes.map(({ parent, width, height }) => ({ parent: places.get(parent), width, height })),
    edges: edges.map(({ from, to }) => [places.get(from), places.get(to)]),
  };
  return new Promise((resolve, reject) => {
    const machine = startedWorker();
    const answer = ({ data }) => {
      if (data.id !== id) return;
      machine.removeEventListener("message", answer);
      if (id !== asked) resolve(null);
      else if (data.error) reject(new Error(data.error));
      else resolve({ ...data, isWide, boxes: new Map(data.boxes.map((box, place) => [nodes[place].id, box])) });
    };
    machine.addEventListener("message", answer);
    machine.addEventListener("error", (event) => reject(new Error(event.message)), { once: true });
    machine.postMessage(request);
  });
}
