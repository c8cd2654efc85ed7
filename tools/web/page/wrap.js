// A graph that is laid out from left to right, wrapped like a text: what leaves a row at its end goes on in the next one.

const GAP = 34;
const MOST_ROWS = 12;
const AROUND = { top: 20, bottom: 10 };

// `laid` with every node in its row. An edge is then one or several lines, and the frame of a group one or several
// pieces. Rows are as long as makes the whole largest in the `room`, or what fits across it at the scale `readable`.
export function wrapped(laid, nodes, room, readable) {
  const leaves = nodes.filter((node) => !node.frame).map((node) => laid.boxes.get(node.id));
  const columns = columnsOf(leaves);
  const cuts = laid.isWide ? cutsFor(laid, columns, room, readable) : [];
  const parted = partsOf(laid, nodes, cuts);
  const split = laid.lines.map((points) => splitLine(points, cuts));
  const rows = rowsOf(parted, split, [0, ...cuts, laid.width]);
  const boxes = new Map();
  const pieces = new Map();
  for (const node of nodes) {
    const parts = parted.get(node.id).map(({ row, box }) => ({ ...box, ...moved(box, rows[row]) }));
    boxes.set(node.id, parts[0]);
    pieces.set(node.id, parts);
  }
  const lines = split.map((parts) => parts.map((part) => part.map((point) => moved(point, rows[part.row]))));
  const last = rows.at(-1);
  const width = Math.max(...rows.map((row) => row.end - row.start));
  return { boxes, pieces, lines, width, height: last.top + last.height, isWide: laid.isWide };
}

// The nodes that stand over each other, as intervals from left to right.
function columnsOf(boxes) {
  const spans = boxes.map(({ x, width }) => [x - width / 2, x + width / 2]).sort(([one], [other]) => one - other);
  const columns = [];
  for (const [left, right] of spans) {
    const last = columns.at(-1);
    if (last && left < last[1]) last[1] = Math.max(last[1], right);
    else columns.push([left, right]);
  }
  return columns;
}

function cutsFor(laid, columns, room, readable) {
  let best = { scale: 0, cuts: [] };
  for (let count = 1; count <= MOST_ROWS; count += 1) {
    const length = laid.width / count;
    const scale = Math.min(1, room.width / (length + GAP), room.height / (count * (laid.height + GAP)));
    if (scale > best.scale + 0.01) best = { scale, cuts: inRows(columns, length, count) };
  }
  return best.scale >= readable ? best.cuts : cutsAt(columns, room.width / readable - GAP);
}

// The most rows, which need not be full.
function inRows(columns, length, count) {
  const cuts = cutsAt(columns, length);
  return cuts.length < count ? cuts : inRows(columns, 1.06 * length, count);
}

// Between columns, before each that would make its row longer than wanted.
function cutsAt(columns, length) {
  const cuts = [];
  let start = columns[0]?.[0] ?? 0;
  columns.forEach(([left, right], place) => {
    if (place === 0 || right - start <= length * 1.02) return;
    cuts.push((columns[place - 1][1] + left) / 2);
    start = left;
  });
  return cuts;
}

// By node its parts in the rows. Of a group the part in a row is as high as what of it stands there.
function partsOf(laid, nodes, cuts) {
  const parted = new Map();
  const inside = new Map();
  for (const node of [...nodes].reverse()) {
    const own = piecesOf(laid.boxes.get(node.id), cuts);
    const parts = node.frame ? own.map((part) => lowered(part, inside.get(node.id) ?? [])).filter(Boolean) : own;
    parted.set(node.id, parts);
    if (node.parent) inside.set(node.parent, [...(inside.get(node.parent) ?? []), ...parts]);
  }
  return parted;
}

function lowered({ row, box }, inside) {
  const here = inside.filter((part) => part.row === row).map((part) => part.box);
  if (!here.length) return null;
  const top = Math.min(...here.map(({ y, height }) => y - height / 2)) - AROUND.top;
  const bottom = Math.max(...here.map(({ y, height }) => y + height / 2)) + AROUND.bottom;
  return { row, box: { ...box, y: (top + bottom) / 2, height: bottom - top } };
}

// Each row from its `start` to its `end` in what was laid out, the least y there, and its place in what is wrapped.
function rowsOf(parted, split, bounds) {
  const boxes = [...parted.values()].flat().map(({ row, box: { y, height } }) => [row, y - height / 2, y + height / 2]);
  const spans = [...boxes, ...split.flat().flatMap((part) => part.map(({ y }) => [part.row, y, y]))];
  let top = GAP / 2;
  return bounds.slice(1).map((end, row) => {
    const here = spans.filter(([at]) => at === row);
    const low = here.length ? Math.min(...here.map(([, least]) => least)) : 0;
    const high = here.length ? Math.max(...here.map(([, , most]) => most)) : 0;
    const made = { start: bounds[row], end, low, top, height: high - low + GAP / 2 };
    top += high - low + GAP;
    return made;
  });
}

function piecesOf(box, cuts) {
  const [left, right] = [box.x - box.width / 2, box.x + box.width / 2];
  const edges = [left, ...cuts.filter((cut) => left < cut && cut < right), right];
  return edges.slice(1).map((end, place) => {
    const width = end - edges[place];
    return { row: rowAt((edges[place] + end) / 2, cuts), box: { ...box, x: edges[place] + width / 2, width } };
  });
}

function rowAt(x, cuts) {
  return cuts.filter((cut) => cut < x).length;
}

// The parts of a line in each row that it goes through, each an array of points with the number of its `row`.
function splitLine(points, cuts) {
  const parts = [];
  points.slice(1).forEach((point, place) => {
    let from = points[place];
    const slope = (point.y - from.y) / (point.x - from.x);
    const crossed = cuts.filter((cut) => cut > Math.min(from.x, point.x) && cut < Math.max(from.x, point.x));
    if (point.x < from.x) crossed.reverse();
    for (const end of [...crossed.map((x) => ({ x, y: point.y + (x - point.x) * slope })), point]) {
      const row = rowAt((from.x + end.x) / 2, cuts);
      if (parts.at(-1)?.row !== row) parts.push(Object.assign([from], { row }));
      parts.at(-1).push(end);
      from = end;
    }
  });
  return parts;
}

function moved({ x, y }, row) {
  return { x: x - row.start, y: y - row.low + row.top };
}
