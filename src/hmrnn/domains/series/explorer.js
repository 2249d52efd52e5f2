// The page for runs on series: a series that was opened or made is read by every run, and each can go on with it.

import {download, tell} from "./explorer.js";
import {cleared, coloursOf, ListPage, Panel} from "./panels.js";

const LIGHT = {soft: "#666666", rule: "#d8dde6", surprisal: "#d55e00"};
const DARK = {soft: "#a0a4aa", rule: "#2c3340", surprisal: "#f08c3c"};
const STEP = 4, LEFT = 64, CURVE = 56, BARS = 26, LANE = 14, GAP = 14;  // pixels
const FULL = 0.98;  // share of the steps whose bar is not full

class SeriesPanel extends Panel {
  get once() { return ["surprisal"]; }

  build($) {
    $(".figure").addEventListener("click", () => this.download("figure", "svg", "image/svg+xml"));
    $(".values").addEventListener("click", () => download(`${this.run.name}.csv`, this.page.csv(this.run.columns), "text/csv"));
    this.canvas = $(".curves");
    this.canvas.addEventListener("pointermove", event => this.#point(event));
    this.canvas.addEventListener("click", event => this.page.cut(this.#at(event) + 1));
    new ResizeObserver(this.draw).observe(this.canvas.parentElement);
  }

  summary() { return `${this.length} steps; ${this.ends()}`; }

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

  drawNow() {
    const {canvas, data, inRow, rowHeight} = this, {steps} = this.page, rows = Math.max(1, Math.ceil(steps.length / inRow));
    canvas.style.height = `${rows * rowHeight}px`;
    const context = cleared(canvas), colours = coloursOf(LIGHT, DARK);
    context.font = "11px system-ui, sans-serif";
    const scales = this.run.columns.map((_, d) => scaleOf(steps, d)), unlikely = barOf(data.surprisal);
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

// The height of a bar, 0 to 1. A few steps are so unlikely that beside them no other could be told apart: their bars are full.
function barOf(surprisal) {
  const sorted = surprisal.filter(value => value !== null).sort((a, b) => a - b), low = sorted[0], high = sorted[Math.floor(FULL * (sorted.length - 1))];
  return value => high > low ? Math.min(1, (value - low) / (high - low)) : 0;
}

class SeriesPage extends ListPage {
  get steps() { return this.items; }  // each a number for each column, or null
  content() { return {steps: this.steps}; }
  add(answer) { this.items.push(...answer.steps); }
  cut(length) { if (length < this.steps.length) this.change(this.steps.slice(0, length)); }

  csv(columns) {
    const field = text => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    return [columns.map(field), ...this.steps.map(step => step.map(value => value ?? ""))].map(row => row.join(",") + "\n").join("");
  }

  async open(file) {
    const text = await file.slice(0, 200_000).text(), whole = file.size <= 200_000 ? text : text.slice(0, text.lastIndexOf("\n"));
    await this.server.ask({kind: "open", run: 0, text: whole}, answer => {
      this.change(answer.steps);
      if (answer.left_out || whole !== text) tell(`only the first ${answer.steps.length.toLocaleString("en")} steps of ${file.name} are shown`);
    });
  }
}

export const start = (server, hello) => new SeriesPage(server, hello, SeriesPanel);
