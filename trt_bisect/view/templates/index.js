"use strict";
const rows = document.getElementById("rows");
const live = document.getElementById("live");
const heads = [...document.querySelectorAll("thead th")];
let sorted = heads.find((head) => head.hasAttribute("aria-sort"));
let etag = "";

function compare(one, other) {
  const [a, b] = [Number(one), Number(other)];
  if (one === "" || other === "") return (one === "") - (other === "");
  return Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other) : a - b;
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

async function refresh() {
  try {
    const answer = await fetch(`rows${location.search}`, { headers: etag ? { "If-None-Match": etag } : {} });
    if (answer.status === 200) {
      etag = answer.headers.get("ETag");
      rows.innerHTML = await answer.text();
      document.getElementById("none").hidden = rows.children.length > 0;
      sort();
    }
    live.textContent = answer.ok || answer.status === 304 ? "live" : "connection lost";
  } catch {
    live.textContent = "connection lost";
  }
}

setInterval(() => document.hidden || refresh(), 3000);
refresh();
