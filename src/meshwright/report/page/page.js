"use strict";
(() => {
  const all = (from, what) => [...from.querySelectorAll(what)];
  const root = document.documentElement;

  // Tables: sort by a heading, filter by words and by column=value.
  const valueOf = (row, at) => {
    const cell = row.cells[at];
    if (!cell.classList.contains("n")) return cell.textContent;
    return cell.dataset.v === "" ? NaN : Number(cell.dataset.v);
  };
  const order = (a, b) => {
    if (typeof a === "string") return a.localeCompare(b, "en", { numeric: true });
    return Number.isNaN(a) ? (Number.isNaN(b) ? 0 : 1) : Number.isNaN(b) ? -1 : a - b;
  };
  const sortBy = (heading) => {
    const table = heading.closest("table"), at = heading.cellIndex;
    const down = heading.getAttribute("aria-sort") === "ascending";
    all(table, "th").forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = all(table, "tbody tr").map((row) => [valueOf(row, at), row]);
    const missing = (v) => typeof v === "number" && Number.isNaN(v);
    rows.sort((a, b) => (missing(a[0]) || missing(b[0]) || !down ? order(a[0], b[0]) : order(b[0], a[0])));
    table.tBodies[0].append(...rows.map((pair) => pair[1]));
  };
  const compare = {
    "=": (a, b) => a === b, "!=": (a, b) => a !== b, "<": (a, b) => a < b, ">": (a, b) => a > b,
    "<=": (a, b) => a <= b, ">=": (a, b) => a >= b,
  };
  const test = (word, keys) => {
    const parts = word.match(/^([^<>=!]+)(<=|>=|!=|=|<|>)(.+)$/);
    const at = parts ? keys.indexOf(parts[1].toLowerCase()) : -1;
    if (at < 0) return (row) => row.textContent.toLowerCase().includes(word.toLowerCase());
    return (row) => {
      const value = valueOf(row, at), wanted = parts[3];
      if (typeof value === "number") return !Number.isNaN(value) && compare[parts[2]](value, Number(wanted));
      return parts[2] === "=" ? value.includes(wanted) : parts[2] === "!=" && !value.includes(wanted);
    };
  };
  const filter = (box) => {
    const table = box.querySelector("table"), said = box.querySelector(".count");
    const keys = all(table, "th").map((heading) => heading.dataset.key.toLowerCase());
    const tests = box.querySelector(".filter").value.trim().split(/\s+/).filter(Boolean).map((word) => test(word, keys));
    let shown = 0;
    const rows = all(table, "tbody tr");
    rows.forEach((row) => { row.hidden = !tests.every((one) => one(row)); shown += !row.hidden; });
    said.textContent = tests.length ? `${shown} of ${rows.length}` : `${rows.length} row${rows.length === 1 ? "" : "s"}`;
  };

  // Files.
  const save = (name, type, content) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const quoted = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const csvOf = (table) => {
    const lines = [all(table, "th").map((heading) => heading.dataset.key)];
    all(table, "tbody tr").forEach((row) => {
      if (!row.hidden) lines.push([...row.cells].map((cell) => cell.dataset.v ?? (cell.textContent === "-" ? "" : cell.textContent)));
    });
    return lines.map((line) => line.map(quoted).join(",") + "\n").join("");
  };
  const svgOf = (figure) => {
    const drawn = figure.querySelector("svg.chart"), copy = drawn.cloneNode(true), [, , w, h] = drawn.getAttribute("viewBox").split(" ");
    const from = [drawn, ...all(drawn, "*")];
    [copy, ...all(copy, "*")].forEach((node, at) => {
      const style = getComputedStyle(from[at]);
      for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family", "font-weight"]) {
        if (node.classList.length || node.tagName === "text") node.style.setProperty(name, style.getPropertyValue(name));
      }
      node.removeAttribute("data-ops");
    });
    copy.setAttribute("width", w);
    copy.setAttribute("height", h);
    copy.style.background = getComputedStyle(figure).backgroundColor;
    return new XMLSerializer().serializeToString(copy);
  };
  const savePng = (figure, name) => {
    const image = new Image(), [, , w, h] = figure.querySelector("svg.chart").getAttribute("viewBox").split(" ").map(Number);
    image.onload = () => {
      const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
      [canvas.width, canvas.height] = [2 * w + 48, 2 * h + 48];
      pen.fillStyle = getComputedStyle(figure).backgroundColor;
      pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.drawImage(image, 24, 24, 2 * w, 2 * h);
      canvas.toBlob((blob) => save(name, "image/png", blob));
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgOf(figure))}`;
  };

  // Timelines: the plot is an inner SVG whose window moves.
  const UNITS = 40000, zooms = new Map();
  const zoomOf = (figure) => {
    if (!zooms.has(figure)) {
      const plot = figure.querySelector(".plot"), ticks = figure.querySelector(".ticks");
      zooms.set(figure, { plot, ticks, from: 0, to: UNITS, tall: plot.getAttribute("viewBox").split(" ")[3], step: Number(ticks.dataset.step) });
    }
    return zooms.get(figure);
  };
  const opsOf = (path) => {
    if (!path.ops) {
      const names = path.dataset.ops.split(" ");
      path.ops = path.getAttribute("d").split("M").slice(1).map((rect, at) => {
        const [start, wide] = [parseInt(rect, 10), parseInt(rect.split("h")[1], 10)];
        return { start, end: start + wide, name: names[at].split(".") };
      });
    }
    return path.ops;
  };
  const round = (raw) => {
    const size = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((m) => m * size).find((step) => step >= raw * 0.999);
  };
  const show = (zoom) => {
    const { plot, ticks, from, to, tall, step } = zoom, left = Number(ticks.dataset.left), right = Number(ticks.dataset.right), y = Number(ticks.dataset.y);
    plot.setAttribute("viewBox", `${from} 0 ${to - from} ${tall}`);
    const start = (from / UNITS) * step, end = (to / UNITS) * step, each = round((end - start) / 7);
    let marks = "";
    for (let k = Math.ceil(start / each); k * each <= end; k++) {
      const x = left + ((k * each - start) / (end - start)) * (right - left);
      if (x < right - 24) marks += `<path class="axis" d="M${x.toFixed(1)} ${y}v5"/><text class="soft" text-anchor="middle" x="${x.toFixed(1)}" y="${y + 18}">${Number((k * each).toPrecision(6))}</text>`;
    }
    ticks.innerHTML = marks;
    name(zoom, left, right);
  };
  const name = (zoom, left, right) => {  // numbers of micro batches, where operations are wide enough
    zoom.names?.remove();
    const group = document.createElementNS("http://www.w3.org/2000/svg", "g"), scale = (right - left) / (zoom.to - zoom.from), top = Number(zoom.plot.getAttribute("y"));
    let count = 0;
    all(zoom.plot, "path").forEach((path) => {
      const y = top + Number(path.getAttribute("d").split(",")[1].split("h")[0]) + 18;
      for (const op of opsOf(path)) {
        if (op.end < zoom.from || op.start > zoom.to || (op.end - op.start) * scale < 22 || ++count > 600) continue;
        const middle = left + ((Math.max(op.start, zoom.from) + Math.min(op.end, zoom.to)) / 2 - zoom.from) * scale;
        const words = document.createElementNS("http://www.w3.org/2000/svg", "text");
        words.setAttribute("x", middle.toFixed(1));
        words.setAttribute("y", y);
        words.setAttribute("text-anchor", "middle");
        words.setAttribute("class", path.dataset.kind === "B" ? "on-light" : "on-dark");
        words.style.pointerEvents = "none";
        words.textContent = op.name[1];
        group.append(words);
      }
    });
    zoom.names = group;
    zoom.plot.after(group);
  };
  const move = (zoom, from, wide) => {
    wide = Math.min(UNITS, Math.max(UNITS / 2000, wide));
    zoom.from = Math.min(UNITS - wide, Math.max(0, from));
    zoom.to = zoom.from + wide;
    show(zoom);
  };
  const zoomBy = (zoom, factor, about) => move(zoom, about - (about - zoom.from) * factor, (zoom.to - zoom.from) * factor);
  const placeOf = (zoom, event) => {
    const box = zoom.plot.getBoundingClientRect();
    const frame = zoom.plot.ownerSVGElement.getBoundingClientRect(), left = frame.left + (Number(zoom.ticks.dataset.left) / Number(zoom.ticks.dataset.right)) * frame.width;
    return zoom.from + ((event.clientX - left) / (frame.right - left || box.width)) * (zoom.to - zoom.from);
  };
  all(document, "figure.timeline").forEach((figure) => {
    const zoom = zoomOf(figure);
    show(zoom);
    let grabbed = null;
    zoom.plot.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoomBy(zoom, event.deltaY > 0 ? 1.25 : 0.8, placeOf(zoom, event));
    }, { passive: false });
    zoom.plot.addEventListener("pointerdown", (event) => { grabbed = placeOf(zoom, event); zoom.plot.setPointerCapture(event.pointerId); });
    zoom.plot.addEventListener("pointermove", (event) => {
      if (grabbed !== null) move(zoom, zoom.from + grabbed - placeOf(zoom, event), zoom.to - zoom.from);
    });
    zoom.plot.addEventListener("pointerup", () => { grabbed = null; });
  });
  const csvOfOps = (figure) => {
    const step = zoomOf(figure).step, lines = ["stage,kind,chunk,microbatch,start_s,end_s\n"];
    all(figure, ".plot path").forEach((path) => opsOf(path).forEach((op) => {
      const ends = [op.start, op.end].map((at) => ((at / UNITS) * step).toPrecision(6));
      lines.push([path.dataset.stage, path.dataset.kind, ...op.name, ...ends].join(",") + "\n");
    }));
    return lines.join("");
  };

  // One listener for every button.
  const shift = (zoom, share) => move(zoom, zoom.from + share * (zoom.to - zoom.from), zoom.to - zoom.from);
  const zoomed = {
    in: (zoom) => zoomBy(zoom, 0.5, (zoom.from + zoom.to) / 2), out: (zoom) => zoomBy(zoom, 2, (zoom.from + zoom.to) / 2),
    left: (zoom) => shift(zoom, -0.25), right: (zoom) => shift(zoom, 0.25), whole: (zoom) => move(zoom, 0, UNITS),
  };
  const actions = {
    ground: () => {
      const dark = root.dataset.ground ? root.dataset.ground === "dark" : matchMedia("(prefers-color-scheme:dark)").matches;
      root.dataset.ground = dark ? "light" : "dark";
    },
    print: () => print(),
    csv: (box, named) => save(`${named}.csv`, "text/csv", box.matches(".timeline") ? csvOfOps(box) : csvOf(box.querySelector("table"))),
    svg: (box, named) => save(`${named}.svg`, "image/svg+xml", svgOf(box)),
    png: (box, named) => savePng(box, `${named}.png`),
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) {  // a row with sentences opens, and closes unless its text is being selected
      if (event.target.closest(".clip") && getSelection().isCollapsed) event.target.closest("tr").classList.toggle("open");
      return;
    }
    if (button.matches(".sort")) return sortBy(button.parentElement);
    const box = button.closest("[data-name]"), what = button.dataset.do;
    if (zoomed[what]) zoomed[what](zoomOf(box));
    else if (actions[what]) actions[what](box, box?.dataset.name);
  });
  all(document, ".table").forEach((box) => {
    const input = box.querySelector(".filter");
    if (!input) return;
    input.addEventListener("input", () => filter(box));
    filter(box);
  });

  // Tips: the marks' own titles, shown at once.
  const tip = document.getElementById("tip");
  all(document, "svg.chart title").forEach((title) => {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  });
  const opAt = (path, event) => {
    const at = placeOf(zoomOf(path.closest("figure")), event), op = opsOf(path).find((one) => one.start <= at && at <= one.end);
    if (!op) return "";
    const step = zoomOf(path.closest("figure")).step, kind = { F: "forward", B: "backward", W: "weight gradient" }[path.dataset.kind];
    return `stage ${path.dataset.stage}, ${kind} of micro batch ${op.name[1]}, chunk ${op.name[0]}\n${(((op.end - op.start) / UNITS) * step * 1e3).toPrecision(3)} ms, from ${((op.start / UNITS) * step).toPrecision(4)} s`;
  };
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest?.("[data-tip],[data-ops]");
    const words = !mark ? "" : mark.dataset.tip ?? opAt(mark, event);
    tip.hidden = !words;
    if (!words) return;
    tip.textContent = words;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
  });
})();
