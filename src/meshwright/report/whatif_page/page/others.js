/* Serving a model, and comparing clusters for one training. */

import { fetched } from "./asked.js";
import { broken, byId, cell, dollars, figures, make, number, seconds, table, whole } from "./shown.js";
import { clusterOf, page, query } from "./state.js";

const SVG = "http://www.w3.org/2000/svg";

export function clearOthers() {
  for (const id of ["serve-facts", "serve-figures", "front", "deployments", "serve-command", "compare-facts", "compared", "compare-command"]) byId(id).replaceChildren();
}

export async function showOther() {
  const change = page.changes;
  const { what } = page.state;
  const asked = query(page.state);
  byId(`${what}-facts`).textContent = "searching…";
  const found = await fetched(what, asked).catch(() => ({ refused: "The server does not answer: start `meshwright ui` again; the address keeps what is asked." }));
  if (change !== page.changes) return null;
  clearOthers();
  if (!found.refused) (what === "serve" ? showServe : showCompare)(found);
  return found;
}

const partWords = (part) => Object.entries(part.layout).filter(([, size]) => size > 1).map(([axis, size]) => `${axis}=${size}`).join(",") || "one chip each";
const nameOf = (plan) => plan.parts.map((part) => `${part.workers} × ${partWords(part)}${plan.parts.length > 1 ? ` for ${part.role}` : ""}`).join("; ");

function showServe(found) {
  const { state } = page;
  const best = found.plans[0];
  byId("serve-facts").textContent = `${state.model} on ${clusterOf(state)}, prompts of ${whole(state.input)} and answers of ${whole(state.output)} tokens`;
  byId("serve-command").textContent = `meshwright serving plan ${state.model} --cluster ${clusterOf(state)} --isl ${state.input} --osl ${state.output}${state.ttft ? ` --ttft ${state.ttft}s` : ""}${state.tpot ? ` --tpot ${state.tpot}s` : ""}`;
  if (!best) {
    const near = Object.entries(found.nearest).map(([name, plan]) => make("li", {}, `${name}: ${nameOf(plan)}, first token ${seconds(plan.ttft_s)}, next ${seconds(plan.tpot_s)}`));
    byId("deployments").replaceChildren(make("p", { class: "no" }, "No deployment keeps these limits. The nearest:"), make("ul", {}, ...near));
    return;
  }
  const between = (name) => { const [low, high] = best.intervals[name] ?? []; return low === undefined ? "" : `80 % interval ${name.endsWith("_s") ? `${seconds(low)} to ${seconds(high)}` : `${whole(low)} to ${whole(high)}`}`; };
  figures(byId("serve-figures"), [
    ["New tokens/s per GPU", whole(best.tokens_per_s_per_gpu), between("tokens_per_s_per_gpu")],
    ["First token", seconds(best.ttft_s), between("ttft_s")],
    ["Each later token", seconds(best.tpot_s), between("tpot_s")],
    ["Requests under way", whole(best.concurrency), `${best.requests_per_s.toPrecision(3)} requests/s`],
    ["A million tokens", dollars(best.usd_per_million_tokens), `${best.weights} weights, ${best.cache} cache`],
  ]);
  byId("front").replaceChildren(frontOf(found));
  const rows = found.plans.slice(0, 12).map((plan) => make("tr", {}, number(String(plan.rank)), make("th", { scope: "row" }, nameOf(plan)), cell(`${plan.weights}, ${plan.cache} cache`),
    number(whole(plan.tokens_per_s_per_gpu)), number(plan.tokens_per_s_per_user.toPrecision(3)), number(seconds(plan.ttft_s)), number(seconds(plan.tpot_s)), number(whole(plan.concurrency)),
    number(Math.max(...plan.parts.map((part) => part.peak_memory_gib)).toFixed(1)), number(dollars(plan.usd_per_million_tokens))));
  byId("deployments").replaceChildren(table([["#", "number"], ["Workers"], ["Weights"], ["Tokens/s/GPU", "number"], ["per user", "number"], ["First token", "number"], ["Next", "number"], ["Requests", "number"], ["GiB", "number"], ["$ per million", "number"]], rows));
}

