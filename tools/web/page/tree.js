// Groups of layers: by the prefixes of their names where those name stretches of the network, by repeated blocks, else by
// stretches alone.

import { grouped } from "./format.js";

const SEPARATORS = /[/.]+/;
const MOST_CHILDREN = 20;
const STRETCHES = 12;
// Of repeated blocks: a stretch of siblings that comes again and again, found by the operators in it.
const FEW = 14;
const LONGEST = 24;
const SEVERAL = 4;

// A tree of { id, label, rows, children, layer }: `rows` are those of all layers inside; leaves have `layer`, a row.
export function treeOf(rows) {
  const entries = rows.map((row) => ({ row, path: row.name.split(SEPARATORS).filter(Boolean) }));
  return { id: "", label: "", rows, children: inParts(children(entries, 0, "g", ""), "g") };
}

// A part that is a number alone is named with the part before it: layer1.0.
function children(entries, depth, id, above) {
  const buckets = grouped(entries, ({ path }) => (path.length > depth + 1 ? path[depth] : null));
  if (buckets.size === 1 && !buckets.has(null)) return children(entries, depth + 1, id, "");
  const made = [...buckets].flatMap(([part, bucket]) => {
    if (part === null || bucket.length < 2 || !isStretch(bucket)) return bucket.map((entry) => leafOf(entry, depth));
    const label = /^\d+$/.test(part) && above ? `${above}.${part}` : part;
    return [group(`${id}/${part}`, label, children(bucket, depth + 1, `${id}/${part}`, label))];
  });
  return made.sort((one, other) => one.rows[0].index - other.rows[0].index);
}

// A prefix names a part of the network where its layers stand together, and not, say, every convolution.
function isStretch(bucket) {
  const places = bucket.map(({ row }) => row.index);
  return Math.max(...places) - Math.min(...places) + 1 <= 2 * bucket.length + 4;
}

// A layer is labelled by its name without the prefixes that the groups around it have.
function leafOf({ row }, depth) {
  const prefix = new RegExp(`^[/.]*(?:[^/.]+[/.]+){${depth}}`);
  return { id: `l${row.index}`, label: row.name.replace(prefix, "") || row.name, rows: [row], layer: row };
}

function group(id, label, made) {
  const inside = inParts(made, id);
  return { id, label, rows: inside.flatMap((child) => child.rows), children: inside };
}

function inParts(made, id) {
  const blocks = inBlocks(made, id);
  if (blocks.length <= MOST_CHILDREN) return blocks;
  const stretches = [];
  const length = Math.ceil(blocks.length / STRETCHES);
  for (let from = 0; from < blocks.length; from += length) {
    const some = blocks.slice(from, from + length);
    const last = Math.max(...some.at(-1).rows.map(({ index }) => index));
    stretches.push(group(`${id}#${from}`, `layers ${some[0].rows[0].index} to ${last}`, some));
  }
  return stretches;
}

// The ids of the groups around a layer, outermost first.
export function groupsAround(root, name) {
  const around = root.children.find(({ children, rows }) => children && rows.some((row) => row.name === name));
  return around ? [around.id, ...groupsAround(around, name)] : [];
}

// The groups that are open at first: as many of the outer ones as leave the drawing readable.
export function openAtFirst(root, most) {
  const open = new Set();
  let seen = root.children.length;
  let level = root.children;
  while (level.length) {
    const groups = level
      .filter((node) => node.children)
      .sort((one, other) => one.children.length - other.children.length);
    for (const node of groups) {
      if (seen + node.children.length > most) return open;
      seen += node.children.length;
      open.add(node.id);
    }
    level = groups.flatMap((node) => node.children);
  }
  return open;
}

