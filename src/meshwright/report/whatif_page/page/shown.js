/* Pieces of pages, and numbers in words. */

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const cell = (text, ...more) => make("td", {}, text, ...more);
export const number = (text) => make("td", { class: "number" }, text);
export const headings = (...names) => make("thead", {}, make("tr", {}, ...names.map(([text, kind]) => make("th", { scope: "col", class: kind }, text))));
export const table = (names, rows) => make("table", {}, headings(...names), make("tbody", {}, ...rows));

export const seconds = (value) => (value >= 1 ? `${value.toPrecision(4)} s` : `${(value * 1e3).toPrecision(3)} ms`);
export const dollars = (value) => (value === null || value === undefined ? "no price known" : `$${value >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3)}`);
export const percent = (value) => `${(value * 100).toFixed(1)} %`;
export const whole = (value) => Math.round(value).toLocaleString("en");
export const fitClass = { yes: "yes", "at risk": "risk", no: "no" };

export function setOptions(select, values, chosen, empty = "as usual") {
  const list = values.includes(chosen) ? values : [...values, chosen];
  const now = Array.from(select.options, (option) => option.value);
  if (now.join() !== list.join()) select.replaceChildren(...list.map((value) => make("option", { value }, value === "" ? empty : value)));
  select.value = chosen;
}

/* Long words may break behind a comma. */
export function broken(words) {
  return make("code", {}, ...words.split(",").flatMap((word, index) => (index ? [",", make("wbr"), word] : [word])));
}

export function bar(parts, limit) {
  const holder = make("div", { class: "bar", "aria-hidden": "true" });
  for (const [share, kind] of parts) {
    const part = make("i", { class: kind });
    part.style.width = `${100 * share}%`;
    holder.append(part);
  }
  if (limit !== undefined) {
    const mark = make("b");
    mark.style.left = `${100 * limit}%`;
    holder.append(mark);
  }
  return holder;
}

export function figures(list, rows) {
  list.replaceChildren(...rows.map(([name, value, small, kind]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, make("strong", { class: kind }, value), make("small", {}, small)))));
}

export function saved(name, text, type) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/* A drawing that Python made. Its styles are set by the scripts of pictures: the page allows none in text. */
export function drawing(holder, svg) {
  const found = new DOMParser().parseFromString(svg.replace(/ style="[^"]*"/g, ""), "text/html").querySelector("svg");
  holder.replaceChildren(found);
  return found;
}
