// What is shown and what is selected; parts of the page listen to the changes that concern them.

export function makeStore(model) {
  const listeners = { model: [], selection: [], search: [], theme: [] };
  const store = { model, selected: null, search: "" };
  const tell = (what) => listeners[what].forEach((listener) => listener(store));

  store.on = (what, listener) => listeners[what].push(listener);
  // Now and after each of these changes.
  store.always = (part, ...changes) => {
    for (const what of changes) store.on(what, part);
    part(store);
  };
  store.select = (selected) => {
    if (selected === null && store.selected === null) return;
    store.selected = selected;
    tell("selection");
  };
  store.find = (text) => {
    store.search = text;
    tell("search");
  };
  store.renew = (newer) => {
    store.model = newer;
    tell("model");
  };
  store.repaint = () => tell("theme");
  store.row = () => (store.selected === null ? undefined : store.model.byName.get(store.selected));
  store.matches = (row) => store.search === "" || row.name.toLowerCase().includes(store.search.toLowerCase());
  return store;
}
