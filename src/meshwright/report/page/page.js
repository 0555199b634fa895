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
  all(document, "table").forEach((table) => {  // on a narrow page each cell says its heading
    const titles = all(table, "th").map((heading) => heading.textContent);
    all(table, "td").forEach((cell) => { cell.dataset.t = titles[cell.cellIndex]; });
  });
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
  const drawnOf = (figure) => all(figure, "svg.chart").find((one) => one.getClientRects().length) ?? figure.querySelector("svg.chart");
  const svgOf = (figure) => {
    const drawn = drawnOf(figure), copy = drawn.cloneNode(true), [, , w, h] = drawn.getAttribute("viewBox").split(" ");
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
    const image = new Image(), [, , w, h] = drawnOf(figure).getAttribute("viewBox").split(" ").map(Number);
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

  // Pictures that answer: timeline.js and machine.js.
  const pictures = globalThis.meshwrightPictures, zooms = new Map();
  all(document, "figure.timeline").forEach((figure) => zooms.set(figure, all(figure, "svg.chart").map((drawn) => pictures.timeline(drawn))));
  all(document, "figure.machine").forEach((figure) => {
    const field = figure.querySelector(".chip"), said = figure.querySelector(".said");
    const map = pictures.machine(figure, (words, rank) => { said.textContent = words; field.value = rank; });
    field.addEventListener("input", () => { if (field.value !== "") map.show(Number(field.value)); });
    map.show(0);
  });

  // One listener for every button.
  const actions = {
    ground: () => {
      const dark = root.dataset.ground ? root.dataset.ground === "dark" : matchMedia("(prefers-color-scheme:dark)").matches;
      root.dataset.ground = dark ? "light" : "dark";
    },
    print: () => print(),
    csv: (box, named) => save(`${named}.csv`, "text/csv", box.matches(".timeline") ? zooms.get(box)[0].csv() : csvOf(box.querySelector("table"))),
    svg: (box, named) => save(`${named}.svg`, "image/svg+xml", svgOf(box)),
    png: (box, named) => savePng(box, `${named}.png`),
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.matches(".sort")) return sortBy(button.parentElement);
    const box = button.closest("[data-name]"), what = button.dataset.do;
    if (zooms.get(box)?.[0].moves[what]) zooms.get(box).forEach((zoom) => zoom.moves[what]());
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
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest?.("[data-tip],[data-ops]");
    const words = !mark ? "" : mark.dataset.tip ?? zooms.get(mark.closest("figure")).find((zoom) => zoom.drawn === mark.closest("svg.chart")).tipAt(mark, event);
    tip.hidden = !words;
    if (!words) return;
    tip.textContent = words;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
  });
})();
