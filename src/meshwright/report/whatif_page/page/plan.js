/* One plan: its figures, what its time and memory go to, its pictures, and what differs by one step. */

import { bar, byId, cell, dollars, drawing, figures, fitClass, headings, make, number, percent, seconds, table, whole } from "./shown.js";
import { clusterOf, page } from "./state.js";

const USEFUL = ["matmul", "attention", "head"];
const PARTS = ["facts", "figures", "binding", "command", "time", "memory", "legend", "machine", "pipeline", "moves", "near", "rank-said"];

/* Nothing stays that another plan's name stands over. */
export function clearPlan() {
  for (const id of PARTS) byId(id).replaceChildren();
  page.answer = null;
}

export function showPlan() {
  showFigures();
  showTime();
  showMemory();
  byId("binding").textContent = page.answer.binding;
  byId("command").textContent = page.answer.command;
}

function showFigures() {
  const { answer, state } = page;
  const [low, high] = answer.interval.step_s;
  const [least, most] = answer.interval.peak_memory_gib;
  const peak = Math.max(...answer.peak_memory_gib);
  const { cost, facts } = answer;
  const price = cost.usd_per_hour ? `at $${cost.usd_per_hour.toPrecision(3)} per chip-hour` : cost.usd_per_step === null ? (answer.is_mixed ? "no list price of every kind" : "give USD per chip-hour") : "by each kind's price";
  const rows = [
    ["Step time", seconds(answer.step_s), `80 % interval ${seconds(low)} to ${seconds(high)}`],
    ["Tokens/s per GPU", whole(answer.tokens_per_s_per_gpu), `${Math.round(answer.tflops_per_gpu)} TFLOPS`],
    ["MFU", percent(answer.mfu), `${answer.micro_batches} micro batches, dp ${answer.layout.dp}`],
    ["Fullest GPU", `${peak.toFixed(1)} GiB`, `fits: ${answer.fits}, of ${facts.limit_gib.toFixed(1)}; 80 % interval ${least.toFixed(0)} to ${most.toFixed(0)}`, fitClass[answer.fits]],
    ["A billion tokens", dollars(cost.usd_per_billion_tokens), price],
  ];
  if (cost.training) {
    rows.push(["Whole training", `${cost.training.days.toPrecision(3)} days`, `${dollars(cost.training.usd)}, ${cost.training.steps.toLocaleString("en")} steps; checkpoints and failures are not in it`]);
  }
  const active = facts.active_params === facts.params ? "" : ` (${facts.active_params} active)`;
  const node = facts.chips_per_node ? `, ${facts.chips_per_node} a node` : "";
  const on = answer.is_mixed ? clusterOf(state).replaceAll(",", " and ") : `${facts.num_chips} × ${state.chip}`;
  byId("facts").textContent = `${state.model}, ${facts.params} parameters${active}, ${facts.layers} layers, on ${on}${node}`;
  figures(byId("figures"), rows);
}

function showTime() {
  const { terms } = page.answer;
  const largest = Math.max(...terms.map((term) => term.seconds));
  const rows = terms.map((term) => make("tr", {},
    make("th", { scope: "row" }, term.title, make("small", { class: "unseen" }, `: ${term.what}`)),
    number(seconds(term.seconds)), number(percent(term.share)),
    cell(bar([[Math.max(0, term.seconds) / largest, USEFUL.includes(term.term) ? "useful" : "loss"]]), make("small", {}, term.bound))));
  byId("time").replaceChildren(table([["Term"], ["Time", "number"], ["Share", "number"], ["What it waits for"]], rows));
}

