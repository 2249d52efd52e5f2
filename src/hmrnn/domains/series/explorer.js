// The page for runs on series: a series that was opened or made is read by every run, and each can go on with it.

import {copyOf, darkScheme, download, Latest, oncePerFrame, slider, slopeSlider, tell, updatesOf} from "./explorer.js";
import {Stopped} from "./asking.js";

const LIGHT = {soft: "#666666", rule: "#d8dde6", surprisal: "#d55e00", segments: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]};
const DARK = {soft: "#a0a4aa", rule: "#2c3340", surprisal: "#f08c3c", segments: ["#56b4e9", "#f08c3c", "#2fc79a", "#e0a3c5", "#f0e442", "#a98bf0"]};
const STEP = 4, LEFT = 64, CURVE = 56, BARS = 26, LANE = 14, GAP = 14;  // pixels
const PER_LAYER = ["operations", "z"];

// What a run made of the series, and its part of the page.
class Panel {
  constructor(server, hello, number, page) {
    this.server = server;
    this.number = number;
    this.page = page;
    this.run = hello.runs[number];
    this.latest = new Latest(() => this.#read());
    this.draw = oncePerFrame(() => this.#draw());
    this.clear();
    this.#build(hello.runs.length > 1);
  }

  clear() { this.data = {surprisal: [], operations: this.run.hidden.map(() => []), z: Array.from({length: this.run.detectors}, () => [])}; }

  #build(several) {
    const part = copyOf("series-panel"), $ = this.$ = selector => this.element.querySelector(selector);
    this.element = part.querySelector(".panel");
    document.getElementById("panels").append(part);
    const {name, model, hidden} = this.run;
    $("h2").textContent = `${name} (${model}, ${hidden.join(" + ")} units)`;
    if (several) $(".generate").textContent = `Continue with ${name}`;
    this.slope = slopeSlider($(".slope"), this.run, () => this.read());
    $(".generate").addEventListener("click", () => this.page.generate(this));
    $(".stop").addEventListener("click", () => this.page.stop());
    $(".figure").addEventListener("click", () => this.#download("figure", "svg", "image/svg+xml"));
    $(".segments").addEventListener("click", () => this.#download("segments", "json", "application/json"));
    $(".values").addEventListener("click", () => download(`${name}.csv`, this.page.csv(this.run.columns), "text/csv"));
    this.canvas = $(".curves");
    this.canvas.addEventListener("pointermove", event => this.#point(event));
    this.canvas.addEventListener("click", event => this.page.cut(this.#at(event) + 1));
    new ResizeObserver(this.draw).observe($(".picture"));
    darkScheme.addEventListener("change", this.draw);
  }

  request(kind) { return {kind, run: this.number, steps: this.page.steps, ...this.slope()}; }

  read() { return this.latest.want(true); }

  async #read() {
    if (this.page.steps.length === 0) this.clear();
    try {
      await this.server.ask(this.request("read"), answer => this.take(answer));
    } catch (error) {
      if (!(error instanceof Stopped)) tell(error.message);
    }
    this.#summarise();
    this.draw();
  }

  // Steps from `start` on take the place of what was there.
  take(answer) {
    const put = (column, values) => { column.length = answer.start; column.push(...values); };
    put(this.data.surprisal, answer.surprisal);
    for (const name of PER_LAYER) answer[name].forEach((column, l) => put(this.data[name][l], column));
    this.#summarise();
    this.draw();
  }

  #summarise() {
    const {surprisal, z, operations} = this.data, count = column => column.reduce((a, b) => a + b, 0);
    const layers = z.map((column, l) => `layer ${l + 1}: ${count(column)} ends`).join("; ");
    this.$(".summary").textContent = `${surprisal.length} steps; ${layers}; ${updatesOf(operations, surprisal.length)}`;
  }

  async #download(kind, ending, type) {
    const named = answer => download(`${this.run.name}.${ending}`, answer.file, type);
    await this.page.trying(this.server.ask(this.request(kind), named));
  }

  get rowHeight() { return this.run.columns.length * CURVE + BARS + this.data.z.length * LANE + GAP; }
  get inRow() { return Math.max(20, Math.floor((this.canvas.clientWidth - LEFT - 4) / STEP)); }

  #at(event) {
    const row = Math.floor(event.offsetY / this.rowHeight), column = Math.floor((event.offsetX - LEFT) / STEP);
    return Math.min(this.page.steps.length, row * this.inRow + Math.max(0, Math.min(column, this.inRow - 1)));
  }

  #point(event) {
    const at = this.#at(event), step = this.page.steps[at], {surprisal, z} = this.data;
    if (!step) return;
    const values = this.run.columns.map((name, d) => `${name} ${step[d] === null ? "missing" : +step[d].toPrecision(5)}`).join(", ");
    const ends = z.flatMap((column, l) => column[at] ? [`layer ${l + 1}`] : []).join(", ");
    this.$(".where").textContent = `step ${at}: ${values}; -log p ${surprisal[at] ?? "–"} nats${ends && `; a segment ends: ${ends}`}`;
  }

  #draw() {
    const {canvas, data, inRow, rowHeight} = this, {steps} = this.page, rows = Math.max(1, Math.ceil(steps.length / inRow));
    const pixels = devicePixelRatio, colours = darkScheme.matches ? DARK : LIGHT;
    canvas.style.height = `${rows * rowHeight}px`;
    canvas.width = Math.round(canvas.clientWidth * pixels);  // clears it, too
    canvas.height = Math.round(rows * rowHeight * pixels);
    const context = canvas.getContext("2d");
    context.scale(pixels, pixels);
    context.font = "11px system-ui, sans-serif";
    const scales = this.run.columns.map((_, d) => scaleOf(steps, d)), unlikely = scaleOf(data.surprisal.map(value => [value]), 0);
    const firsts = data.z.map(column => column.reduce((found, end, i) => (end ? [...found, i + 1] : found), [0]));
    for (let row = 0; row < rows; row++) {
      context.save();
      context.translate(0, row * rowHeight);
      this.#drawRow(context, colours, row * inRow, Math.min(steps.length, (row + 1) * inRow), scales, unlikely, firsts);
      context.restore();
    }
  }

