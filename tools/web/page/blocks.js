// Repeated blocks: a stretch of siblings that comes again and again, found by the operators in it.

const FEW = 14;
const LONGEST = 24;
const SEVERAL = 4;

// The siblings with each repeated block in a group of its own; `group` makes one from an id, a label and its children.
// Siblings that are all one block, again and again, stay as they are: they may be the children of the group made here.
export function inBlocks(siblings, id, group) {
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
  return [...inBlocks(before, id, group), ...folded, ...inBlocks(after, id, group)];
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
