// Plotly with the page's colours, and with strangers' text made harmless: Plotly reads <b>, <a> and entities in labels.

import { colour } from "./theme.js";

export const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };

export function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

export function axis(title, settings = {}) {
  return {
    gridcolor: colour("grid"),
    linecolor: colour("line"),
    zerolinecolor: colour("line"),
    tickfont: { size: 12 },
    title: { text: plain(title), font: { size: 12 }, standoff: 10 },
    ...settings,
  };
}

export function layout(settings) {
  const { margin, ...others } = settings;
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: colour("font"), size: 13, color: colour("text") },
    hoverlabel: {
      bgcolor: colour("surface"),
      bordercolor: colour("line"),
      font: { family: colour("font"), size: 13, color: colour("text") },
      align: "left",
    },
    margin: { l: 56, r: 12, t: 8, b: 40, ...margin },
    showlegend: false,
    ...others,
  };
}

export function draw(element, traces, settings) {
  return window.Plotly.react(element, traces, layout(settings), CONFIG);
}

// What has to be reached: a line across, and words at its right end.
export function targetLine(height, tone = "good", dash = "dash") {
  const style = { color: colour(tone), width: 1.5, dash };
  return { type: "line", xref: "paper", x0: 0, x1: 1, y0: height, y1: height, line: style };
}

export function targetLabel(text, height, scale, { tone = "good", side = "right" } = {}) {
  return {
    xref: "paper",
    x: side === "right" ? 1 : 0.5,
    xanchor: side,
    y: scale.axis.type === "log" ? Math.log10(height) : height,
    yanchor: "bottom",
    text: plain(text),
    showarrow: false,
    font: { size: 12, color: colour(tone) },
  };
}
