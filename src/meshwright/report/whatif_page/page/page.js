/* The address is the state: every control reads it and writes it, and what it says is priced at once. */

import { fetched, isStatic, knownPrice, onProgress } from "./asked.js";
import { clearOthers, showOther } from "./others.js";
import { pin, showPins } from "./pins.js";
import { clearPlan, showNear, showPictures, showPlan, showRank, useButton, wideOf } from "./plan.js";
import { broken, byId, fitClass, make, number, percent, saved, seconds, setOptions, table } from "./shown.js";
import { SLIDERS, clusterOf, inLayout, isMixed, keepAddress, layoutOf, page, query, read, setLayout, valueOf } from "./state.js";

const LATER_MS = 300;
const SILENT = "The server does not answer: it was stopped, or its machine sleeps. Start `meshwright ui` again; the address keeps this plan.";
let asking = false;
let waiting = null;  // the last change while a question is on its way
let timer = 0;

// ---- controls

function slideOf(name) {
  const holder = document.querySelector(`.slide[data-name="${name}"]`);
  const label = holder.dataset.label;
  const steps = page.choices.steps[name];
  const range = make("input", { type: "range", id: `${name}-slider`, min: 0, max: steps.length - 1, step: 1, "aria-label": `${label}, slider` });
  const exact = make("input", { type: "number", id: name, min: 1, step: 1 });
  range.addEventListener("input", () => set(name, steps[Number(range.value)], { moved: name, was: valueOf(name) }));
  exact.addEventListener("input", () => { if (Number(exact.value) >= 1) set(name, Math.floor(Number(exact.value))); });
  holder.append(make("label", { for: name }, label), range, exact);
}

/* `change.moved`: other values follow; without it the plan is taken as it was typed. */
function set(name, value, change = {}) {
  if (inLayout(name)) page.state.layout[name] = String(value);
  else page.state[name] = value;
  if (name === "gbs") page.wish = value;
  changed(change);
}

/* A name was chosen: figures of the other one go at once. */
function choose(name, value) {
  if (name === "finetune") page.state.stack = value === "" ? page.choices.defaults.stack : "trl";
  if (value === "compare" && !page.state.tokens) page.state.tokens = "1T";
  clearPlan();
  clearOthers();
  set(name, value, { moved: name });
}

function changed(change = {}) {
  show();
  ask(change);
}

function nearestStep(steps, value) {
  return steps.reduce((best, step, index) => (Math.abs(Math.log(step / value)) < Math.abs(Math.log(steps[best] / value)) ? index : best), 0);
}

function recomputeOf(layout) { return layout.recompute_modules ?? (layout.recompute === "selective" ? "selective" : layout.recompute ?? "none"); }

function fill(id, value) { if (document.activeElement !== byId(id)) byId(id).value = value; }

function show() {
  const { choices, state } = page;
  for (const name of SLIDERS) {
    const value = valueOf(name);
    const [range, exact, steps] = [byId(`${name}-slider`), byId(name), choices.steps[name]];
    range.value = nearestStep(steps, value);
    range.setAttribute("aria-valuetext", String(value));
    if (Number(exact.value) !== value) exact.value = value;
  }
  for (const element of document.querySelectorAll("[data-for]")) element.hidden = !element.dataset.for.split(" ").includes(state.what);
  for (const radio of document.querySelectorAll("input[name=what]")) radio.checked = radio.value === state.what;
  const chips = choices.chips.map((row) => row.name);
  const stack = choices.stacks.find((row) => row.name === state.stack);
  setOptions(byId("chip"), chips, state.chip);
  setOptions(byId("chip2"), ["", ...chips.filter((name) => name !== state.chip)], state.chip2, "none");
  setOptions(byId("finetune"), ["", ...choices.finetunes], state.finetune, "from the start");
  setOptions(byId("precision"), choices.chips.find((row) => row.name === state.chip)?.precisions ?? choices.precisions, state.precision);
  setOptions(byId("stack"), choices.stacks.map((row) => row.name), state.stack);
  setOptions(byId("recompute"), ["none", ...(stack?.recompute_modules ?? []), "full"], recomputeOf(state.layout));
  setOptions(byId("sharding"), ["", ...choices.shardings], state.layout.sharding ?? "");
  const further = Object.keys(state.layout).filter((key) => !inLayout(key) && !["recompute", "recompute_modules", "sharding"].includes(key));
  fill("more", further.map((key) => `${key}=${state.layout[key]}`).join(","));
  for (const name of ["model", "usd", "tokens", "input", "output", "ttft", "tpot", "clusters", "gpus2"]) fill(name, state[name]);
  showMixed();
  const ranks = valueOf("tp") * valueOf("pp") * valueOf("cp");
  byId("dp").textContent = state.gpus % ranks ? `${state.gpus} / ${ranks} is no whole number` : String(state.gpus / ranks);
  const targets = choices.targets.filter((row) => row.stacks.length === 0 || row.stacks.includes(state.stack)).map((row) => row.name);
  setOptions(byId("target"), targets, targets.includes(byId("target").value) ? byId("target").value : targets[0]);
}