function showMemory() {
  const { answer, choices } = page;
  const terms = Object.keys(answer.stages[0].memory).filter((term) => answer.stages.some((stage) => stage.memory[term] > 0.005));
  const all = Object.keys(choices.memory_terms);
  const kind = (term) => `m${all.indexOf(term) % 10}`;
  const limit = answer.facts.limit_gib;
  const width = Math.max(limit * 1.04, ...answer.peak_memory_gib);
  byId("legend").replaceChildren(...terms.map((term) => make("li", { title: choices.memory_terms[term].what }, make("i", { class: kind(term) }), choices.memory_terms[term].title)),
    make("li", {}, `| the ${limit.toFixed(1)} GiB of a GPU`));
  const rows = answer.stages.map((stage) => {
    const words = terms.map((term) => `${choices.memory_terms[term].title} ${stage.memory[term].toFixed(1)}`).join(", ");
    const parts = terms.length ? terms.map((term) => [stage.memory[term] / width, kind(term)]) : [[stage.used_gib / width, "useful"]];
    return make("tr", { title: words },
      make("th", { scope: "row" }, `${stage.stage}${stage.chip ? `, ${stage.chip}` : ""}`), number(String(stage.layers)),
      make("td", { class: `number ${stage.used_gib > limit ? "no" : ""}` }, stage.used_gib.toFixed(1)),
      cell(bar(parts, limit / width), make("span", { class: "unseen" }, words)));
  });
  byId("memory").replaceChildren(table([["Stage"], ["Layers", "number"], ["GiB", "number"], ["By term"]], rows));
}

export function useButton(words, name, use) {
  return make("td", {}, make("button", { type: "button", class: "small", onclick: () => use(words), "aria-label": `Use ${name}` }, "Use"));
}

export function showNear(found, use) {
  const titles = page.choices.time_terms;
  const rows = found.rivals.map((rival) => {
    if (!rival.step_s) return make("tr", {}, make("th", { scope: "row" }, rival.change), number(""), number(""), number(""), cell(`breaks a rule: ${rival.reason}`), cell(""));
    const ratio = rival.step_s / found.step_s - 1;
    const why = Object.entries(rival.differences_s).slice(0, 3).map(([term, change]) => `${titles[term].title} ${change >= 0 ? "+" : "−"}${seconds(Math.abs(change))}`);
    const over = rival.over_gib > 0 ? `does not fit, ${rival.over_gib.toFixed(1)} GiB over; ` : "";
    return make("tr", {}, make("th", { scope: "row" }, rival.change), number(seconds(rival.step_s)), number(`${ratio >= 0 ? "+" : "−"}${percent(Math.abs(ratio))}`),
      make("td", { class: `number ${rival.over_gib > 0 ? "no" : ""}` }, rival.peak_memory_gib.toFixed(1)), cell(over + why.join(", ")), useButton(rival.words, rival.change, use));
  });
  byId("near").replaceChildren(table([["Change"], ["Step", "number"], ["By", "number"], ["GiB", "number"], ["Why"], ["Use it"]], rows));
  byId("near").dataset.change = String(page.changes);
}

// ---- pictures

const MOVES = [["opening", "Warm-up"], ["whole", "Whole step"], ["in", "Closer"], ["out", "Wider"], ["left", "Earlier"], ["right", "Later"]];
let map = null;

export const wideOf = () => Math.max(300, Math.min(1400, Math.floor(byId("machine").clientWidth || 900)));

export function showPictures(found) {
  const pictures = globalThis.meshwrightPictures;
  drawing(byId("machine"), found.machine);
  map = pictures.machine(byId("machine"), (words, rank) => { byId("rank-said").textContent = words; byId("rank").value = rank; });
  map.show(Math.min(Number(byId("rank").value) || 0, page.answer.facts.num_chips - 1));
  byId("moves").replaceChildren();
  if (!found.pipeline.startsWith("<")) {
    byId("pipeline").replaceChildren(make("p", { class: "quiet" }, found.pipeline));
  } else {
    drawing(byId("pipeline"), found.pipeline);
    const moves = pictures.timeline(byId("pipeline")).moves;
    byId("moves").replaceChildren(...MOVES.map(([name, title]) => make("button", { type: "button", class: "small", onclick: () => moves[name]() }, title)));
  }
  byId("machine").dataset.change = String(page.changes);
}

export function showRank(rank) { if (map && rank !== "") map.show(Number(rank)); }
