// On paper: all plots, as wide as the page, drawn before it is printed and put back after; what to do is unfolded.

import { onPrint } from "./dom.js";
import { drawAll } from "./plot.js";

const PAPER = 690;

export function startPrint() {
  let kept = [];
  let opened = [];
  const before = () => {
    drawAll();
    kept = [...document.querySelectorAll("main .js-plotly-plot")]
      .filter((plot) => plot.offsetParent)
      .map((plot) => [plot, plot.layout.width]);
    opened = [...document.querySelectorAll("#advice details.action:not([open])")];
    for (const details of opened) details.open = true;
    for (const [plot] of kept) window.Plotly.relayout(plot, { width: PAPER });
  };
  onPrint(before, () => {
    for (const [plot, width] of kept) window.Plotly.relayout(plot, { width, autosize: width === undefined });
    for (const details of opened) details.open = false;
    kept = opened = [];
  });
}
