// What of the network is drawn when some groups are folded: nodes, the groups around them, and the edges between.

export function visibleGraph(root, graph, open) {
  const nodes = [];
  const shownAs = new Map();
  const walk = (node, parent) => {
    if (node.children && open.has(node.id)) {
      nodes.push({ id: node.id, node, parent, frame: true });
      node.children.forEach((child) => walk(child, node.id));
    } else {
      nodes.push({ id: node.id, node, parent, frame: false });
      mark(node, node.id, shownAs);
    }
  };
  root.children.forEach((child) => walk(child, null));
  for (const [kind, names] of [
    ["input", graph?.inputs ?? []],
    ["output", graph?.outputs ?? []],
  ]) {
    names.forEach((name, place) => nodes.push({ id: `${kind}${place}`, end: name, kind, parent: null, frame: false }));
  }
  return { nodes, edges: edgesOf(graph, shownAs) };
}

function mark(node, id, shownAs) {
  if (node.layer) shownAs.set(node.layer.name, id);
  else node.children.forEach((child) => mark(child, id, shownAs));
}

function edgesOf(graph, shownAs) {
  const makers = new Map((graph?.inputs ?? []).map((name, place) => [name, `input${place}`]));
  for (const layer of graph?.layers ?? []) {
    for (const name of layer.outputs) makers.set(name, shownAs.get(layer.name));
  }
  const edges = new Map();
  const join = (from, to, tensor) => {
    if (!from || !to || from === to) return;
    const key = JSON.stringify([from, to]);
    if (!edges.has(key)) edges.set(key, { from, to, tensors: [] });
    edges.get(key).tensors.push(tensor);
  };
  for (const layer of graph?.layers ?? []) {
    for (const name of layer.inputs) join(makers.get(name), shownAs.get(layer.name), name);
  }
  (graph?.outputs ?? []).forEach((name, place) => join(makers.get(name), `output${place}`, name));
  return [...edges.values()];
}
