// The page for runs on strokes: what is drawn is read by every run, and each can go on with the line.

import {copyOf, darkScheme, download, Latest, oncePerFrame, slider, slopeSlider, tell, updatesOf} from "./explorer.js";
import {Stopped} from "./asking.js";

const LIGHT = {ink: "#1a1a1a", raw: "#c8c8c8", rule: "#d8dde6", segments: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]};
const DARK = {ink: "#e8e8e8", raw: "#4c525a", rule: "#2c3340", segments: ["#56b4e9", "#f08c3c", "#2fc79a", "#e0a3c5", "#f0e442", "#a98bf0"]};
const HEIGHT = 240, MARGIN = 24, NEAR = 1.5;  // of the sheet, around a long line, and between points: pixels
const PER_LAYER = ["operations", "z"], ONE = ["x", "y", "pen"];

// What a run made of the drawing, and its part of the page.
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

  clear() { this.data = {x: [], y: [], pen: [], operations: this.run.hidden.map(() => []), z: Array.from({length: this.run.detectors}, () => [])}; }

  #build(several) {
    const part = copyOf("strokes-panel"), $ = this.$ = selector => this.element.querySelector(selector);
    this.element = part.querySelector(".panel");
    document.getElementById("panels").append(part);
    const {name, model, hidden, detectors} = this.run;
    $("h2").textContent = `${name} (${model}, ${hidden.join(" + ")} units)`;
    if (several) $(".generate").textContent = `Continue with ${name}`;
    const layers = Array.from({length: detectors}, (_, l) => new Option(`segments of layer ${l + 1} (z${l + 1})`, l + 1));
    $(".layer").append(...layers, new Option("strokes of the pen", 0));
    $(".layer").value = Math.min(2, detectors);
    $(".layer").addEventListener("change", this.draw);
    this.slope = slopeSlider($(".slope"), this.run, () => this.read());
    $(".generate").addEventListener("click", () => this.page.generate(this));
    $(".stop").addEventListener("click", () => this.page.stop());
    $(".figure").addEventListener("click", () => this.#download("figure", "svg", "image/svg+xml", {layer: +$(".layer").value}));
    $(".segments").addEventListener("click", () => this.#download("segments", "json", "application/json"));
    $(".drawing").addEventListener("click", () => this.#download("drawing", "jsonl", "application/json"));
    this.pad = $(".pad");
    this.pad.addEventListener("pointerdown", event => this.page.down(this, event));
    this.pad.addEventListener("pointermove", event => this.page.move(this, event));
    for (const kind of ["pointerup", "pointercancel"]) this.pad.addEventListener(kind, () => this.page.up());
    new ResizeObserver(this.draw).observe(this.pad);
    darkScheme.addEventListener("change", this.draw);
  }

  request(kind) {
    const strokes = this.page.strokes;
    return {kind, run: this.number, strokes: strokes.map(stroke => stroke.points), made: strokes.map(stroke => stroke.by === this.number), ...this.slope()};
  }

  read() { return this.latest.want(true); }

  async #read() {
    if (this.page.strokes.length === 0) this.clear();
    try {
      await this.server.ask(this.request("read"), answer => this.take(answer));
    } catch (error) {
      if (!(error instanceof Stopped)) tell(error.message);
    }
    this.#summarise();
    this.draw();
  }

  // Points from `start` on take the place of what was there.
  take(answer) {
    const put = (column, values) => { column.length = answer.start; column.push(...values); };
    for (const name of ONE) put(this.data[name], answer[name]);
    for (const name of PER_LAYER) answer[name].forEach((column, l) => put(this.data[name][l], column));
    this.#summarise();
    this.draw();
  }

  #summarise() {
    const {pen, z, operations} = this.data, count = column => column.reduce((a, b) => a + b, 0);
    const layers = z.map((column, l) => `layer ${l + 1}: ${count(column)} ends`).join("; ");
    this.$(".summary").textContent = `${pen.length} points, ${count(pen)} pen strokes; ${layers}; ${updatesOf(operations, pen.length)}`;
  }

  async #download(kind, ending, type, more = {}) {
    const named = answer => download(`${this.run.name}.${ending}`, answer.file, type);
    await this.page.trying(this.server.ask({...this.request(kind), ...more}, named));
  }

  // The part of the sheet that is to be seen: all of it and all of the line. While the pen is down it stays.
  view() {
    const {clientWidth: width, clientHeight: height} = this.pad;
    if (!this.page.drawing || !this.seen) {
      const xs = this.page.all(0).concat(this.data.x), ys = this.page.all(1).concat(this.data.y);
      const most = (values, first, sign) => values.reduce((a, b) => sign * Math.max(sign * a, sign * b), first);
      const left = most(xs, MARGIN, -1) - MARGIN, right = Math.max(left + width, most(xs, 0, 1) + MARGIN);
      const top = most(ys, MARGIN, -1) - MARGIN, bottom = Math.max(HEIGHT, most(ys, 0, 1) + MARGIN);
      const scale = Math.min(1, width / (right - left), height / (bottom - top));
      this.seen = {left, scale, top: top - (height / scale - (bottom - top)) / 2};
    }
    return this.seen;
  }

  #draw() {
    const {pad, data} = this, pixels = devicePixelRatio, {left, top, scale} = this.view();
    const colours = darkScheme.matches ? DARK : LIGHT, context = pad.getContext("2d");
    pad.width = Math.round(pad.clientWidth * pixels);  // clears it, too
    pad.height = Math.round(pad.clientHeight * pixels);
    context.setTransform(scale * pixels, 0, 0, scale * pixels, -left * scale * pixels, -top * scale * pixels);
    context.lineCap = context.lineJoin = "round";
    this.#rule(context, colours, left, left + pad.clientWidth / scale);
    context.lineWidth = 3;
    context.strokeStyle = colours.raw;
    for (const {points} of this.page.strokes) line(context, points);
    context.lineWidth = 2.5;
    const layer = +this.$(".layer").value, ends = layer ? data.z[layer - 1] : data.pen;
    let segment = 0;
    for (let i = 0; i < data.x.length; i++) {
      context.strokeStyle = colours.segments[segment % colours.segments.length];
      const here = [data.x[i], data.y[i]], drawn = i > 0 && !data.pen[i - 1];
      line(context, drawn ? [[data.x[i - 1], data.y[i - 1]], here] : [here]);
      segment += ends[i] ? 1 : 0;
    }
  }

  #rule(context, colours, left, right) {
    const {letter} = this.page, base = 2.5 * letter;
    context.strokeStyle = colours.rule;
    context.lineWidth = 1.5;
    line(context, [[left, base], [right, base]]);
    context.setLineDash([6, 6]);
    line(context, [[left, base - letter], [right, base - letter]]);
    context.setLineDash([]);
  }

  place(event) {
    const {left, top, scale} = this.view();
    return [left + event.offsetX / scale, top + event.offsetY / scale].map(value => Math.round(value * 100) / 100);
  }
}

