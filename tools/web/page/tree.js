// Groups of layers: by the prefixes of their names where those name stretches of the network, by repeated blocks, else by
// stretches alone.

import { inBlocks } from "./blocks.js";

const SEPARATORS = /[/.]+/;
const MOST_CHILDREN = 20;
const STRETCHES = 12;

// A tree of { id, label, rows, children, layer }: `rows` are those of all layers inside; leaves have `layer`, a row.
export function treeOf(rows) {
  const entries = rows.map((row) => ({ row, path: row.name.split(SEPARATORS).filter(Boolean) }));
  return { id: "", label: "", rows, children: inParts(children(entries, 0, "g", ""), "g") };
}

// A part that is a number alone is named with the part before it: layer1.0.
function children(entries, depth, id, above) {
  const buckets = new Map();
  for (const entry of entries) {
    const part = entry.path.length > depth + 1 ? entry.path[depth] : null;
    if (!buckets.has(part)) buckets.set(part, []);
    buckets.get(part).push(entry);
  }
  if (buckets.size === 1 && !buckets.has(null)) return children(entries, depth + 1, id, "");
  const made = [];
  const leaf = (entry) => leafOf(entry, depth);
  for (const [part, bucket] of buckets) {
    if (part === null || bucket.length < 2 || !isStretch(bucket)) made.push(...bucket.map(leaf));
    else {
      const label = /^\d+$/.test(part) && above ? `${above}.${part}` : part;
      made.push(group(`${id}/${part}`, label, children(bucket, depth + 1, `${id}/${part}`, label)));
    }
  }
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
  const blocks = inBlocks(made, id, group);
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
