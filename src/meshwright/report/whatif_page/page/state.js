/* What is chosen, and the address that says it. */

export const SLIDERS = ["gpus", "seq", "gbs", "mbs", "tp", "pp", "vpp", "cp", "ep"];
export const DEGREES = ["tp", "pp", "vpp", "cp", "ep"];
const PLAIN = ["what", "model", "seq", "gbs", "precision", "stack", "finetune", "tokens", "usd", "input", "output", "ttft", "tpot", "clusters"];
const NUMBERS = ["seq", "gbs", "input", "output"];

export const page = {
  choices: null,
  state: null,    // of PLAIN, with chip, gpus, chip2, gpus2, layout: {key: text}
  wish: 0,        // the batch that was set by hand: it comes back where replicas divide it again
  pins: [],       // addresses, as query() writes them
  answer: null,   // of the last price that came
  changes: 0,     // answers that come for an older change are dropped
  priced: new Map(),
};

export function layoutOf(words) {
  return Object.fromEntries(words.replaceAll(" ", "+").split(",").filter(Boolean).map((word) => [word.split("=")[0], word.slice(word.indexOf("=") + 1)]));
}

export function wordsOf(layout) {
  const order = [...DEGREES, "mbs", "recompute", "recompute_modules", "sharding"];
  const usual = { vpp: "1", cp: "1", ep: "1", recompute: "none" };
  const keys = [...order.filter((key) => key in layout), ...Object.keys(layout).filter((key) => !order.includes(key))];
  return keys.filter((key) => layout[key] !== usual[key]).map((key) => `${key}=${layout[key]}`).join(",");
}

export function read(search) {
  const words = new URLSearchParams(search);
  const value = (name) => words.get(name) ?? page.choices.defaults[name] ?? "";
  const [[chip, gpus], [chip2, gpus2] = ["", ""]] = value("cluster").split(",").map((part) => part.split(":"));
  const plain = Object.fromEntries(PLAIN.map((name) => [name, NUMBERS.includes(name) ? Number(value(name)) : String(value(name))]));
  return { ...plain, chip, gpus: Number(gpus), chip2, gpus2: Number(gpus2) || 8, layout: layoutOf(value("layout")) };
}

export const clusterOf = (of) => `${of.chip}:${of.gpus}${of.chip2 ? `,${of.chip2}:${of.gpus2}` : ""}`;

export function query(of) {
  const values = { ...Object.fromEntries(PLAIN.map((name) => [name, of[name]])), cluster: clusterOf(of), layout: wordsOf(of.layout) };
  const usual = page.choices.defaults;
  const said = ["model", "cluster", "seq", "gbs", "layout"];  // an address says these at least
  return [...said, ...PLAIN.filter((name) => !said.includes(name))]
    .filter((name) => said.includes(name) || String(values[name]) !== String(usual[name] ?? ""))
    .filter((name) => String(values[name]) !== "")
    .map((name) => `${name}=${escaped(values[name])}`).join("&");
}

const escaped = (value) => encodeURIComponent(value).replaceAll("%3A", ":").replaceAll("%2C", ",").replaceAll("%3D", "=");

export function keepAddress() {
  history.replaceState(null, "", `?${query(page.state)}${page.pins.map((pin) => `&pin=${encodeURIComponent(pin)}`).join("")}`);
}

export const isMixed = () => Boolean(page.state.chip2);
export const inLayout = (name) => DEGREES.includes(name) || name === "mbs";
export const valueOf = (name) => (inLayout(name) ? Number(page.state.layout[name] ?? 1) : page.state[name]);

export function setLayout(words) {
  const layout = layoutOf(words);
  delete layout.dp;
  if (layout.sp === "1" && Number(layout.tp) > 1) delete layout.sp;  // as by default
  if (layout.gbs) page.state.gbs = page.wish = Number(layout.gbs);
  delete layout.gbs;
  page.state.layout = layout;
}
