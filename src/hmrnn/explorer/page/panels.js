// What the pages of all domains are made of: a page that holds a sequence, and a panel for each run that reads it.

import {copyOf, darkScheme, download, Latest, oncePerFrame, slider, slopeSlider, tell, updatesOf} from "./explorer.js";
import {Stopped} from "./asking.js";

// What a run made of the sequence, and its part of the page. A domain's own panel says what it keeps of each step
// (`once`, and `perLayer` for each layer), builds the rest of its part, summarises it and draws it.
export class Panel {
  constructor(server, hello, number, page) {
    this.server = server;
    this.number = number;
    this.page = page;
    this.run = hello.runs[number];
    this.latest = new Latest(() => this.#read());
    this.draw = oncePerFrame(() => this.drawNow());
    this.clear();
    this.#build(hello.runs.length > 1);
  }

  get once() { return []; }
  get perLayer() { return ["operations", "z"]; }
  get length() { return this.data.operations[0].length; }

  clear() {
    const {hidden, detectors} = this.run, columns = n => Array.from({length: n}, () => []), detected = ["z", "z_tilde"];
    const layers = this.perLayer.map(name => [name, columns(detected.includes(name) ? detectors : hidden.length)]);
    this.data = Object.fromEntries([...this.once.map(name => [name, []]), ...layers]);
  }

  #build(several) {
    const part = copyOf(`${this.run.kind}-panel`), $ = this.$ = selector => this.element.querySelector(selector);
    this.element = part.querySelector(".panel");
    document.getElementById("panels").append(part);
    const {name, model, hidden} = this.run, [verb] = $(".generate").textContent.split(" ");
    $("h2").textContent = `${name} (${model}, ${hidden.join(" + ")} units)`;
    if (several) $(".generate").textContent = `${verb} with ${name}`;
    this.slope = slopeSlider($(".slope"), this.run, () => this.page.readAll());
    $(".generate").addEventListener("click", () => this.page.generate(this));
    $(".stop").addEventListener("click", () => this.page.stop());
    $(".segments").addEventListener("click", () => this.download("segments", "json", "application/json"));
    this.build($);
    darkScheme.addEventListener("change", this.draw);
  }

  request(kind) { return {kind, run: this.number, ...this.page.content(this), ...this.slope()}; }

  async download(kind, ending, type, more = {}) {
    const named = answer => download(`${this.run.name}.${ending}`, answer.file, type);
    await this.page.trying(this.server.ask({...this.request(kind), ...more}, named));
  }

  read() { return this.latest.want(true); }

  async #read() {
    if (this.page.empty) this.clear();
    try {
      await this.ask(this.request("read"));
    } catch (error) {
      if (!(error instanceof Stopped)) tell(error.message);
    }
    this.show();
  }

  ask(request) { return this.server.ask(request, answer => this.take(answer)); }

  // Steps from `start` on take the place of what was there.
  take(answer) {
    if (answer.start > this.length) return;  // what lies before was never read: a later answer tells all
    const put = (column, values = []) => { column.length = answer.start; for (const value of values) column.push(value); };
    for (const name of this.once) put(this.data[name], answer[name]);
    for (const name of this.perLayer) this.data[name].forEach((column, l) => put(column, answer[name]?.[l]));
    this.show();
  }

  show() {
    this.$(".summary").textContent = `${this.summary()}; ${updatesOf(this.data.operations, this.length)}`;
    this.draw();
  }

  // How often each detector fired.
  ends() { return this.data.z.map((column, l) => `layer ${l + 1}: ${sum(column)} ends`).join("; "); }
}

// Of segments that follow each other: those of hmrnn/show/style.py, on paper and on a dark screen.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const DARK_COLOURS = ["#56b4e9", "#f08c3c", "#2fc79a", "#e0a3c5", "#f0e442", "#a98bf0"];

// What to draw with: a domain's own colours in the scheme of the page, and those of segments.
export const coloursOf = (light, dark) => darkScheme.matches ? {...dark, segments: DARK_COLOURS} : {...light, segments: COLOURS};

// A canvas as large as it is seen, with nothing on it: its context, in CSS pixels.
export function cleared(canvas) {
  const pixels = devicePixelRatio, context = canvas.getContext("2d");
  canvas.width = Math.round(canvas.clientWidth * pixels);  // which clears it
  canvas.height = Math.round(canvas.clientHeight * pixels);
  context.scale(pixels, pixels);
  return context;
}

export const sum = column => column.reduce((a, b) => a + b, 0);

// What is read by all panels. A domain's own page says what that is (`content`, `empty`), what else to ask for when a run
// goes on with it (`wanted`), what becomes of that (`add`), and what a file has (`open`).
export class Page {
  #making = null;  // the panel that is generating
  #stopped = false;

  constructor(server, hello, Panel) {
    this.server = server;
    this.length = slider(document.getElementById("new"));
    this.build(hello);
    this.panels = hello.runs.map((_, number) => new Panel(server, hello, number, this));
    document.getElementById("file").addEventListener("change", event => this.trying(this.#open(event.target)));
    document.addEventListener("keydown", event => { if (event.key === "Escape") this.stop(); });
  }

  get making() { return this.#making !== null; }

  readAll() {
    if (!this.making) for (const panel of this.panels) panel.read();
  }

  async trying(promise) {
    try { await promise; } catch (error) { tell(error.message); }
  }

  async #open(input) {
    const [file] = input.files;
    input.value = "";  // so that the same file can be opened again
    if (file) await this.open(file);
  }

  stop() {
    this.#stopped = true;  // what was not yet asked for is not asked for
    if (this.#making) this.server.stop(this.#making.number);
  }

  // What a run makes is added as it comes, and then read by all.
  async generate(panel) {
    if (this.making) return;
    tell("");
    this.#begin(panel);
    await panel.read();
    const request = {...panel.request("generate"), ...this.wanted(), new: +this.length.value};
    if (!this.#stopped) await this.trying(this.server.ask(request, answer => {
      this.add(answer, panel);
      panel.take(answer);
      for (const other of this.panels) if (other !== panel) other.read();
    }));
    this.#begin(null);
    this.readAll();
  }

  #begin(panel) {
    this.#making = panel;
    this.#stopped = false;
    for (const each of this.panels) {
      each.$(".generate").disabled = panel !== null;
      each.$(".stop").disabled = each !== panel;
    }
  }
}

// A page whose sequence is a list that grows, and can be cleared.
export class ListPage extends Page {
  items = [];

  build() {
    this.bias = slider(document.getElementById("bias"));
    document.getElementById("clear").addEventListener("click", () => this.change([]));
  }

  get empty() { return this.items.length === 0; }
  wanted() { return {bias: +this.bias.value}; }

  change(items) {
    if (this.making) return;
    tell("");
    this.items = items;
    this.readAll();
  }
}
