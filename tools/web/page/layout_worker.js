// Lays a graph out in layers, in a worker, so that the page goes on meanwhile.

import * as dagre from "@dagrejs/dagre";

self.onmessage = ({ data: { nodes, edges, direction } }) => {
  try {
    self.postMessage(laidOut(nodes, edges, direction));
  } catch (error) {
    self.postMessage({ error: String(error) });
  }
};

function laidOut(nodes, edges, direction) {
  const graph = new dagre.graphlib.Graph({ compound: true });
  graph.setGraph({ rankdir: direction, nodesep: 24, edgesep: 14, ranksep: 30, marginx: 16, marginy: 16 });
  nodes.forEach(({ width, height }, place) => graph.setNode(String(place), { width, height }));
  nodes.forEach(({ parent }, place) => parent && graph.setParent(String(place), parent));
  for (const [from, to] of edges) graph.setEdge(from, to, {});
  dagre.layout(graph);
  const boxOf = (_, place) => {
    const { x, y, width, height } = graph.node(String(place));
    return { x, y, width, height };
  };
  const { width, height } = graph.graph();
  return { boxes: nodes.map(boxOf), lines: edges.map(([from, to]) => graph.edge(from, to).points), width, height };
}
