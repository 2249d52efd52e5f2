// The page for runs on strokes: what is drawn is read by every run, and each can go on with the line.

import {cleared, coloursOf, ListPage, Panel, sum} from "./panels.js";

const LIGHT = {ink: "#1a1a1a", raw: "#c8c8c8", rule: "#d8dde6"};
const DARK = {ink: "#e8e8e8", raw: "#4c525a", rule: "#2c3340"};
const HEIGHT = 240, MARGIN = 24, NEAR = 1.5;  // of the sheet, around a long line, and between points: pixels

class StrokesPanel extends Panel {
  get once() { return ["x", "y", "pen"]; }

  build($) {
    const {detectors} = this.run;
    const layers = Array.from({length: detectors}, (_, l) => new Option(`segments of layer ${l + 1} (z${l + 1})`, l + 1));
    $(".layer").append(...layers, new Option("strokes of the pen", 0));
    $(".layer").value = Math.min(2, detectors);
    $(".layer").addEventListener("change", this.draw);
    $(".figure").addEventListener("click", () => this.download("figure", "svg", "image/svg+xml", {layer: +$(".layer").value}));
    $(".drawing").addEventListener("click", () => this.download("drawing", "jsonl", "application/json"));
    this.pad = $(".pad");
    this.pad.addEventListener("pointerdown", event => this.page.down(this, event));
    this.pad.addEventListener("pointermove", event => this.page.move(this, event));
    for (const kind of ["pointerup", "pointercancel"]) this.pad.addEventListener(kind, () => this.page.up());
    new ResizeObserver(this.draw).observe(this.pad);
  }

  summary() { return `${this.length} points, ${sum(this.data.pen)} pen strokes; ${this.ends()}`; }

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

  drawNow() {
    const {pad, data} = this, {left, top, scale} = this.view(), context = cleared(pad), colours = coloursOf(LIGHT, DARK);
    context.scale(scale, scale);
    context.translate(-left, -top);
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

class StrokesPage extends ListPage {
  drawing = false;
  #lifted = true;  // the pen, by which a run goes on

  build(hello) {
    super.build();
    this.letter = hello.runs[0].letter;
    document.getElementById("undo").addEventListener("click", () => this.change(this.strokes.slice(0, -1)));
  }

  get strokes() { return this.items; }  // each: points, and `by`: the number of the run that made it, or null

  content(panel) { return {strokes: this.strokes.map(stroke => stroke.points), made: this.strokes.map(stroke => stroke.by === panel.number)}; }

  all(axis) { return this.strokes.flatMap(stroke => stroke.points.map(point => point[axis])); }

  down(panel, event) {
    if (this.making || event.button !== 0) return;
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
  async open(file) {
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
    this.change(strokes.map(stroke => ({points: stroke.map(placed), by: null})));
  }

  generate(panel) {
    if (!this.making) this.#lifted = true;
    return super.generate(panel);
  }

  add(answer, panel) {
    answer.x.forEach((x, i) => {
      if (this.#lifted) this.strokes.push({points: [], by: panel.number});
      this.strokes.at(-1).points.push([x, answer.y[i]]);
      this.#lifted = answer.pen[i] === 1;
    });
  }
}

export const start = (server, hello) => new StrokesPage(server, hello, StrokesPanel);
