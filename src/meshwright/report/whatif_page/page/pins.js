/* Plans that are kept beside this one, and what sets two apart. */

import { fetched } from "./asked.js";
import { broken, byId, cell, dollars, fitClass, make, number, percent, seconds, table, whole } from "./shown.js";
import { clusterOf, keepAddress, page, query, read, wordsOf } from "./state.js";

const nameOf = (pin) => { const found = read(`?${pin}`); return `${found.model}, ${clusterOf(found)}${found.chip2 ? "" : `, ${wordsOf(found.layout)}`}`; };

export async function showPins(load) {
  const { pins, priced } = page;
  for (const pin of pins) if (!priced.has(pin)) priced.set(pin, await fetched("price", pin).catch(() => ({ refused: "no answer" })));
  const here = query(page.state);
  const base = page.answer?.step_s ? page.answer : null;
  const rows = [[here, "This plan", base], ...pins.map((pin) => [pin, nameOf(pin), priced.get(pin)])].filter(([, , found]) => found);
  const cells = rows.map(([pin, name, found], index) => {
    const title = make("th", { scope: "row" }, index || !base ? broken(name) : name);
    const buttons = name === "This plan" ? cell("") : make("td", {}, make("span", { class: "buttons" },
      make("button", { type: "button", class: "small", onclick: () => showDifference(pin), "aria-label": `Compare with ${name}` }, "Compare"),
      make("button", { type: "button", class: "small", onclick: () => load(pin), "aria-label": `Use ${name}` }, "Use"),
      make("button", { type: "button", class: "small", onclick: () => unpin(pin, load), "aria-label": `Unpin ${name}` }, "Unpin")));
    if (!found.step_s) return make("tr", {}, title, make("td", { colspan: 6 }, found.refused ?? found.broken), buttons);
    const change = base && index ? ` ${found.step_s >= base.step_s ? "+" : "−"}${percent(Math.abs(found.step_s / base.step_s - 1))}` : "";
    return make("tr", {}, title, number(seconds(found.step_s) + change), number(whole(found.tokens_per_s_per_gpu)), number(percent(found.mfu)),
      number(Math.max(...found.peak_memory_gib).toFixed(1)), make("td", { class: fitClass[found.fits] }, found.fits), number(dollars(found.cost.usd_per_billion_tokens)), buttons);
  });
  const names = [["Plan"], ["Step", "number"], ["Tokens/s/GPU", "number"], ["MFU", "number"], ["GiB", "number"], ["Fits"], ["$ per billion tokens", "number"], ["Do"]];
  byId("pins").replaceChildren(pins.length ? table(names, cells) : make("p", { class: "quiet" }, "Pin a plan, change something, and compare."));
}

export function pin(load) {
  const now = query(page.state);
  if (!page.pins.includes(now)) page.pins.push(now);
  if (page.answer?.step_s) page.priced.set(now, page.answer);
  keepAddress();
  showPins(load);
}

function unpin(gone, load) {
  page.pins = page.pins.filter((pin) => pin !== gone);
  byId("difference").replaceChildren();
  keepAddress();
  showPins(load);
}

async function showDifference(pin) {
  const here = query(page.state);
  const [a, b] = [page.answer, page.priced.get(pin)];
  if (!a?.step_s || !b?.step_s) { byId("difference").replaceChildren(make("p", {}, "One of the two can't be priced.")); return; }
  const terms = [...new Set([...Object.keys(a.time), ...Object.keys(b.time)])].filter((term) => Math.abs((a.time[term] ?? 0) - (b.time[term] ?? 0)) > 1e-6);
  const sorted = terms.sort((x, y) => Math.abs((b.time[y] ?? 0) - (a.time[y] ?? 0)) - Math.abs((b.time[x] ?? 0) - (a.time[x] ?? 0)));
  const times = sorted.map((term) => {
    const change = (b.time[term] ?? 0) - (a.time[term] ?? 0);
    return make("tr", {}, make("th", { scope: "row" }, page.choices.time_terms[term].title), number(seconds(a.time[term] ?? 0)), number(seconds(b.time[term] ?? 0)), number(`${change >= 0 ? "+" : "−"}${seconds(Math.abs(change))}`));
  });
  const found = a.is_mixed || b.is_mixed ? { refused: "Plans over several kinds of chips are compared by their times alone." } : await fetched("difference", `${here}&other=${encodeURIComponent(pin)}`);
  const fields = (found.differences ?? []).map((row) => make("tr", {}, make("th", { scope: "row" }, row.field), cell(row.a), cell(row.b), cell(row.meaning)));
  byId("difference").replaceChildren(
    make("h3", {}, `This plan beside ${nameOf(pin)}`),
    make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Differences of time" }, table([["Term"], ["This plan", "number"], ["The other", "number"], ["Change", "number"]], times)),
    make("h3", {}, "What a run would have to do to go on as the other"),
    fields.length ? make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Differences of layout" }, table([["Field"], ["This plan"], ["The other"], ["Meaning"]], fields)) : make("p", {}, found.refused ?? "Nothing: the layouts are the same."),
  );
}
