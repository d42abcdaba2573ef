"use strict";
const data = JSON.parse(document.getElementById("run").textContent);
const WIDE = 220, HIGH = 150;
const one = (id) => document.getElementById(id);
const made = (name, text, kind) => {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
};

function stateAt(index) {
  const entities = Object.assign(Object.create(null), structuredClone(data.entities));
  const ground = Object.fromEntries(Object.entries(data.tiles).map(([id, tile]) => [id, { ...tile.fields }]));
  const types = { ...data.types };
  const changed = new Set();
  for (let k = 0; k < index; k++) {
    const row = data.rows[k];
    if (!row.accepted) continue;
    for (const item of row.batch) {
      if (row.kind === "define_type") types[item.id] = { fields: item.fields };
      if (row.kind === "create_entity") {
        const fields = Object.entries(types[item.type].fields).map(([key, spec]) => [key, item.fields[key] ?? start(spec)]);
        entities[item.id] = { type: item.type, name: item.name || item.id, holder: item.holder, fields: Object.fromEntries(fields) };
      }
      if (row.kind === "trigger" && item.write) {
        const [owner, field] = item.write.path.split(".");
        if (!(owner in entities)) ground[owner][field] = item.write.new;
        else if (field === "holder") entities[owner].holder = item.write.new;
        else entities[owner].fields[field] = item.write.new;
        if (k === index - 1) changed.add(owner);
      }
    }
  }
  return { entities, ground, changed };
}

function start(spec) {
  if (spec.default !== undefined && spec.default !== null) return spec.default;
  return { int: spec.low ?? 0, bool: false, str: "", enum: spec.values?.[0], ref: null }[spec.kind];
}

function placeOf(entities, name) {
  let at = entities[name].holder;
  const through = [];
  while (at !== null && at in entities) { through.push(entities[at].name); at = entities[at].holder; }
  return { tile: at, through };
}

function drawMap() {
  const places = Object.values(data.tiles);
  const wide = Math.max(...places.map((t) => t.at[0])) + 1, high = Math.max(...places.map((t) => t.at[1])) + 1;
  one("map").style.height = `${high * HIGH + 20}px`;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", wide * WIDE); svg.setAttribute("height", high * HIGH);
  for (const [id, tile] of Object.entries(data.tiles))
    for (const other of tile.neighbors) if (other > id) {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      const [x1, y1] = tile.at, [x2, y2] = data.tiles[other].at;
      for (const [key, value] of Object.entries({ x1: x1 * WIDE + 105, y1: y1 * HIGH + 60, x2: x2 * WIDE + 105, y2: y2 * HIGH + 60 }))
        line.setAttribute(key, value);
      svg.append(line);
    }
  one("map").append(svg);
  for (const [id, tile] of Object.entries(data.tiles)) {
    const box = made("div", undefined, "spot");
    box.id = `tile-${id}`;
    box.style.left = `${tile.at[0] * WIDE + 10}px`; box.style.top = `${tile.at[1] * HIGH + 10}px`;
    box.append(made("b", tile.name), made("small"), made("div", undefined, "chips"));
    one("map").append(box);
  }
}

function show(index) {
  const { entities, ground, changed } = stateAt(index);
  const row = index > 0 ? data.rows[index - 1] : null;
  for (const box of document.querySelectorAll(".chips")) box.replaceChildren();
  for (const [id, fields] of Object.entries(ground)) {
    const text = Object.entries(fields).map(([key, value]) => `${key} ${value}`).join(", ");
    document.querySelector(`#tile-${CSS.escape(id)} small`).textContent = text;
  }
  const away = [];
  for (const [id, entity] of Object.entries(entities)) {
    const { tile, through } = placeOf(entities, id);
    const fields = Object.entries(entity.fields).map(([key, value]) => `${key} ${value}`).join(", ");
    const chip = made("span", entity.name + (through.length ? ` (with ${through[0]})` : ""), "chip");
    chip.title = `${entity.type}${fields ? ": " + fields : ""}`;
    chip.dataset.entity = id;
    if (changed.has(id)) chip.classList.add("changed");
    if (tile === null || !(tile in data.tiles)) away.push(chip);
    else document.querySelector(`#tile-${CSS.escape(tile)} .chips`).append(chip);
  }
  one("offstage").replaceChildren(...(away.length ? [made("span", "Not on the map: "), ...away] : []));
  const round = row ? row.round : 1;
  one("place").textContent = `row ${index} of ${data.rows.length}, round ${round}, Step ${row ? (row.step_after ?? row.step_before) : 0}`;
  one("story").textContent = data.narratives[round - 1];
  one("what").replaceChildren(...(row ? tellRow(row) : [made("li", "the beginning")]));
  one("at").value = index;
}

function tellRow(row) {
  const lines = row.batch.map((item) => {
    if (row.kind !== "trigger") return made("li", `${row.kind} ${item.id ?? ""}${item.forced ? "(by the runner)" : ""}`);
    const args = Object.entries(item.args).map(([key, value]) => `${key}=${value}`).join(" ");
    const write = item.write ? ` → ${item.write.path}: ${item.write.old} → ${item.write.new}` : "";
    return made("li", `${item.trigger_id}: ${item.actor ?? "the world"} ${item.capability} ${args}${write}`);
  });
  if (row.kind === "end_round") lines.push(...(data.items[row.round] ?? []).map((item) =>
    made("li", `${item.passed ? "✓" : "✗"} ${item.id} (${item.kind}) ${item.reason}`, item.passed ? "" : "no")));
  return [...lines, ...row.errors.map((error) => made("li", error, "no"))];
}

drawMap();
one("at").max = data.rows.length;
one("at").addEventListener("input", (event) => show(Number(event.target.value)));
const go = (by) => show(Math.min(data.rows.length, Math.max(0, Number(one("at").value) + by)));
one("back").addEventListener("click", () => go(-1));
one("next").addEventListener("click", () => go(1));
document.addEventListener("keydown", (event) => {
  if (event.target === one("at")) return;
  if (event.key === "ArrowLeft") go(-1);
  if (event.key === "ArrowRight") go(1);
});
show(0);
