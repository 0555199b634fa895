"use strict";
// The machine map: groups of the chip under the pointer, or of the one that a field names.
// `meshwrightPictures.machine(box, say)` makes every `svg[data-machine]` in `box` answer, and returns
// `{ show(rank), marks() }`; `say` is given one sentence about the chip that is shown.
globalThis.meshwrightPictures = globalThis.meshwrightPictures ?? {};
globalThis.meshwrightPictures.machine = (box, say = () => {}) => {
  const NAME = { tp: "T", cp: "C", ep: "E", dp: "D", pp: "P" }, AXES = Object.keys(NAME), DOT = "\u25cf";
  const maps = [...box.querySelectorAll("svg[data-machine]")].map((svg) => {
    const found = JSON.parse(svg.dataset.machine), cells = [...svg.querySelectorAll("g[data-ink] > rect.cell")], starts = [];
    for (const [first, tp, cp, dp] of found.stages) for (let at = first; at < first + tp * cp * dp; at += found.unit) starts.push(at);
    return { svg, cells, starts, ...found };
  });
  if (!maps.length) return null;
  const { stages, unit, starts } = maps[0], sizeOf = (stage) => stage[1] * stage[2] * stage[3];
  const chips = stages.at(-1)[0] + sizeOf(stages.at(-1));
  const stageOf = (rank) => stages.findIndex((stage) => rank < stage[0] + sizeOf(stage));
  const membersOf = (axis, rank) => {  // as values.ranks.group_members
    const at = stageOf(rank), [first, tp, cp, dp, ep, etp] = stages[at], own = rank - first;
    if (axis === "pp") return stages.every((stage) => sizeOf(stage) === tp * cp * dp) ? { start: own, size: stages.length, stride: tp * cp * dp } : { start: rank, size: 1, stride: 1 };
    const [stride, size] = { tp: [1, tp], cp: [tp, cp], dp: [tp * cp, dp], ep: [etp, ep] }[axis];
    return { start: rank - (Math.floor(own / stride) % size) * stride, size, stride };
  };
  const placeOf = (rank) => {
    let low = 0, high = starts.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (starts[middle] <= rank) low = middle; else high = middle - 1; }
    return low;
  };
  const marksOf = (rank) => {
    const own = placeOf(rank), found = new Map([[own, DOT]]);
    for (const axis of AXES) {
      const { start, size, stride } = membersOf(axis, rank), places = new Set();
      for (let k = 0; k < size; k++) places.add(placeOf(start + k * stride));
      places.delete(own);
      for (const place of places) found.set(place, (found.get(place) ?? "") + NAME[axis]);
    }
    return found;
  };
  const SVG = "http://www.w3.org/2000/svg";
  const add = (group, name, words) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(words)) made.setAttribute(key, value);
    group.append(made);
    return made;
  };
  const draw = (map, marks) => {
    const group = map.svg.querySelector(".marks"), inner = map.size - 2;
    group.replaceChildren();
    for (const [place, words] of marks) {
      const cell = map.cells[place], x = Number(cell.getAttribute("x")), y = Number(cell.getAttribute("y"));
      const high = Math.min(13, (inner - 2) / Math.max(1, 0.62 * words.length), inner - 1);
      add(group, "rect", { class: "frame", x, y, width: inner, height: inner }).style.strokeWidth = map.size >= 16 ? "2.5px" : "1.2px";
      const letters = add(group, "text", { class: `${cell.parentNode.dataset.ink} letters`, "text-anchor": "middle", x: (x + inner / 2).toFixed(1), y: (y + inner / 2 + 0.36 * high).toFixed(1) });
      letters.style.fontSize = `${high.toFixed(1)}px`;
      letters.textContent = words;
    }
  };
  const listed = ({ start, size, stride }) => {
    const all = Array.from({ length: Math.min(size, 4) }, (_, k) => (start + k * stride).toLocaleString("en"));
    return size > 4 ? `${all.slice(0, 3).join(", ")}, … ${(start + (size - 1) * stride).toLocaleString("en")} (${size})` : all.join(", ");
  };
  let shown = new Map();
  const show = (rank) => {
    rank = Math.min(chips - 1, Math.max(0, Math.trunc(rank) || 0));
    shown = marksOf(rank);
    maps.forEach((map) => draw(map, shown));
    const groups = AXES.map((axis) => [axis, membersOf(axis, rank)]).filter(([, each]) => each.size > 1);
    const words = groups.map(([axis, each]) => `${axis} ${listed(each)}`);
    const where = unit === 1 ? `, ${maps[0].word} ${Math.floor(rank / maps[0].box)}` : "";
    say(`Chip ${rank.toLocaleString("en")}${where}, stage ${stageOf(rank)}. ${words.join("; ") || "It exchanges with nobody"}.`, rank);
    return rank;
  };
  maps.forEach((map) => map.svg.addEventListener("pointerover", (event) => {
    const place = map.cells.indexOf(event.target);
    if (place >= 0) show(starts[place]);
  }));
  return { show, chips, marks: () => Object.fromEntries(shown) };
};