/* Tokens per second of a GPU against those of a user: no deployment has more of both than these. */
function frontOf(found) {
  const add = (parent, name, words, text) => {
    const one = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(words)) one.setAttribute(key, value);
    if (text !== undefined) one.textContent = text;
    parent.append(one);
    return one;
  };
  const wide = Math.max(300, Math.min(900, byId("front").clientWidth || 700));
  const [left, right, top, below] = [64, wide - 16, 22, 216];
  const points = found.pareto.map((plan) => [plan.tokens_per_s_per_user, plan.tokens_per_s_per_gpu, plan]);
  const most = [0, 1].map((axis) => 1.06 * Math.max(...points.map((point) => point[axis])));
  const x = (value) => left + (value / most[0]) * (right - left);
  const y = (value) => below - (value / most[1]) * (below - top);
  const chart = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({ viewBox: `0 0 ${wide} 256`, class: "chart", role: "img", "aria-label": `${points.length} deployments of which no other has more tokens per second for a GPU and for a user` })) chart.setAttribute(key, value);
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const [at, level] = [share * most[0] / 1.06, share * most[1] / 1.06];
    add(chart, "path", { class: "rule", d: `M${left} ${y(level).toFixed(1)}H${right}` });
    add(chart, "text", { class: "soft", x: left - 6, y: (y(level) + 4).toFixed(1), "text-anchor": "end" }, tick(level));
    add(chart, "text", { class: "soft", x: x(at).toFixed(1), y: below + 18, "text-anchor": share === 1 ? "end" : "middle" }, tick(at));
  }
  add(chart, "text", { class: "soft", x: 0, y: 12 }, "new tokens/s of a GPU");
  add(chart, "text", { class: "soft", x: right, y: below + 36, "text-anchor": "end" }, "new tokens/s of a user");
  const sorted = [...points].sort((a, b) => a[0] - b[0]);
  add(chart, "path", { class: "front", d: sorted.map(([a, b], index) => `${index ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("") });
  for (const [a, b, plan] of sorted) add(add(chart, "circle", { class: "point", cx: x(a).toFixed(1), cy: y(b).toFixed(1), r: 4 }), "title", {}, `${nameOf(plan)}, ${plan.concurrency} requests`);
  return chart;
}

const tick = (value) => (value >= 10 || value === 0 ? whole(value) : value.toPrecision(2));

function showCompare(found) {
  const { state } = page;
  byId("compare-facts").textContent = `${state.model} on ${state.tokens} tokens, each cluster with its own best plan, the cheapest first`;
  byId("compare-command").textContent = `meshwright compare ${state.model} --tokens ${state.tokens} --clusters ${state.clusters} --seq ${state.seq}`;
  const longest = Math.max(...found.rows.map((row) => row.days ?? 0));
  const rows = found.rows.map((row) => make("tr", {}, make("th", { scope: "row" }, row.cluster, row.on_front ? make("span", { class: "yes" }, " ★") : ""),
    number(row.days === null ? "nothing fits" : row.days.toPrecision(3)), cell(make("div", { class: "bar", "aria-hidden": "true" }, widthOf((row.days ?? 0) / longest))), number(dollars(row.usd)),
    number(row.kwh === null ? "" : whole(row.kwh / 1e3)), number(row.kg_co2 === null || row.kg_co2 === undefined ? "" : (row.kg_co2 / 1e3).toPrecision(3)), row.layout ? make("td", {}, broken(row.layout)) : cell("")));
  byId("compared").replaceChildren(table([["Cluster"], ["Days", "number"], ["Beside the longest"], ["USD", "number"], ["MWh", "number"], ["t CO₂", "number"], ["Its best layout"]], rows),
    make("p", { class: "quiet" }, "★ No other is both faster and cheaper."));
}

function widthOf(share) {
  const part = make("i", { class: "useful" });
  part.style.width = `${100 * share}%`;
  return part;
}
