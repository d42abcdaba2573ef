"use strict";
window.PARTS = {};
(() => {
  const PAGE = 20;
  const sheet = window.SHEET;
  const filters = Object.keys(sheet.filters);
  const get = (id) => document.getElementById(id);
  const make = (name, text, classes) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (classes) element.className = classes;
    return element;
  };
  const rows = sheet.rows.map(([id, name, near, ...places], number) => ({ id, name, near, places, number }));
  let shown = rows;
  let at = 0;
  let turn = 0;

  filters.forEach((name, place) => {
    const counts = new Map();
    for (const row of rows) counts.set(row.places[place], (counts.get(row.places[place]) || 0) + 1);
    [...counts].sort((a, b) => b[1] - a[1]).forEach(([value, count]) => {
      const text = sheet.filters[name][value];
      if (!text) return;
      const option = make("option", `${text.replaceAll("_", " ")} (${count})`);
      option.value = value;
      get(name).append(option);
    });
    get(name).addEventListener("change", () => choose());
  });
  get("near").addEventListener("change", () => choose());
  get("query").addEventListener("input", () => choose());

  const load = (number) => new Promise((done) => {
    if (window.PARTS[number]) return done();
    const script = make("script");
    script.src = `parts/${number}.js`;
    script.onload = done;
    script.onerror = done;
    document.head.append(script);
  });
  const figure = ([thumb, title, caption]) => {
    const made = make("figure");
    if (thumb) {
      const image = make("img");
      image.src = thumb;
      image.loading = "lazy";
      image.alt = title;
      made.append(image);
    } else made.append(make("div", "no picture", "none"));
    const words = make("figcaption");
    words.append(make("b", title), caption);
    made.append(words);
    return made;
  };
  const card = (item) => {
    const made = make("div", undefined, "card entry");
    made.dataset.id = item.id;
    const title = make("h3", item.title);
    title.append(make("span", item.state.replaceAll("_", " "), `badge state ${item.state === "done" ? "yes" : "no-mark"}`));
    made.append(title, make("p", item.where, "where"));
    if (item.why) made.append(make("p", item.detail ? `${item.why} (${item.detail})` : item.why, "why"));
    const row = make("div", undefined, "shown");
    row.append(...item.pictures.map(figure));
    made.append(row);
    if (item.recaption) made.append(make("p", item.recaption, "recaption"));
    if (item.near.length) made.append(make("p", `nearly the same as ${item.near.join(", ")}`, "near"));
    return made;
  };
  const draw = async () => {
    const mine = ++turn;
    const some = shown.slice(at, at + PAGE);
    const parts = new Set(some.map((row) => Math.floor(row.number / sheet.part)));
    await Promise.all([...parts].map(load));
    if (mine !== turn) return;
    const cards = some.map((row) => {
      const part = window.PARTS[Math.floor(row.number / sheet.part)];
      return part ? card(part[row.number % sheet.part]) : make("p", `${row.id}: its part of the page is missing`);
    });
    get("items").replaceChildren(...cards);
    get("where").textContent = shown.length ? `${at + 1} to ${Math.min(at + PAGE, shown.length)} of ${shown.length}` : "";
    get("before").disabled = at === 0;
    get("after").disabled = at + PAGE >= shown.length;
  };
  const choose = () => {
    const wanted = filters.map((name) => get(name).value);
    const query = get("query").value.trim().toLowerCase();
    const near = get("near").checked;
    shown = rows.filter((row) =>
      wanted.every((value, place) => value === "" || row.places[place] === Number(value))
      && (!near || row.near)
      && (!query || `${row.id} ${row.name}`.toLowerCase().includes(query)));
    get("count").textContent = `${shown.length} of ${rows.length}`;
    at = 0;
    return draw();
  };
  get("before").addEventListener("click", () => { at -= PAGE; draw(); window.scrollTo(0, 0); });
  get("after").addEventListener("click", () => { at += PAGE; draw(); window.scrollTo(0, 0); });
  choose();
})();
