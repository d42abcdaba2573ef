"use strict";
(() => {
  const PAGE = 20;
  const data = window.DATA;
  const get = (id) => document.getElementById(id);
  const make = (name, text, classes) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (classes) element.className = classes;
    return element;
  };
  const main = data.measures[0][0];
  const items = data.items.map(([id, prompt, category, runs], number) => ({
    id, prompt, number, category: data.categories[category],
    runs: runs.map((row) => row && { score: row[0], status: row[1], flagged: row[2] === 1, differs: row[3] === 1 }),
  }));
  const score = (item, run) => (item.runs[run] ? item.runs[run].score : null);
  const middle = (data.scale[0] + data.scale[1]) / 2;
  let at = 0;
  let shown = [];

  for (const [number, name] of data.runs.entries()) {
    const option = make("option", name);
    option.value = number;
    get("run").append(option);
  }
  for (const name of data.categories) get("category").append(make("option", name));

  const gap = (item) => {
    const scores = data.runs.map((_, run) => score(item, run)).filter((value) => value !== null);
    return scores.length > 1 ? Math.max(...scores) - Math.min(...scores) : -1;
  };
  const disagree = (item) => {
    const passes = data.runs.map((_, run) => score(item, run)).filter((v) => v !== null).map((v) => v >= middle);
    return passes.includes(true) && passes.includes(false);
  };
  const fits = (item, run) => {
    const result = item.runs[run];
    const show = get("show").value;
    const query = get("query").value.toLowerCase();
    if (get("category").value && item.category !== get("category").value) return false;
    if (query && !`${item.id} ${item.prompt}`.toLowerCase().includes(query)) return false;
    if (!show) return true;
    if (show === "flip") return disagree(item);
    if (!result) return false;
    if (show === "flag") return result.flagged;
    if (show === "differs") return result.differs;
    return result.status === show;
  };
  const choose = () => {
    const run = Number(get("run").value);
    const order = get("order").value;
    shown = items.filter((item) => fits(item, run));
    const value = (item) => { const s = score(item, run); return s === null ? Infinity : s; };
    if (order === "worst") shown.sort((a, b) => value(a) - value(b) || a.number - b.number);
    if (order === "best") shown.sort((a, b) => (value(b) === Infinity ? -Infinity : value(b)) - (value(a) === Infinity ? -Infinity : value(a)) || a.number - b.number);
    if (order === "gap") shown.sort((a, b) => gap(b) - gap(a) || a.number - b.number);
    at = 0;
    draw();
  };

  const picture = (thumb, file, title, classes) => {
    const figure = make("figure", undefined, classes);
    if (thumb) {
      const link = make("a");
      const image = make("img");
      link.href = file;
      image.src = thumb;
      image.loading = "lazy";
      image.alt = title;
      link.append(image);
      figure.append(link);
    } else figure.append(make("div", thumb === null ? "changed since it was judged" : "no picture", "none"));
    figure.append(make("figcaption", title));
    return figure;
  };
  const verdict = (result) => {
    const text = make("figcaption");
    if (result.status !== "ok") {
      text.append(make("span", `${result.status}: ${result.kind}`, `status-${result.status}`), make("br"), result.detail);
      return text;
    }
    for (const [name, title] of data.measures) {
      if (result.scores[name] === undefined) continue;
      text.append(make(name === main ? "b" : "div", `${title} ${result.scores[name].toFixed(data.digits)}`));
    }
    if (result.flags.length) text.append(make("span", result.flags.join(", "), "badge no-mark"));
    if (result.differs.length) text.append(make("span", `judge's sum differs: ${result.differs.join(", ")}`, "badge no-mark"));
    return text;
  };
  const waiting = {};
  const load = (item, folder, store, then) => {
    const chunk = Math.floor(item.number / data.chunk);
    const use = () => then(store[chunk][item.number % data.chunk]);
    if (store[chunk]) return use();
    const path = `${folder}/${chunk}.js`;
    if (waiting[path]) return waiting[path].push(use);
    waiting[path] = [use];
    const script = make("script");
    script.src = path;
    script.onload = () => waiting[path].forEach((each) => each());
    document.head.append(script);
  };
  const readable = (text) => {
    try { return JSON.stringify(JSON.parse(text), null, 1); } catch { return text; }
  };
  const said = (item, place) => load(item, "details", window.DETAILS, (details) => {
    place.replaceChildren();
    details.forEach((detail, run) => {
      if (!detail) return;
      const column = make("div");
      column.append(make("h4", data.runs[run]));
      const add = (title, text) => { column.append(make("b", title), make("pre", text)); };
      for (const step of detail.trail) {
        if (step.thinking) add(`${step.role}, thinking`, step.thinking);
        add(`${step.role}${step.repeat ? `, repeat ${step.repeat}` : ""} (${step.model})`, readable(step.text));
      }
      if (Object.keys(detail.evidence).length) add("evidence", JSON.stringify(detail.evidence, null, 1));
      for (const step of detail.made || []) add(`how it was made, ${step.title}`, step.text);
      place.append(column);
    });
  });
  const fill = (item, element) => load(item, "cards", window.CARDS, (card) => {
    const row = make("div", undefined, "shown");
    card.runs.forEach((result, run) => {
      if (!result) return;
      const figure = picture(result.thumb, result.file, data.runs[run]);
      figure.append(verdict({ ...result, status: item.runs[run].status }));
      row.append(figure);
    });
    card.references.forEach(([thumb, file], number) => row.append(picture(thumb, file, `reference ${number + 1}`, "reference")));
    const list = make("dl");
    for (const [key, value] of Object.entries(card.extra)) {
      list.append(make("dt", key), make("dd", typeof value === "string" ? value : JSON.stringify(value)));
    }
    const more = make("details");
    const place = make("div", undefined, "said");
    more.append(make("summary", "what the judge said, and how the picture was made"), place);
    more.addEventListener("toggle", () => { if (more.open && !place.hasChildNodes()) said(item, place); });
    if (card.group && card.group !== item.category) element.querySelector(".where").append(` · ${card.group}`);
    element.classList.remove("empty");
    element.append(row, list, more);
  });
  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      fill(target.item, target);
    }
  }, { rootMargin: "600px" });
  const entry = (item) => {
    const card = make("div", undefined, "card entry empty");
    const title = make("h3");
    title.append(make("q", item.prompt));
    card.append(title, make("p", [...new Set([item.id, item.category])].filter(Boolean).join(" · "), "where"));
    card.item = item;
    near.observe(card);
    return card;
  };
  const draw = () => {
    near.disconnect();
    get("items").replaceChildren(...shown.slice(at, at + PAGE).map(entry));
    get("count").textContent = `${shown.length} of ${items.length} items`;
    get("where").textContent = shown.length ? `${at + 1} to ${Math.min(at + PAGE, shown.length)}` : "none";
    get("before").disabled = at === 0;
    get("after").disabled = at + PAGE >= shown.length;
  };
  const turn = (by) => { at += by; draw(); get("items").scrollIntoView(); };
  get("before").addEventListener("click", () => turn(-PAGE));
  get("after").addEventListener("click", () => turn(PAGE));
  for (const id of ["run", "category", "show", "order"]) get(id).addEventListener("change", choose);
  get("query").addEventListener("input", choose);
  choose();
})();
