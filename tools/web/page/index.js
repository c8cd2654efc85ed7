// The list of runs: sorted by a column, and asked for again and again.

import { byId } from "./dom.js";
import { follow } from "./live.js";
import { startTheme } from "./theme.js";

const EVERY = 3000;
const rows = byId("rows");
const heads = [...document.querySelectorAll("thead th")];
let sorted = heads.find((head) => head.hasAttribute("aria-sort"));

function compare(one, other) {
  if (one === "" || other === "") return (one === "") - (other === "");
  const difference = Number(one) - Number(other);
  return Number.isNaN(difference) ? one.localeCompare(other) : difference;
}

function sort() {
  const column = heads.indexOf(sorted);
  const sign = sorted.getAttribute("aria-sort") === "ascending" ? 1 : -1;
  const value = (row) => row.children[column].dataset.value;
  rows.append(...[...rows.children].sort((one, other) => sign * compare(value(one), value(other))));
}

for (const head of heads) {
  head.querySelector("button").addEventListener("click", () => {
    const order = head === sorted && head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    sorted.removeAttribute("aria-sort");
    sorted = head;
    sorted.setAttribute("aria-sort", order);
    sort();
  });
}

// Times are sent in UTC and shown in the reader's own.
function showTimes() {
  for (const time of rows.querySelectorAll("time[datetime]")) {
    const when = new Date(time.dateTime);
    if (!Number.isNaN(when.valueOf())) {
      time.textContent = when.toLocaleString("sv-SE", { dateStyle: "short", timeStyle: "short" });
      time.title = when.toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });
    }
  }
}

async function take(answer) {
  if (answer.status === 205) location.reload();
  else {
    const focused = document.activeElement?.getAttribute("href");
    rows.innerHTML = await answer.text();
    byId("none").hidden = rows.children.length > 0;
    showTimes();
    sort();
    if (focused) rows.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }
  return ["live", "running"];
}

startTheme();
showTimes();
follow("rows", EVERY, take);