function showMixed() {
  const mixed = isMixed() && page.state.what === "train";
  byId("by-search").hidden = !mixed;
  byId("chip2-field").hidden = isStatic && !mixed;  // such a search needs the server
  byId("gpus2-field").hidden = !page.state.chip2;
  byId("usd-field").hidden = mixed || page.state.what === "compare";
  for (const element of document.querySelectorAll("[data-by-hand]")) element.hidden = mixed || (element.dataset.for !== undefined && page.state.what !== "train");
}

function setRecompute(word) {
  const { layout } = page.state;
  for (const key of ["recompute_modules", "recompute_layers", "recompute_method"]) delete layout[key];
  layout.recompute = ["none", "full", "selective"].includes(word) ? word : "selective";
  if (layout.recompute === "selective" && word !== "selective") layout.recompute_modules = word;
  changed({ moved: "recompute" });
}

function setFurther(text) {
  const { layout } = page.state;
  const kept = Object.keys(layout).filter((key) => inLayout(key) || ["recompute", "recompute_modules", "sharding"].includes(key));
  page.state.layout = { ...Object.fromEntries(kept.map((key) => [key, layout[key]])), ...layoutOf(text) };
  changed();
}

function use(words) {
  setLayout(words);
  changed();
}

function load(pinned) {
  page.state = read(`?${pinned}`);
  page.wish = page.state.gbs;
  changed();
}

// ---- asking

/* One question at a time: while one is on its way, the last of all changes waits, and the others are never asked. */
async function ask(change) {
  page.changes += 1;
  document.body.classList.add("asking");
  keepAddress();
  window.clearTimeout(timer);
  if (page.state.what !== "train") {
    clearPlan();
    timer = window.setTimeout(askOther, LATER_MS);
    return;
  }
  waiting = change;
  if (asking) return;
  asking = true;
  while (waiting) {
    const now = waiting;
    waiting = null;
    await askPrice(now);
  }
  asking = false;
  if (page.answer?.step_s) timer = window.setTimeout(askLater, LATER_MS, page.changes);
}

async function askPrice({ moved, was }) {
  const [start, number_] = [performance.now(), page.changes];
  const wished = moved && moved !== "gbs" ? { ...page.state, gbs: page.wish } : page.state;
  const follows = moved && !isMixed() ? `&moved=${moved}${was === undefined ? "" : `&was=${was}`}` : "";
  const known = knownPrice(query(wished) === query(read("")));
  const found = known ?? await fetched("price", query(wished) + follows).catch(() => ({ refused: SILENT }));
  if (page.state.what !== "train" || waiting) return;
  if (found.query) page.state = { ...read(`?${found.query}`) };
  page.answer = found;
  keepAddress();
  show();
  showAnswer(found);
  const took = performance.now() - start;
  byId("speed").textContent = found.step_s && !known ? `priced in ${took.toFixed(0)} ms` : known ? "Python starts in this browser…" : "";
  document.body.dataset.took = took.toFixed(1);
  document.body.dataset.answered = String(number_);
  document.body.classList.remove("asking");
}

/* Neighbours and pictures take longer than the plan itself: they wait until nothing changes. */
async function askLater(change) {
  const asked = query(page.state);
  const pictures = await fetched("pictures", `${asked}&wide=${wideOf()}`).catch(() => null);
  if (change === page.changes && pictures && !pictures.refused) showPictures(pictures);
  if (isMixed() || change !== page.changes) return;
  const found = await fetched("near", asked).catch(() => null);
  if (change === page.changes && found && !found.refused) showNear(found, use);
}

async function askOther() {
  const number_ = page.changes;
  const found = await showOther();
  if (!found) return;
  page.answer = found;
  showVerdict(found);
  byId("followed").hidden = true;
  document.body.dataset.answered = String(number_);
  document.body.classList.remove("asking");
}

// ---- what is shown

function showAnswer(found) {
  const good = Boolean(found.step_s);
  showVerdict(found);
  byId("followed").hidden = !found.followed?.length;
  byId("followed").textContent = found.followed?.length ? `So that every rule is kept: ${found.followed.join(", ")}.` : "";
  if (good) showPlan();
  else { clearPlan(); page.answer = found; }
  for (const id of ["pin", "export", "save"]) byId(id).disabled = !good;
  showPins(load);
}

function showVerdict(found) {
  const box = byId("verdict");
  const words = found.refused ?? found.broken ?? (found.fits === "no" ? null : "");
  box.hidden = !words && words !== null;
  if (box.hidden) { box.replaceChildren(); return; }
  const best = make("button", { type: "button", class: "small", onclick: takeBest }, "Take the best layout");
  if (words === null) {
    box.replaceChildren(make("strong", {}, "It does not fit. "), found.binding, make("p", { class: "row" }, best));
    return;
  }
  const mends = (found.mends ?? []).map((mend) => {
    const name = mend.value === null ? `without ${mend.axis}` : `${mend.axis} = ${mend.value}`;
    return make("button", { type: "button", class: "small", onclick: () => mended(mend) }, name);
  });
  const follow = make("button", { type: "button", class: "small", onclick: () => changed({ moved: "layout" }) }, "Let the rest follow");
  const title = found.refused ? (page.state.what === "train" ? "This can't be priced. " : "This can't be answered. ") : "This layout breaks a rule. ";
  box.replaceChildren(
    make("strong", {}, title), words,
    mends.length ? make("p", { class: "row" }, "Nearest that keeps every rule:", ...mends) : "",
    found.broken ? make("p", { class: "row" }, follow, best) : "",
  );
}