// A single point is a line to itself, which round ends make a dot.
function line(context, points) {
  context.beginPath();
  context.moveTo(...points[0]);
  for (const point of points) context.lineTo(...point);
  context.stroke();
}

class StrokesPage {
  strokes = [];  // each: points, and `by`: the number of the run that made it, or null
  drawing = false;
  #making = null;  // the panel that is generating
  #stopped = false;

  constructor(server, hello) {
    this.server = server;
    this.letter = hello.runs[0].letter;
    this.bias = slider(document.getElementById("bias"));
    this.length = slider(document.getElementById("new"));
    this.panels = hello.runs.map((_, number) => new Panel(server, hello, number, this));
    document.getElementById("undo").addEventListener("click", () => this.#change(this.strokes.slice(0, -1)));
    document.getElementById("clear").addEventListener("click", () => this.#change([]));
    document.getElementById("file").addEventListener("change", event => this.trying(this.#open(event.target)));
    document.addEventListener("keydown", event => { if (event.key === "Escape") this.stop(); });
  }

  all(axis) { return this.strokes.flatMap(stroke => stroke.points.map(point => point[axis])); }

  readAll() {
    if (!this.#making) for (const panel of this.panels) panel.read();
  }

  #change(strokes) {
    if (this.#making) return;
    tell("");
    this.strokes = strokes;
    this.readAll();
  }

  async trying(promise) {
    try { await promise; } catch (error) { tell(error.message); }
  }

  down(panel, event) {
    if (this.#making || event.button !== 0) return;
    event.preventDefault();
    panel.pad.setPointerCapture(event.pointerId);
    this.strokes.push({points: [panel.place(event)], by: null});
    this.drawing = true;
    this.#drawn();
  }

  move(panel, event) {
    if (!this.drawing) return;
    const {points} = this.strokes.at(-1), here = panel.place(event), [x, y] = points.at(-1);
    if (Math.hypot(here[0] - x, here[1] - y) < NEAR) return;
    points.push(here);
    this.#drawn();
  }

  up() {
    if (!this.drawing) return;
    this.drawing = false;
    this.#drawn();
  }

  #drawn() {
    for (const panel of this.panels) panel.draw();
    this.readAll();
  }

  // A line of the plain format, made as large as the lines on the sheet want it.
  async #open(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    const [first] = (await file.slice(0, 1 << 18).text()).split("\n").filter(text => text.trim());
    let strokes;
    try {
      strokes = JSON.parse(first).filter(stroke => stroke.length);
      if (!strokes.flat().length || !strokes.flat(2).every(Number.isFinite)) throw new Error();
    } catch {
      throw new Error(`${file.name}: its first line is not a list of strokes, each a list of [x, y]`);
    }
    const heights = strokes.map(stroke => Math.max(...stroke.map(p => p[1])) - Math.min(...stroke.map(p => p[1]))).sort((a, b) => a - b);
    const tall = heights[Math.floor(0.9 * (heights.length - 1))] || 1, scale = this.letter / tall, points = strokes.flat();
    const left = Math.min(...points.map(p => p[0])), bottom = Math.max(...points.map(p => p[1]));
    const placed = ([x, y]) => [(x - left) * scale + this.letter / 2, (y - bottom) * scale + 2.5 * this.letter].map(v => Math.round(v * 100) / 100);
    this.#change(strokes.map(stroke => ({points: stroke.map(placed), by: null})));
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
    let lifted = true;
    if (!this.#stopped) await this.trying(this.server.ask(request, answer => {
      answer.x.forEach((x, i) => {
        if (lifted) this.strokes.push({points: [], by: panel.number});
        this.strokes.at(-1).points.push([x, answer.y[i]]);
        lifted = answer.pen[i] === 1;
      });
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

export const start = (server, hello) => new StrokesPage(server, hello);
