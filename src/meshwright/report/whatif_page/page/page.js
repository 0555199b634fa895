"use strict";

/* The address is the state: every control reads it and writes it, and what it says is priced by /api/price. */

const SLIDERS = ["gpus", "seq", "gbs", "mbs", "tp", "pp", "vpp", "cp", "ep"];
const DEGREES = ["tp", "pp", "vpp", "cp", "ep"];
const USEFUL = ["matmul", "attention", "head"];
const EXPLAIN_AFTER_MS = 500;

let choices = null;
let state = null;     // {model, chip, gpus, seq, gbs, precision, stack, tokens, usd, layout: {key: text}}
let pins = [];        // addresses, as query() writes them
let answer = null;    // of the last price that came
let asking = false;
let askAgain = false;
let explaining = false;
let explainTimer = 0;
let changes = 0;      // answers that come for an older change are dropped
const priced = new Map();

const byId = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const cell = (text, ...more) => make("td", {}, text, ...more);
const number = (text) => make("td", { class: "number" }, text);
const headings = (...names) => make("thead", {}, make("tr", {}, ...names.map(([text, kind]) => make("th", { scope: "col", class: kind }, text))));

// ---- the state and its address

function layoutOf(words) {
  return Object.fromEntries(words.replaceAll(" ", "+").split(",").filter(Boolean).map((word) => [word.split("=")[0], word.slice(word.indexOf("=") + 1)]));
}

function wordsOf(layout) {
  const order = [...DEGREES, "mbs", "recompute", "recompute_modules", "sharding"];
  const usual = { vpp: "1", cp: "1", ep: "1", recompute: "none" };
  const keys = [...order.filter((key) => key in layout), ...Object.keys(layout).filter((key) => !order.includes(key))];
  return keys.filter((key) => layout[key] !== usual[key]).map((key) => `${key}=${layout[key]}`).join(",");
}

function read(search) {
  const words = new URLSearchParams(search);
  const value = (name) => words.get(name) ?? choices.defaults[name] ?? "";
  const [chip, gpus] = value("cluster").split(":");
  return {
    model: value("model"), chip, gpus: Number(gpus), seq: Number(value("seq")), gbs: Number(value("gbs")), precision: value("precision"),
    stack: value("stack"), tokens: value("tokens"), usd: words.get("usd") ?? "", layout: layoutOf(value("layout")),
  };
}

function query(of) {
  const values = {
    model: of.model, cluster: `${of.chip}:${of.gpus}`, seq: of.seq, gbs: of.gbs, precision: of.precision, stack: of.stack,
    layout: wordsOf(of.layout), tokens: of.tokens, usd: of.usd,
  };
  return Object.entries(values).filter(([, value]) => String(value) !== "").map(([name, value]) => `${name}=${escaped(value)}`).join("&");
}

const escaped = (value) => encodeURIComponent(value).replaceAll("%3A", ":").replaceAll("%2C", ",").replaceAll("%3D", "=");

function keepAddress() {
  history.replaceState(null, "", `?${query(state)}${pins.map((pin) => `&pin=${encodeURIComponent(pin)}`).join("")}`);
}

// ---- controls

function slideOf(name) {
  const holder = document.querySelector(`.slide[data-name="${name}"]`);
  const label = holder.dataset.label;
  const steps = choices.steps[name];
  const range = make("input", { type: "range", id: `${name}-slider`, min: 0, max: steps.length - 1, step: 1, "aria-label": `${label}, slider` });
  const exact = make("input", { type: "number", id: name, min: 1, step: 1 });
  range.addEventListener("input", () => set(name, steps[Number(range.value)]));
  exact.addEventListener("input", () => { if (Number(exact.value) >= 1) set(name, Math.floor(Number(exact.value))); });
  holder.append(make("label", { for: name }, label), range, exact);
}

function inLayout(name) { return DEGREES.includes(name) || name === "mbs"; }

function set(name, value) {
  if (inLayout(name)) state.layout[name] = String(value);
  else state[name] = value;
  show();
  ask();
}

function valueOf(name) { return inLayout(name) ? Number(state.layout[name] ?? 1) : state[name]; }

function nearestStep(steps, value) {
  return steps.reduce((best, step, index) => (Math.abs(Math.log(step / value)) < Math.abs(Math.log(steps[best] / value)) ? index : best), 0);
}