// The siblings with each repeated block in a group of its own. Siblings that are all one block, again and again, stay as
// they are: they may be the children of the group made here.
function inBlocks(siblings, id) {
  if (siblings.length <= FEW) return siblings;
  const found = largestRepeat(siblings, siblings.map(signature));
  if (!found) return siblings;
  const { from, period, times } = found;
  if (period === 1 && times === siblings.length) return siblings;
  const blocks = Array.from({ length: times }, (_, turn) => {
    const parts = siblings.slice(from + turn * period, from + (turn + 1) * period);
    return period === 1 ? parts[0] : group(`${id}*${parts[0].rows[0].index}`, `block ${turn + 1} of ${times}`, parts);
  });
  const label = `${times} × ${kinds(siblings.slice(from, from + period))}`;
  const folded = times > SEVERAL ? [group(`${id}**${blocks[0].rows[0].index}`, label, blocks)] : blocks;
  const [before, after] = [siblings.slice(0, from), siblings.slice(from + times * period)];
  return [...inBlocks(before, id), ...folded, ...inBlocks(after, id)];
}

// What makes two siblings alike: the operators inside, in their order.
function signature(node) {
  node.signature ??= node.layer ? node.layer.op_type : `(${node.children.map(signature).join(" ")})`;
  return node.signature;
}

// The repeat that covers most layers, of the shortest period; single layers of one kind in a row are none.
function largestRepeat(siblings, signs) {
  let best = null;
  for (let period = 1; period <= Math.min(LONGEST, siblings.length / 2); period += 1) {
    for (let from = 0; from + 2 * period <= siblings.length; from += 1) {
      let end = from + period;
      while (end < siblings.length && signs[end] === signs[end - period]) end += 1;
      const times = Math.floor((end - from) / period);
      if (times < 2 || (period === 1 && (times <= SEVERAL || siblings[from].layer))) continue;
      const size = siblings.slice(from, from + times * period).reduce((sum, node) => sum + node.rows.length, 0);
      if (!best || size > best.size) best = { from, period, times, size };
      from = Math.max(from, end - period - 1);
    }
  }
  return best;
}

function kinds(parts) {
  const names = [
    ...new Set(parts.map((part) => (part.layer ? part.layer.op_type : part.label.replace(/[\d.]+$/, "")))),
  ];
  return names.length > 3 ? `${names.slice(0, 3).join(" ")} …` : names.join(" ");
}

// What of the network is drawn when some groups are folded: nodes, the groups around them, and the edges between; and by
// layer the node that it is in. A node is one of the tree, with its `parent` and whether it is a `frame`, or an `end`.
export function visibleGraph(root, graph, open) {
  const nodes = [];
  const shownAs = new Map();
  const walk = (node, parent) => {
    const frame = Boolean(node.children) && open.has(node.id);
    nodes.push({ ...node, parent, frame });
    if (frame) node.children.forEach((child) => walk(child, node.id));
    else for (const row of node.rows) shownAs.set(row.name, node.id);
  };
  root.children.forEach((child) => walk(child, null));
  const end = (kind) => (name, place) => ({ id: `${kind}${place}`, end: name, parent: null, frame: false });
  nodes.push(...graph.inputs.map(end("input")), ...graph.outputs.map(end("output")));
  return { nodes, edges: edgesOf(graph, shownAs), shownAs };
}

function edgesOf({ inputs, outputs, layers }, shownAs) {
  const makers = new Map(inputs.map((name, place) => [name, `input${place}`]));
  for (const layer of layers) {
    for (const name of layer.outputs) makers.set(name, shownAs.get(layer.name));
  }
  const read = (tensor, to) => ({ tensor, from: makers.get(tensor), to });
  const all = [
    ...layers.flatMap((layer) => layer.inputs.map((name) => read(name, shownAs.get(layer.name)))),
    ...outputs.map((name, place) => read(name, `output${place}`)),
  ];
  const between = all.filter(({ from, to }) => from && from !== to);
  const edges = grouped(between, ({ from, to }) => JSON.stringify([from, to]));
  return [...edges.values()].map((same) => ({ ...same[0], tensors: same.map(({ tensor }) => tensor) }));
}
