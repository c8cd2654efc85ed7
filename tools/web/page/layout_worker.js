// Lays a graph out in layers, in a worker, so that the page goes on meanwhile.

import * as dagre from "@dagrejs/dagre";

self.onmessage = ({ data: { id, nodes, edges, direction } }) => {
  try {
    self.postMessage({ id, ...laidOut(nodes, edges, direction) });
  } catch (error) {
    self.postMessage({ id, error: String(error) });
  }
};

function laidOut(nodes, edges, direction) {
  const graph = new dagre.graphlib.Graph({ compound: true });
  graph.setGraph({ rankdir: direction, nodesep: 24, edgesep: 14, ranksep: 30, marginx: 16, marginy: 16 });
  for (const { id, width, height } of nodes) graph.setNode(id, { width, height });
  for (const { id, parent } of nodes) if (parent) graph.setParent(id, parent);
  for (const { from, to } of edges) graph.setEdge(from, to, {});
  dagre.layout(graph);
  const boxOf = ({ id }) => {
    const { x, y, width, height } = graph.node(id);
    return [id, { x, y, width, height }];
  };
  return {
    boxes: nodes.map(boxOf),
    lines: edges.map(({ from, to }) => graph.edge(from, to).points),
    width: graph.graph().width,
    height: graph.graph().height,
  };
}