function setOptions(select, values, chosen) {
  const list = values.includes(chosen) ? values : [...values, chosen];
  const now = Array.from(select.options, (option) => option.value);
  if (now.join() !== list.join()) select.replaceChildren(...list.map((value) => make("option", { value }, value === "" ? "as usual" : value)));
  select.value = chosen;
}

function recomputeOf(layout) { return layout.recompute_modules ?? (layout.recompute === "selective" ? "selective" : layout.recompute ?? "none"); }

function show() {
  for (const name of SLIDERS) {
    const value = valueOf(name);
    const [range, exact, steps] = [byId(`${name}-slider`), byId(name), choices.steps[name]];
    range.value = nearestStep(steps, value);
    range.setAttribute("aria-valuetext", String(value));
    if (Number(exact.value) !== value) exact.value = value;
  }
  const stack = choices.stacks.find((row) => row.name === state.stack);
  if (document.activeElement !== byId("model")) byId("model").value = state.model;
  setOptions(byId("chip"), choices.chips.map((row) => row.name), state.chip);
  setOptions(byId("precision"), choices.chips.find((row) => row.name === state.chip)?.precisions ?? choices.precisions, state.precision);
  setOptions(byId("stack"), choices.stacks.map((row) => row.name), state.stack);
  setOptions(byId("recompute"), ["none", ...(stack?.recompute_modules ?? []), "full"], recomputeOf(state.layout));
  setOptions(byId("sharding"), ["", ...choices.shardings], state.layout.sharding ?? "");
  const further = Object.keys(state.layout).filter((key) => !inLayout(key) && !["recompute", "recompute_modules", "sharding"].includes(key));
  if (document.activeElement !== byId("more")) byId("more").value = further.map((key) => `${key}=${state.layout[key]}`).join(",");
  for (const name of ["usd", "tokens"]) if (document.activeElement !== byId(name)) byId(name).value = state[name];
  const ranks = valueOf("tp") * valueOf("pp") * valueOf("cp");
  byId("dp").textContent = state.gpus % ranks ? `${state.gpus} / ${ranks} is no whole number` : String(state.gpus / ranks);
  const targets = choices.targets.filter((row) => row.stacks.length === 0 || row.stacks.includes(state.stack)).map((row) => row.name);
  setOptions(byId("target"), targets, targets.includes(byId("target").value) ? byId("target").value : targets[0]);
}

function setRecompute(word) {
  delete state.layout.recompute_modules;
  delete state.layout.recompute_layers;
  delete state.layout.recompute_method;
  state.layout.recompute = ["none", "full", "selective"].includes(word) ? word : "selective";
  if (state.layout.recompute === "selective" && word !== "selective") state.layout.recompute_modules = word;
}

function setFurther(text) {
  const kept = Object.keys(state.layout).filter((key) => inLayout(key) || ["recompute", "recompute_modules", "sharding"].includes(key));
  state.layout = { ...Object.fromEntries(kept.map((key) => [key, state.layout[key]])), ...layoutOf(text) };
}

function use(words) {
  const layout = layoutOf(words);
  delete layout.dp;
  if (layout.sp === "1" && Number(layout.tp) > 1) delete layout.sp;  // as by default
  if (layout.gbs) state.gbs = Number(layout.gbs);
  delete layout.gbs;
  state.layout = layout;
  show();
  ask();
}

// ---- asking

async function fetched(path, parameters) {
  const response = await fetch(`/api/${path}?${parameters}`);
  return response.json();
}

/* One question at a time: while one is on its way, the last of all changes waits, and the others are never asked. */
async function ask() {
  changes += 1;
  keepAddress();
  window.clearTimeout(explainTimer);
  if (asking) { askAgain = true; return; }
  asking = true;
  do {
    askAgain = false;
    const [start, change] = [performance.now(), changes];
    const asked = query(state);
    let found;
    try {
      found = await fetched("price", asked);
    } catch {
      found = { refused: "The server does not answer: it was stopped, or its machine sleeps. Start `meshwright ui` again; the address keeps this plan." };
    }
    answer = found;
    showAnswer(asked);
    const took = performance.now() - start;
    byId("speed").textContent = found.step_s ? `priced in ${took.toFixed(0)} ms` : "";
    document.body.dataset.took = took.toFixed(1);
    document.body.dataset.answered = String(change);
  } while (askAgain);
  asking = false;
  if (answer.step_s) explainTimer = window.setTimeout(explainNow, EXPLAIN_AFTER_MS, changes);
}