function mended(mend) {
  if (mend.value === null) delete page.state.layout[mend.axis];
  else page.state.layout[mend.axis] = String(mend.value);
  changed({ moved: mend.axis });
}

// ---- search and export

async function takeBest() {
  const button = byId("best-now");
  const { state } = page;
  const [start, asked] = [performance.now(), `${state.model} on ${clusterOf(state)}, ${state.seq} tokens, batch ${state.gbs}`];
  button.disabled = true;
  byId("speed").textContent = byId("searched").textContent = isStatic ? "searching every layout, in this browser…" : "searching…";
  const found = await fetched("plan", query(state)).catch(() => ({ refused: SILENT }));
  button.disabled = false;
  byId("speed").textContent = "";
  if (found.refused) { byId("searched").textContent = found.refused; showVerdict(found); return; }
  const took = ((performance.now() - start) / 1e3).toFixed(1);
  byId("searched").textContent = `${asked}: ${(found.search.layouts ?? 0).toLocaleString("en")} layouts priced in ${took} s${found.plans.length ? "" : "; nothing fits"}`;
  showBest(found);
  if (found.plans.length && !isMixed()) use(found.words[0]);
  if (!found.plans.length) showVerdict({ refused: `No layout fits ${clusterOf(state)}: take more GPUs, a larger chip, or a smaller model.` });
}

function showBest(found) {
  const rows = found.plans.map((plan, index) => make("tr", {}, number(String(plan.rank)), make("th", { scope: "row" }, broken(found.words[index])), number(seconds(plan.step_s)),
    number(percent(plan.mfu)), number(Math.max(...plan.peak_memory_gib).toFixed(1)), make("td", { class: fitClass[plan.fits] }, plan.fits), isMixed() ? make("td") : useButton(found.words[index], `plan ${plan.rank}`, use)));
  const reasons = Object.entries(found.rejected).slice(0, 8).map(([reason, count]) => make("tr", {}, number(count.toLocaleString("en")), make("td", {}, reason)));
  byId("best").replaceChildren(rows.length
    ? table([["#", "number"], ["Layout"], ["Step", "number"], ["MFU", "number"], ["GiB", "number"], ["Fits"], ["Use it"]], rows)
    : table([["Layouts", "number"], ["Why they do not do"]], reasons));
}

async function exportNow() {
  const found = await fetched("export", `${query(page.state)}&to=${byId("target").value}`).catch(() => ({ refused: SILENT }));
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
  byId("speed").textContent = await navigator.clipboard.writeText(window.location.href).then(() => "address copied", () => "copy it from the browser's address line");
}

// ---- start

function listen() {
  const on = (id, event, act) => byId(id).addEventListener(event, (found) => act(found.target.value.trim()));
  on("model", "change", (value) => { if (value !== page.state.model) choose("model", value); });
  on("model", "input", (value) => { if (page.choices.models.some((row) => row.name === value)) choose("model", value); });
  for (const name of ["chip", "chip2", "precision", "stack", "finetune"]) on(name, "change", (value) => choose(name, value));
  for (const name of ["usd", "tokens", "ttft", "tpot", "clusters"]) on(name, "change", (value) => set(name, value));
  for (const name of ["gpus2", "input", "output"]) on(name, "input", (value) => { if (Number(value) >= 1) set(name, Math.floor(Number(value))); });
  on("recompute", "change", setRecompute);
  on("sharding", "change", (value) => { if (value) page.state.layout.sharding = value; else delete page.state.layout.sharding; changed({ moved: "sharding" }); });
  on("more", "change", setFurther);
  on("rank", "input", showRank);
  byId("what").addEventListener("change", (event) => choose("what", event.target.value));
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("pin").addEventListener("click", () => pin(load));
  byId("share").addEventListener("click", share);
  byId("best-now").addEventListener("click", takeBest);
  byId("export").addEventListener("click", exportNow);
  byId("save").addEventListener("click", () => saved("what-if.json", JSON.stringify(page.answer, null, 2), "application/json"));
  window.addEventListener("popstate", () => load(window.location.search.slice(1)));
}

async function start() {
  onProgress((words) => { byId("speed").textContent = words; });
  if (isStatic) byId("where").textContent = "Priced by Python in this browser; nothing is sent anywhere.";
  page.choices = await fetched("choices", "");
  page.pins = new URLSearchParams(window.location.search).getAll("pin");
  page.state = read(window.location.search);
  page.wish = page.state.gbs;
  byId("models").replaceChildren(...page.choices.models.map((row) => make("option", { value: row.name })));
  SLIDERS.forEach(slideOf);
  listen();
  if (page.state.what === "compare" && !page.state.tokens) page.state.tokens = "1T";
  changed();
}

start();
