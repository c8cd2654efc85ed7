// The worst images: what FP32, full INT8 and the recipe find in each, side by side.

import { byId, h, offerSection, show, svg } from "./dom.js";
import { LOW, count, isNumber, metricOf } from "./format.js";

const NAMES = { fp32: "FP32", int8: `Full ${LOW}`, recipe: "Recipe" };
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
  const { task, note, pictures = [] } = model.data.pictures ?? {};
  offerSection("pictures", pictures.length > 0);
  if (!pictures.length) return;
  byId("pictures-words").textContent =
    `The network's own input, brightness stretched; the images on which full ${LOW} loses most come first. ${note}.`;
  const isMarked = pictures.some(({ drawings }) => drawings.some(({ marks }) => marks.length));
  const kinds = isMarked ? LEGENDS.marks : task === "segment" ? LEGENDS.pixels : [];
  show(
    byId("pictures-legend"),
    kinds.map(([kind, words]) => h("li", {}, h("i", { class: `stroke ${kind}` }), words)),
  );
  show(
    byId("pictures-list"),
    pictures.map((picture) => figure(picture, task === "text" ? "nothing is read" : "")),
  );
}

function figure(picture, nothing) {
  const panels = picture.drawings.map((drawing) => panel(picture, drawing, nothing));
  return h("figure", { class: "picture" }, h("figcaption", {}, picture.name), h("div", { class: "panels" }, panels));
}

function panel(picture, drawing, nothing) {
  const words = [drawing.text ? "" : nothing, said(drawing)].filter(Boolean).join("; ");
  const size = { width: picture.width, height: picture.height, preserveAspectRatio: "none" };
  const label = `${NAMES[drawing.plan]}, ${picture.name}: ${[words, drawing.text].filter(Boolean).join("; ")}`;
  const unit = Math.max(picture.width, picture.height) / 320;
  return h(
    "div",
    { class: "panel" },
    h("h3", {}, NAMES[drawing.plan]),
    svg(
      "svg",
      { viewBox: `0 0 ${picture.width} ${picture.height}`, role: "img", "aria-label": label },
      svg("image", { href: picture.image, ...size }),
      drawing.overlay ? svg("image", { href: drawing.overlay, ...size }) : null,
      drawing.marks.map((mark) => drawn(mark, unit, drawing.marks.length <= LABELLED)),
    ),
    drawing.text ? h("p", { class: "read" }, drawing.text) : null,
    h("p", { class: "under" }, words),
  );
}

function drawn({ kind, text, outline, points }, unit, isLabelled) {
  const [x, y] = outline.reduce((top, corner) => (corner[1] < top[1] ? corner : top));
  return svg(
    "g",
    { class: `mark ${kind || "kept"}` },
    svg("title", {}, kind ? `${text}, ${kind}` : text),
    svg("polygon", { points: outline.join(" ") }),
    points.map(([cx, cy]) => svg("circle", { cx, cy, r: 3 * unit })),
    isLabelled ? svg("text", { x, y: Math.max(y - 3 * unit, 11 * unit), "font-size": 12 * unit }, text) : null,
  );
}

function said({ plan, agreement, counts, marks }) {
  if (plan === "fp32") return marks.length ? `${count(marks.length)} found` : "";
  const found = Object.entries(counts).map(([kind, number]) => `${count(number)} ${kind}`);
  const share = isNumber(agreement) ? `agreement ${metricOf("agreement").text(agreement)}` : "";
  return [found.join(", "), share].filter(Boolean).join("; ");
}