/* Neighbours take longer than the plan itself: they wait until nothing changes, and never pile up. */
async function explainNow(change) {
  if (explaining) { explainTimer = window.setTimeout(explainNow, EXPLAIN_AFTER_MS, change); return; }
  explaining = true;
  const found = await fetched("explain", query(state)).catch(() => null);
  explaining = false;
  if (change === changes && found && !found.refused) showNear(found);
}

// ---- what is shown

const seconds = (value) => (value >= 1 ? `${value.toPrecision(4)} s` : `${(value * 1e3).toPrecision(3)} ms`);
const dollars = (value) => (value === null ? "no price known" : `$${value >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3)}`);
const percent = (value) => `${(value * 100).toFixed(1)} %`;
const fitClass = { yes: "yes", "at risk": "risk", no: "no" };

function showAnswer(asked) {
  const good = Boolean(answer.step_s);
  for (const id of ["figures", "time", "memory", "near", "binding", "command"]) byId(id).classList.toggle("stale", !good);
  showVerdict();
  if (good) {
    showFigures();
    showTime();
    showMemory();
    byId("binding").textContent = answer.binding;
    byId("command").textContent = answer.command;
    priced.set(asked, answer);
  }
  byId("pin").disabled = !good;
  byId("export").disabled = !good;
  byId("save").disabled = !good;
  showPins();
}

function showVerdict() {
  const box = byId("verdict");
  const words = answer.refused ?? answer.broken ?? (answer.fits === "no" ? null : "");
  box.hidden = words === "";
  if (box.hidden) { box.replaceChildren(); return; }
  if (words === null) {
    box.replaceChildren(make("strong", {}, "It does not fit. "), answer.binding);
    return;
  }
  const mends = (answer.mends ?? []).map((mend) => {
    const name = mend.value === null ? `without ${mend.axis}` : `${mend.axis} = ${mend.value}`;
    return make("button", { type: "button", class: "small", onclick: () => mended(mend) }, name);
  });
  box.replaceChildren(
    make("strong", {}, answer.refused ? "This can't be priced. " : "This layout breaks a rule. "), words,
    mends.length ? make("p", { class: "row" }, "Nearest that keeps every rule:", ...mends) : "",
    make("p", { class: "quiet" }, "The figures below are of the last plan that could be priced."),
  );
}

function mended(mend) {
  if (mend.value === null) delete state.layout[mend.axis];
  else state.layout[mend.axis] = String(mend.value);
  show();
  ask();
}

function showFigures() {
  const [low, high] = answer.interval.step_s;
  const [least, most] = answer.interval.peak_memory_gib;
  const peak = Math.max(...answer.peak_memory_gib);
  const { cost, facts } = answer;
  const rows = [
    ["Step time", seconds(answer.step_s), `80 % interval ${seconds(low)} to ${seconds(high)}`],
    ["Tokens/s per GPU", Math.round(answer.tokens_per_s_per_gpu).toLocaleString("en"), `${Math.round(answer.tflops_per_gpu)} TFLOPS`],
    ["MFU", percent(answer.mfu), `${answer.micro_batches} micro batches, dp ${answer.layout.dp}`],
    ["Fullest GPU", `${peak.toFixed(1)} GiB`, `fits: ${answer.fits}, of ${facts.limit_gib.toFixed(1)}; 80 % interval ${least.toFixed(0)} to ${most.toFixed(0)}`, fitClass[answer.fits]],
    ["A billion tokens", dollars(cost.usd_per_billion_tokens), cost.usd_per_hour === null ? "give USD per chip-hour" : `at $${cost.usd_per_hour.toPrecision(3)} per chip-hour`],
  ];
  if (cost.training) {
    rows.push(["Whole training", `${cost.training.days.toPrecision(3)} days`, `${dollars(cost.training.usd)}, ${cost.training.steps.toLocaleString("en")} steps; checkpoints and failures are not in it`]);
  }
  const active = facts.active_params === facts.params ? "" : ` (${facts.active_params} active)`;
  byId("facts").textContent = `${state.model}, ${facts.params} parameters${active}, ${facts.layers} layers, on ${facts.num_chips} × ${state.chip}, ${facts.chips_per_node} a node`;
  byId("figures").replaceChildren(...rows.map(([name, value, small, kind]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, make("strong", { class: kind }, value), make("small", {}, small)))));
}

