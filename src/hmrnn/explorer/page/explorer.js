// Starts the page of the runs' domain, and holds what the pages of all domains use.

import {Server} from "./asking.js";

const status = document.getElementById("status");
export const tell = message => { status.textContent = message; };
export const copyOf = id => document.getElementById(id).content.cloneNode(true);
export const darkScheme = matchMedia("(prefers-color-scheme: dark)");

export function download(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], {type}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Shows a slider's value beside it.
export function slider(input, changed = () => {}) {
  const show = () => { input.parentElement.querySelector("output").textContent = input.value; };
  input.addEventListener("input", () => { show(); changed(); });
  show();
  return input;
}

// The slope to ask for: none, which is the run's own, until the slider was moved.
export function slopeSlider(label, run, changed) {
  const input = label.querySelector("input");
  let moved = false;
  label.hidden = run.slope === null;
  if (run.slope === null) return () => ({});
  input.value = run.slope;
  slider(input, () => { moved = true; changed(); });
  label.querySelector("output").textContent = +run.slope.toFixed(2);  // as trained, whether or not the slider has that place
  if (run.boundary === "step") label.title = "It sharpens z~. Where z~ crosses one half, and so the boundaries, stays.";
  return () => moved ? {slope: +input.value} : {};
}

// Calls f before the next picture, however often it was asked to.
export function oncePerFrame(f) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; f(); });
  };
}

// What is wanted last is asked for next, and never two things at once.
export class Latest {
  #wanted = null;
  #running = null;

  constructor(ask) { this.ask = ask; }

  want(what) {
    this.#wanted = what;
    this.#running ??= this.#run();
    return this.#running;
  }

  async #run() {
    while (this.#wanted !== null) {
      const what = this.#wanted;
      this.#wanted = null;
      await this.ask(what);
    }
    this.#running = null;
  }
}

export const updatesOf = (operations, n) => {
  const layers = operations.map(column => column.reduce((sum, done) => sum + (done !== 1), 0)), all = n * layers.length;
  const saved = all ? 100 * (1 - layers.reduce((a, b) => a + b, 0) / all) : 0;
  const each = `${n.toLocaleString("en")} steps × ${layers.length} layers`;
  return `${layers.map(count => count.toLocaleString("en")).join(" / ")} updates of ${all.toLocaleString("en")} (${each}): ${saved.toFixed(0)} % saved by COPY`;
};

let page = null, runs = null;
const server = new Server(async hello => {
  tell("");
  const before = runs;
  runs = JSON.stringify(hello);
  if (before !== null && before !== runs) location.reload();  // another explorer has taken the place of the one before
  if (page) { page.readAll(); return; }
  const kind = hello.runs[0].kind;
  const {start} = await import(`./${kind}.js`);
  const main = document.getElementById("main");
  main.append(copyOf(`${kind}-page`));
  document.getElementById("panels").classList.toggle("two", hello.runs.length === 2);
  document.title = `${hello.runs.map(run => run.name).join(" and ")} – hmrnn explorer`;
  page = start(server, hello);
  page.readAll();
}, tell);
