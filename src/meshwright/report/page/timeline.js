"use strict";
// A pipeline's timeline: an inner SVG whose window moves over the step.
// `meshwrightPictures.timeline(drawn)` makes the `.plot` of an `svg.chart` answer to drags and to the
// wheel with Ctrl. It returns `{ drawn, moves, tipAt(path, event), csv() }`; `moves` has the functions
// in, out, left, right, opening and whole.
globalThis.meshwrightPictures = globalThis.meshwrightPictures ?? {};
globalThis.meshwrightPictures.timeline = (drawn) => {
  const UNITS = 40000, plot = drawn.querySelector(".plot"), ticks = drawn.querySelector(".ticks"), frame = drawn.querySelector(".window");
  const { left: at, right: end, y: below, high } = ticks.dataset, [left, right, y] = [Number(at), Number(end), Number(below)], step = Number(ticks.dataset.step);
  const tall = plot.getAttribute("viewBox").split(" ")[3], opening = Number(ticks.dataset.open), paths = [...plot.querySelectorAll("path[data-ops]")];
  const zoom = { from: 0, to: opening };
  let names = null;
  const opsOf = (path) => {
    if (!path.ops) {
      const words = path.dataset.ops.split(" ");
      path.ops = path.getAttribute("d").split("M").slice(1).map((rect, place) => {
        const [start, wide] = [parseInt(rect, 10), parseInt(rect.split("h")[1], 10)];
        return { start, end: start + wide, name: words[place].split(".") };
      });
    }
    return path.ops;
  };
  const round = (raw) => {
    const size = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((m) => m * size).find((each) => each >= raw * 0.999);
  };
  const name = () => {  // numbers of micro batches, where operations are wide enough
    names?.remove();
    names = document.createElementNS("http://www.w3.org/2000/svg", "g");
    const scale = (right - left) / (zoom.to - zoom.from), top = Number(plot.getAttribute("y"));
    let count = 0;
    if (Number(high) >= 14) paths.forEach((path) => {
      const base = top + Number(path.getAttribute("d").split(",")[1].split("h")[0]) + Number(high) / 2 + 4;
      for (const op of opsOf(path)) {
        if (op.end < zoom.from || op.start > zoom.to || (op.end - op.start) * scale < 22 || ++count > 600) continue;
        const words = document.createElementNS("http://www.w3.org/2000/svg", "text");
        words.setAttribute("x", (left + ((Math.max(op.start, zoom.from) + Math.min(op.end, zoom.to)) / 2 - zoom.from) * scale).toFixed(1));
        words.setAttribute("y", base);
        words.setAttribute("text-anchor", "middle");
        words.setAttribute("class", path.dataset.kind === "B" ? "on-light" : "on-dark");
        words.style.pointerEvents = "none";
        words.textContent = op.name[1];
        names.append(words);
      }
    });
    plot.after(names);
  };
  const show = () => {
    const { from, to } = zoom, start = (from / UNITS) * step, stop = (to / UNITS) * step, each = round((stop - start) / 7);
    plot.setAttribute("viewBox", `${from} 0 ${to - from} ${tall}`);
    let marks = "";
    for (let k = Math.ceil(start / each); k * each <= stop; k++) {
      const x = left + ((k * each - start) / (stop - start)) * (right - left);
      if (x < right - 24) marks += `<path class="axis" d="M${x.toFixed(1)} ${y}v5"/><text class="soft" text-anchor="middle" x="${x.toFixed(1)}" y="${y + 18}">${Number((k * each).toPrecision(6))}</text>`;
    }
    ticks.innerHTML = marks;
    frame?.setAttribute("x", left + (from / UNITS) * (right - left));
    frame?.setAttribute("width", Math.max(2, ((to - from) / UNITS) * (right - left)));
    name();
  };
  const move = (from, wide) => {
    wide = Math.min(UNITS, Math.max(UNITS / 2000, wide));
    zoom.from = Math.min(UNITS - wide, Math.max(0, from));
    zoom.to = zoom.from + wide;
    show();
  };
  const wide = () => zoom.to - zoom.from, zoomBy = (factor, about) => move(about - (about - zoom.from) * factor, wide() * factor);
  const placeOf = (event) => {
    const box = drawn.getBoundingClientRect(), start = box.left + (left / right) * box.width;
    return zoom.from + ((event.clientX - start) / (box.right - start || 1)) * wide();
  };
  show();
  let grabbed = null;
  plot.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoomBy(event.deltaY > 0 ? 1.25 : 0.8, placeOf(event));
  }, { passive: false });
  plot.addEventListener("pointerdown", (event) => { grabbed = placeOf(event); plot.setPointerCapture(event.pointerId); });
  plot.addEventListener("pointermove", (event) => { if (grabbed !== null) move(zoom.from + grabbed - placeOf(event), wide()); });
  plot.addEventListener("pointerup", () => { grabbed = null; });
  addEventListener("beforeprint", () => move(0, opening));
  const middle = () => (zoom.from + zoom.to) / 2;
  return {
    drawn,
    moves: {
      in: () => zoomBy(0.5, middle()), out: () => zoomBy(2, middle()), left: () => move(zoom.from - 0.25 * wide(), wide()),
      right: () => move(zoom.from + 0.25 * wide(), wide()), opening: () => move(0, opening), whole: () => move(0, UNITS),
    },
    tipAt: (path, event) => {
      const place = placeOf(event), op = opsOf(path).find((one) => one.start <= place && place <= one.end);
      if (!op) return "";
      const kind = { F: "forward", B: "backward", W: "weight gradient" }[path.dataset.kind];
      return `stage ${path.dataset.stage}, ${kind} of micro batch ${op.name[1]}, chunk ${op.name[0]}\n${(((op.end - op.start) / UNITS) * step * 1e3).toPrecision(3)} ms, from ${((op.start / UNITS) * step).toPrecision(4)} s`;
    },
    csv: () => ["stage,kind,chunk,microbatch,start_s,end_s\n", ...paths.flatMap((path) => opsOf(path).map((op) => {
      const ends = [op.start, op.end].map((place) => ((place / UNITS) * step).toPrecision(6));
      return [path.dataset.stage, path.dataset.kind, ...op.name, ...ends].join(",") + "\n";
    }))].join(""),
  };
};
