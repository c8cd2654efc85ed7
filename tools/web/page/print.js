// On paper: plots as wide as the page, drawn before it is printed and put back after.

const PAPER = 690;

export function startPrint() {
  let kept = [];
  window.addEventListener("beforeprint", () => {
    kept = [...document.querySelectorAll("main .js-plotly-plot")]
      .filter((plot) => plot.offsetParent)
      .map((plot) => [plot, plot.layout.width]);
    for (const [plot] of kept) window.Plotly.relayout(plot, { width: PAPER });
  });
  window.addEventListener("afterprint", () => {
    for (const [plot, width] of kept) window.Plotly.relayout(plot, { width, autosize: width === undefined });
    kept = [];
  });
}
