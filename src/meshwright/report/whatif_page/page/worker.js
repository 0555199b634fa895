/* Python in this browser: the same code that the command runs, on arrays of its own (there is no numpy here). */

const here = new URL("core/", import.meta.url);
const asked = [];
let reply = null;

/* The compiled Python is kept packed, as not every host packs what it sends. */
const plainFetch = self.fetch.bind(self);
async function unpacked(name) {
  const found = await plainFetch(new URL(name, here));
  if (!found.ok) throw new Error(`${name}: the host answers ${found.status}`);
  const bytes = new Uint8Array(await found.arrayBuffer());
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;  // the host has unpacked it
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
}
self.fetch = async (address, options) => {
  const name = String(address.url ?? address).split("/").pop();
  if (name !== "pyodide.asm.wasm") return plainFetch(address, options);
  return new Response(await unpacked("pyodide.asm.wasm.gz"), { headers: { "content-type": "application/wasm" } });
};

const START = `
import sys
sys.path.insert(0, "/app")
from meshwright.api.browser import start
reply = start()
`;

async function started() {
  postMessage({ said: "Python is fetched, once…" });
  const archives = ["meshwright.zip", "pydantic.zip"].map(unpacked);
  const { loadPyodide } = await import(new URL("pyodide.mjs", here));
  const python = await loadPyodide({ indexURL: here.href });
  postMessage({ said: "Python starts in this browser…" });
  for (const archive of archives) python.unpackArchive((await archive).buffer, "zip", { extractDir: "/app" });
  await python.runPythonAsync(START);
  reply = python.globals.get("reply");
  postMessage({ ready: true });
}

function answer({ id, name, query }) {
  let said;
  try {
    said = reply(name, query);
  } catch (error) {
    said = JSON.stringify({ refused: `Python stopped: ${String(error).trim().split("\n").pop()}` });
  }
  postMessage({ id, answer: said });
}

self.onmessage = ({ data }) => { if (reply) answer(data); else asked.push(data); };

started().then(
  () => { for (const question of asked.splice(0)) answer(question); },
  (error) => postMessage({ failed: `Python does not start in this browser: ${String(error).trim().split("\n").pop()}` }),
);
