// The worst images: what FP32, full INT8 and the recipe find in each, side by side.

import { byId, h, legendItem, offerSection, show, svg } from "./dom.js";
import { LOW, PLANS, count, isNumber, percent } from "./format.js";

const LEGENDS = {
  marks: [
    ["kept", "found by FP32 too"],
    ["lost", "lost: found by FP32 alone"],
    ["invented", "invented: not found by FP32"],
  ],
  pixels: [["apart", "another class than FP32's; the most frequent class has no colour"]],
};
const LABELLED = 12;

export function showPictures({ model }) {
  const { task, note, pictures } = model.data.pictures ?? { pictures: [] };
  offerSection("pictures", pictures.length > 0);
  if (!pictures.length) return;
  byId("pictures-words").textContent =
    `The network's own input, brightness stretched; the images on which full ${LOW} loses most come first. ${note}.`;
  const isMarked = pictures.some(({ drawings }) => drawings.some(({ marks }) => marks.length));
  const kinds = isMarked ? LEGENDS.marks : task === "segment" ? LEGENDS.pixels : [];
  const legend = kinds.map(([kind, words]) => legendItem(`stroke ${kind}`, words));
  const figures = pictures.map((picture) => figure(picture, task === "text" ? "nothing is read" : ""));
  show(byId("pictures-legend"), legend);
  show(byId("pictures-list"), figures);
}

function figure(picture, nothing) {
  const panels = picture.drawings.map((drawing) => panel(picture, drawing, nothing));
  return h("figure.picture", h("figcaption", picture.name), h("div.panels", panels));
}

function panel({ name, width, height, image }, { plan, text, overlay, marks, ...found }, nothing) {
  const words = [text ? "" : nothing, plan === "fp32" ? ofReference(marks) : againstIt(found)];
  const under = words.filter(Boolean).join("; ");
  const whole = { width, height, preserveAspectRatio: "none" };
  const label = `${PLANS[plan]}, ${name}: ${[under, text].filter(Boolean).join("; ")}`;
  const unit = Math.max(width, height) / 320;
  return h(
    "div.panel",
    h("h3", PLANS[plan]),
    svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
      svg("image", { href: image, ...whole }),
      overlay ? svg("image", { href: overlay, ...whole }) : null,
      marks.map((mark) => drawn(mark, unit, marks.length <= LABELLED)),
    ),
    text ? h("p.read", text) : null,
    h("p.under", under),
  );
}

function drawn({ kind, text, outline, points }, unit, isLabelled) {
  const [x, y] = outline.reduce((top, corner) => (corner[1] < top[1] ? corner : top));
  return svg(
    "g.mark",
    { class: kind || "kept" },
    svg("title", kind ? `${text}, ${kind}` : text),
    svg("polygon", { points: outline.join(" ") }),
    points.map(([cx, cy]) => svg("circle", { cx, cy, r: 3 * unit })),
    isLabelled ? svg("text", { x, y: Math.max(y - 3 * unit, 11 * unit), "font-size": 12 * unit }, text) : null,
  );
}

function ofReference(marks) {
  return marks.length ? `${count(marks.length)} found` : "";
}

function againstIt({ agreement, counts }) {
  const found = Object.entries(counts).map(([kind, number]) => `${count(number)} ${kind}`);
  const share = isNumber(agreement) ? `agreement ${percent(agreement)}` : "";
  return [found.join(", "), share].filter(Boolean).join("; ");
}