  #drawRow(context, colours, start, end, scales, unlikely, firsts) {
    const {columns} = this.run, {data} = this, {steps} = this.page, x = i => LEFT + (i - start) * STEP, below = columns.length * CURVE;
    const name = (text, y) => { context.fillStyle = colours.soft; context.fillText(text, 0, y, LEFT - 6); };
    columns.forEach((column, d) => {
      name(column, d * CURVE + CURVE / 2);
      context.strokeStyle = colours.segments[d % colours.segments.length];
      context.lineWidth = 1.5;
      context.beginPath();
      for (let i = start, gap = true; i < end; i++) {
        const value = steps[i][d];
        if (value !== null) context[gap ? "moveTo" : "lineTo"](x(i) + STEP / 2, d * CURVE + 3 + (CURVE - 6) * (1 - scales[d](value)));
        gap = value === null;
      }
      context.stroke();
    });
    name("-log p", below + BARS - 6);
    context.fillStyle = colours.surprisal;
    for (let i = start; i < end; i++) {
      const height = data.surprisal[i] == null ? 0 : (BARS - 4) * unlikely(data.surprisal[i]);
      context.fillRect(x(i), below + BARS - height, STEP - 1, height);
    }
    firsts.forEach((own, l) => {
      const top = below + BARS + l * LANE + 2;
      name(`layer ${l + 1}`, top + LANE - 4);
      own.forEach((first, k) => {
        const from = Math.max(first, start), to = Math.min(own[k + 1] ?? data.surprisal.length, end);
        context.fillStyle = colours.segments[k % colours.segments.length];
        if (from < to) context.fillRect(x(from), top, (to - from) * STEP - 1, LANE - 3);
      });
    });
  }
}

// From the lowest to the highest value: 0 to 1.
function scaleOf(steps, d) {
  let low = Infinity, high = -Infinity;
  for (const step of steps) if (step[d] != null) { low = Math.min(low, step[d]); high = Math.max(high, step[d]); }
  return value => high > low ? (value - low) / (high - low) : 0.5;
}

class SeriesPage {
  steps = [];  // each a number for each column, or null
  #making = null;  // the panel that is generating
  #stopped = false;

  constructor(server, hello) {
    this.server = server;
    this.bias = slider(document.getElementById("bias"));
    this.length = slider(document.getElementById("new"));
    this.panels = hello.runs.map((_, number) => new Panel(server, hello, number, this));
    document.getElementById("clear").addEventListener("click", () => this.#change([]));
    document.getElementById("file").addEventListener("change", event => this.trying(this.#open(event.target)));
    document.addEventListener("keydown", event => { if (event.key === "Escape") this.stop(); });
  }

  readAll() {
    if (!this.#making) for (const panel of this.panels) panel.read();
  }

  #change(steps) {
    if (this.#making) return;
    tell("");
    this.steps = steps;
    this.readAll();
  }

  cut(length) { if (length < this.steps.length) this.#change(this.steps.slice(0, length)); }

  csv(columns) {
    const field = text => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    return [columns.map(field), ...this.steps.map(step => step.map(value => value ?? ""))].map(row => row.join(",") + "\n").join("");
  }

  async trying(promise) {
    try { await promise; } catch (error) { tell(error.message); }
  }

  async #open(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    const text = await file.slice(0, 200_000).text(), whole = file.size <= 200_000 ? text : text.slice(0, text.lastIndexOf("\n"));
    await this.server.ask({kind: "open", run: 0, text: whole}, answer => {
      this.#change(answer.steps);
      if (answer.left_out || whole !== text) tell(`only the first ${answer.steps.length.toLocaleString("en")} steps of ${file.name} are shown`);
    });
  }

  stop() {
    this.#stopped = true;  // what was not yet asked for is not asked for
    if (this.#making) this.server.stop(this.#making.number);
  }

  async generate(panel) {
    if (this.#making) return;
    tell("");
    this.#begin(panel);
    const request = {...panel.request("generate"), bias: +this.bias.value, new: +this.length.value};
    await panel.read();
    if (!this.#stopped) await this.trying(this.server.ask(request, answer => {
      this.steps.push(...answer.steps);
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

export const start = (server, hello) => new SeriesPage(server, hello);
