/* Questions and their answers: of the server that the page came from, or of Python in this browser. */

const core = document.documentElement.dataset.core;  // "static": there is no server
export const isStatic = core === "static";
let first = null;  // of a static page: the choices and the price of the usual plan, made with it
const workers = {};

/* Slow questions have a worker of their own, so that a price never waits for a search. */
const SLOW = new Set(["near", "pictures", "plan", "serve", "compare", "export", "difference"]);

function startedWorker(name, told) {
  if (workers[name]) return workers[name];
  const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  const waiting = new Map();
  const made = { waiting, count: 0, isReady: false, failed: null, worker };
  made.readiness = new Promise((done) => { made.done = done; });
  worker.onmessage = ({ data }) => {
    if (data.said) told(data.said);
    if (data.ready) { made.isReady = true; told(""); }
    if (data.ready || data.failed) made.done();
    if (data.failed) {
      made.failed = data.failed;
      for (const done of waiting.values()) done({ refused: data.failed });
      waiting.clear();
    }
    if (data.id !== undefined) { waiting.get(data.id)?.(JSON.parse(data.answer)); waiting.delete(data.id); }
  };
  workers[name] = made;
  return made;
}

async function askedOfPython(path, parameters) {
  const slow = SLOW.has(path);
  if (slow) await startedWorker("quick", progress).readiness;  // one start of Python at a time
  const own = startedWorker(slow ? "slow" : "quick", slow ? () => {} : progress);
  if (own.failed) return Promise.resolve({ refused: own.failed });
  return new Promise((done) => {
    own.count += 1;
    own.waiting.set(own.count, done);
    own.worker.postMessage({ id: own.count, name: path, query: parameters });
  });
}

let progress = () => {};
export function onProgress(told) { progress = told; }

export async function fetched(path, parameters) {
  if (!isStatic) return (await fetch(`api/${path}?${parameters}`)).json();
  first ??= await (await fetch("first.json")).json();
  if (path === "choices") {
    startedWorker("quick", progress);
    return first.choices;
  }
  return askedOfPython(path, parameters);
}

/* The price of the usual plan was made with a static page, and is shown while Python starts. */
export function knownPrice(isUsual) {
  return isStatic && isUsual && !workers.quick?.isReady ? first.price : null;
}
