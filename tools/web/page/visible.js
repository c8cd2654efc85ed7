// What of the network is drawn when some groups are folded: nodes, the groups around them, and the edges between.

export function visibleGraph(root, graph, open) {
  const nodes = [];
  const shownAs = new Map();
  const walk = (node, parent) => {
    const frame = Boolean(node.children) && open.has(node.id);
    nodes.push({ id: node.id, node, parent, frame });
    if (frame) node.children.forEach((child) => walk(child, node.id));
    else for (const row of node.rows) shownAs.set(row.name, node.id);
  };
  root.children.forEach((child) => walk(child, null));
  const end = (kind) => (name, place) => ({ id: `${kind}${place}`, end: name, parent: null, frame: false });
  nodes.push(...graph.inputs.map(end("input")), ...graph.outputs.map(end("output")));
  return { nodes, edges: edgesOf(graph, shownAs) };
}

function edgesOf(graph, shownAs) {
  const makers = new Map(graph.inputs.map((name, place) => [name, `input${place}`]));
  for (const layer of graph.layers) {
    for (const name of layer.outputs) makers.set(name, shownAs.get(layer.name));
  }
  const edges = new Map();
  const join = (from, to, tensor) => {
    if (!from || from === to) return;
    const key = JSON.stringify([from, to]);
    if (!edges.has(key)) edges.set(key, { from, to, tensors: [] });
    edges.get(key).tensors.push(tensor);
  };
  for (const layer of graph.layers) {
    for (const name of layer.inputs) join(makers.get(name), shownAs.get(layer.name), name);
  }
  graph.outputs.forEach((name, place) => join(makers.get(name), `output${place}`, name));
  return [...edges.values()];
}