function bar(parts, limit) {
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

function showTime() {
  const largest = Math.max(...answer.terms.map((term) => term.seconds));
  const rows = answer.terms.map((term) => make("tr", {},
    make("th", { scope: "row" }, term.title, make("small", { class: "unseen" }, `: ${term.what}`)),
    number(seconds(term.seconds)), number(percent(term.share)),
    cell(bar([[Math.max(0, term.seconds) / largest, USEFUL.includes(term.term) ? "useful" : "loss"]]), make("small", {}, term.bound))));
  byId("time").replaceChildren(make("table", {}, headings(["Term"], ["Time", "number"], ["Share", "number"], ["What it waits for"]), make("tbody", {}, ...rows)));
}

function showMemory() {
  const terms = Object.keys(answer.stages[0].memory).filter((term) => answer.stages.some((stage) => stage.memory[term] > 0.005));
  const all = Object.keys(choices.memory_terms);
  const kind = (term) => `m${all.indexOf(term) % 10}`;
  const limit = answer.facts.limit_gib;
  const width = Math.max(limit * 1.04, ...answer.peak_memory_gib);
  byId("legend").replaceChildren(...terms.map((term) => make("li", { title: choices.memory_terms[term].what }, make("i", { class: kind(term) }), choices.memory_terms[term].title)),
    make("li", {}, `| the ${limit.toFixed(1)} GiB of a GPU`));
  const rows = answer.stages.map((stage) => {
    const words = terms.map((term) => `${choices.memory_terms[term].title} ${stage.memory[term].toFixed(1)}`).join(", ");
    return make("tr", { title: words },
      make("th", { scope: "row" }, String(stage.stage)), number(String(stage.layers)), make("td", { class: `number ${stage.used_gib > limit ? "no" : ""}` }, stage.used_gib.toFixed(1)),
      cell(bar(terms.map((term) => [stage.memory[term] / width, kind(term)]), limit / width), make("span", { class: "unseen" }, words)));
  });
  byId("memory").replaceChildren(make("table", {}, headings(["Stage"], ["Layers", "number"], ["GiB", "number"], ["By term"]), make("tbody", {}, ...rows)));
}

function useButton(words, name) {
  return make("td", {}, make("button", { type: "button", class: "small", onclick: () => use(words), "aria-label": `Use ${name}` }, "Use"));
}

function showNear(found) {
  const rows = found.rivals.map((rival) => {
    if (!rival.step_s) return make("tr", {}, make("th", { scope: "row" }, rival.change), number(""), number(""), number(""), cell(`breaks a rule: ${rival.reason}`), cell(""));
    const ratio = rival.step_s / found.step_s - 1;
    const why = Object.entries(rival.differences_s).slice(0, 3).map(([term, change]) => `${choices.time_terms[term].title} ${change >= 0 ? "+" : "−"}${seconds(Math.abs(change))}`);
    const over = rival.over_gib > 0 ? `does not fit, ${rival.over_gib.toFixed(1)} GiB over; ` : "";
    return make("tr", {}, make("th", { scope: "row" }, rival.change), number(seconds(rival.step_s)), number(`${ratio >= 0 ? "+" : "−"}${percent(Math.abs(ratio))}`),
      make("td", { class: `number ${rival.over_gib > 0 ? "no" : ""}` }, rival.peak_memory_gib.toFixed(1)), cell(over + why.join(", ")), useButton(rival.words, rival.change));
  });
  byId("near").replaceChildren(make("table", {}, headings(["Change"], ["Step", "number"], ["By", "number"], ["GiB", "number"], ["Why"], ["Use it"]), make("tbody", {}, ...rows)));
  byId("near").dataset.change = String(changes);
}

// ---- pins

const nameOf = (pin) => { const found = read(`?${pin}`); return `${found.model}, ${found.chip}:${found.gpus}, ${wordsOf(found.layout)}`; };

async function showPins() {
  for (const pin of pins) if (!priced.has(pin)) priced.set(pin, await fetched("price", pin).catch(() => ({ refused: "no answer" })));
  const here = query(state);
  const rows = [[here, "This plan", priced.get(here) ?? answer], ...pins.map((pin) => [pin, nameOf(pin), priced.get(pin)])].filter(([, , found]) => found);
  const base = priced.get(here);
  const cells = rows.map(([pin, name, found], index) => {
    const title = make("th", { scope: "row" }, index ? broken(name) : name);
    const buttons = index === 0 ? cell("") : make("td", {}, make("span", { class: "buttons" },
      make("button", { type: "button", class: "small", onclick: () => showDifference(pin), "aria-label": `Compare with ${name}` }, "Compare"),
      make("button", { type: "button", class: "small", onclick: () => load(pin), "aria-label": `Use ${name}` }, "Use"),
      make("button", { type: "button", class: "small", onclick: () => unpin(pin), "aria-label": `Unpin ${name}` }, "Unpin")));
    if (!found.step_s) return make("tr", {}, title, make("td", { colspan: 6 }, found.refused ?? found.broken), buttons);
    const change = base?.step_s && index ? ` ${found.step_s >= base.step_s ? "+" : "−"}${percent(Math.abs(found.step_s / base.step_s - 1))}` : "";
    return make("tr", {}, title, number(seconds(found.step_s) + change), number(Math.round(found.tokens_per_s_per_gpu).toLocaleString("en")), number(percent(found.mfu)),
      number(Math.max(...found.peak_memory_gib).toFixed(1)), make("td", { class: fitClass[found.fits] }, found.fits), number(dollars(found.cost.usd_per_billion_tokens)), buttons);
  });
  const head = headings(["Plan"], ["Step", "number"], ["Tokens/s/GPU", "number"], ["MFU", "number"], ["GiB", "number"], ["Fits"], ["$ per billion tokens", "number"], ["Do"]);
  byId("pins").replaceChildren(pins.length ? make("table", {}, head, make("tbody", {}, ...cells)) : make("p", { class: "quiet" }, "Pin a plan, change something, and compare."));
}

function pin() {
  const now = query(state);
  if (!pins.includes(now)) pins.push(now);
  keepAddress();
  showPins();
}

function unpin(gone) {
  pins = pins.filter((pin) => pin !== gone);
  byId("difference").replaceChildren();
  keepAddress();
  showPins();
}

function load(pin) {
  state = read(`?${pin}`);
  show();
  ask();
}

async function showDifference(pin) {
  const here = query(state);
  const [a, b] = [priced.get(here), priced.get(pin)];
  const found = await fetched("difference", `${here}&other=${encodeURIComponent(pin)}`);
  if (found.refused || !a?.step_s || !b?.step_s) { byId("difference").replaceChildren(make("p", {}, found.refused ?? "One of the two can't be priced.")); return; }
  const terms = [...new Set([...Object.keys(a.time), ...Object.keys(b.time)])].filter((term) => Math.abs((a.time[term] ?? 0) - (b.time[term] ?? 0)) > 1e-6);
  const sorted = terms.sort((x, y) => Math.abs((b.time[y] ?? 0) - (a.time[y] ?? 0)) - Math.abs((b.time[x] ?? 0) - (a.time[x] ?? 0)));
  const times = sorted.map((term) => {
    const change = (b.time[term] ?? 0) - (a.time[term] ?? 0);
    return make("tr", {}, make("th", { scope: "row" }, choices.time_terms[term].title), number(seconds(a.time[term] ?? 0)), number(seconds(b.time[term] ?? 0)), number(`${change >= 0 ? "+" : "−"}${seconds(Math.abs(change))}`));
  });
  const fields = found.differences.map((row) => make("tr", {}, make("th", { scope: "row" }, row.field), cell(row.a), cell(row.b), cell(row.meaning)));
  byId("difference").replaceChildren(
    make("h3", {}, `This plan beside ${nameOf(pin)}`),
    make("table", {}, headings(["Term"], ["This plan", "number"], ["The other", "number"], ["Change", "number"]), make("tbody", {}, ...times)),
    make("h3", {}, "What a run would have to do to go on as the other"),
    fields.length ? make("table", {}, headings(["Field"], ["This plan"], ["The other"], ["Meaning"]), make("tbody", {}, ...fields)) : make("p", {}, "Nothing: the layouts are the same."),
  );
}

// ---- search and export

async function search() {
  const button = byId("search");
  const [start, asked] = [performance.now(), `${state.model} on ${state.chip}:${state.gpus}, ${state.seq} tokens, batch ${state.gbs}`];
  button.disabled = true;
  byId("searched").textContent = "searching…";
  const found = await fetched("plan", query(state)).catch(() => ({ refused: "The server does not answer." }));
  button.disabled = false;
  if (found.refused) { byId("searched").textContent = found.refused; return; }
  const took = ((performance.now() - start) / 1e3).toFixed(1);
  byId("searched").textContent = `${asked}: ${found.search.layouts.toLocaleString("en")} layouts priced in ${took} s${found.plans.length ? "" : "; nothing fits"}`;
  const rows = found.plans.map((plan, index) => make("tr", {}, number(String(plan.rank)), make("th", { scope: "row" }, broken(found.words[index])), number(seconds(plan.step_s)),
    number(percent(plan.mfu)), number(Math.max(...plan.peak_memory_gib).toFixed(1)), make("td", { class: fitClass[plan.fits] }, plan.fits), useButton(found.words[index], `plan ${plan.rank}`)));
  const reasons = Object.entries(found.rejected).slice(0, 8).map(([reason, count]) => make("tr", {}, number(count.toLocaleString("en")), cell(reason)));
  byId("best").replaceChildren(rows.length
    ? make("table", {}, headings(["#", "number"], ["Layout"], ["Step", "number"], ["MFU", "number"], ["GiB", "number"], ["Fits"], ["Use it"]), make("tbody", {}, ...rows))
    : make("table", {}, headings(["Layouts", "number"], ["Why they do not do"]), make("tbody", {}, ...reasons)));
}

/* Long words may break behind a comma. */
function broken(words) {
  return make("code", {}, ...words.split(",").flatMap((word, index) => (index ? [",", make("wbr"), word] : [word])));
}

function saved(name, text, type) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function exportNow() {
  const found = await fetched("export", `${query(state)}&to=${byId("target").value}`).catch(() => ({ refused: "The server does not answer." }));
  if (found.refused) { byId("files").replaceChildren(make("p", { class: "no" }, found.refused)); return; }
  byId("files").replaceChildren(
    ...found.notes.map((note) => make("p", {}, `Note: ${note}`)),
    ...found.files.flatMap((file) => [
      make("h3", {}, file.name, " ", make("button", { type: "button", class: "small", onclick: () => saved(file.name.split("/").pop(), file.text, "text/plain"), "aria-label": `Save ${file.name}` }, "Save")),
      make("pre", { tabindex: "0", "aria-label": file.name }, file.text),
    ]));
}

async function share() {
  keepAddress();
  const said = await navigator.clipboard.writeText(window.location.href).then(() => "address copied", () => "copy it from the browser's address line");
  byId("speed").textContent = said;
}

// ---- start

async function start() {
  choices = await fetched("choices", "");
  pins = new URLSearchParams(window.location.search).getAll("pin");
  state = read(window.location.search);
  byId("models").replaceChildren(...choices.models.map((row) => make("option", { value: row.name })));
  SLIDERS.forEach(slideOf);
  byId("model").addEventListener("change", (event) => set("model", event.target.value.trim()));
  byId("model").addEventListener("input", (event) => { if (choices.models.some((row) => row.name === event.target.value)) set("model", event.target.value); });
  for (const name of ["chip", "precision", "stack"]) byId(name).addEventListener("change", (event) => set(name, event.target.value));
  for (const name of ["usd", "tokens"]) byId(name).addEventListener("change", (event) => set(name, event.target.value.trim()));
  byId("recompute").addEventListener("change", (event) => { setRecompute(event.target.value); show(); ask(); });
  byId("sharding").addEventListener("change", (event) => { if (event.target.value) state.layout.sharding = event.target.value; else delete state.layout.sharding; show(); ask(); });
  byId("more").addEventListener("change", (event) => { setFurther(event.target.value.trim()); show(); ask(); });
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("pin").addEventListener("click", pin);
  byId("share").addEventListener("click", share);
  byId("search").addEventListener("click", search);
  byId("export").addEventListener("click", exportNow);
  byId("save").addEventListener("click", () => saved("what-if.json", JSON.stringify(answer, null, 2), "application/json"));
  window.addEventListener("popstate", () => load(window.location.search.slice(1)));
  show();
  ask();
}

start();
