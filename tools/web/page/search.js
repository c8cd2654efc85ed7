// The search: what is typed drops down the layers whose name holds it; Enter or a click goes there.

import { byId, h, show } from "./dom.js";
import { count } from "./format.js";
import { rankOf, verdictWord } from "./model.js";

const SHOWN = 12;
const STEPS = { ArrowDown: 1, ArrowUp: -1 };

export function startSearch(store) {
  const [field, list] = [byId("search"), byId("hits")];
  let [hits, more, active, isOpen] = [[], 0, 0, false];

  function open() {
    const found = store.search === "" ? [] : store.model.rows.filter(store.matches);
    hits = found.sort((one, other) => rankOf(one) - rankOf(other) || one.index - other.index).slice(0, SHOWN);
    more = found.length - hits.length;
    paint(0, store.search !== "");
  }

  function paint(place, isShown) {
    [active, isOpen] = [place, isShown];
    list.hidden = !isOpen;
    field.setAttribute("aria-expanded", String(isOpen && hits.length > 0));
    field.toggleAttribute("aria-activedescendant", isOpen && hits.length > 0);
    if (isOpen && hits.length) field.setAttribute("aria-activedescendant", `hit-${active}`);
    const words = hits.length ? more > 0 && `and ${count(more)} more, in the table` : "No layer matches.";
    const last = words && h("li.under", { role: "option", "aria-disabled": "true" }, words);
    const items = hits.map((row, index) => hit(row, index, store.search, index === active));
    show(list, isOpen ? [items, last] : []);
  }

  function choose(place) {
    store.select(hits[place].name);
    paint(place, false);
  }

  function onKey(event) {
    if (!hits.length) return;
    if (event.key in STEPS) {
      event.preventDefault();
      if (isOpen) paint((active + STEPS[event.key] + hits.length) % hits.length, true);
      else open();
    } else if (event.key === "Enter") {
      // Again and again it goes from one hit to the next.
      choose(isOpen ? active : (active + 1) % hits.length);
    }
  }

  field.addEventListener("input", () => store.find(field.value.trim()));
  field.addEventListener("focus", open);
  field.addEventListener("blur", () => paint(active, false));
  field.addEventListener("keydown", onKey);
  // The field keeps the focus, so that its blur does not take the list away under the pointer.
  list.addEventListener("pointerdown", (event) => event.preventDefault());
  list.addEventListener("click", (event) => {
    const place = event.target.closest("[role=option]")?.dataset.place;
    if (place !== undefined) choose(Number(place));
  });
  store.on("search", open);
  store.on("model", () => isOpen && open());
}

function hit(row, place, wanted, isActive) {
  const at = row.name.toLowerCase().indexOf(wanted.toLowerCase());
  const end = at + wanted.length;
  return h(
    "li",
    { role: "option", id: `hit-${place}`, "data-place": place, "aria-selected": String(isActive) },
    h("span.hit-name", row.name.slice(0, at), h("mark", row.name.slice(at, end)), row.name.slice(end)),
    h("span.under", { class: row.culprit && "culprit" }, [row.op_type, verdictWord(row)].filter(Boolean).join(", ")),
  );
}
