// The picture of a text that was read: rows of symbols with what each layer did under them, on canvases or as SVG.

import {darkScheme, oncePerFrame} from "./explorer.js";

const LIGHT = {paper: "#ffffff", ink: "#1a1a1a", soft: "#666666", blank: "#aaaaaa", norm: "#6a51a3", surprisal: "#d55e00",
  layers: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"], operations: ["#0072b2", "#e4e4e4", "#d55e00"]};
const DARK = {paper: "#16181c", ink: "#e8e8e8", soft: "#a0a4aa", blank: "#5d636b", norm: "#b3a2e8", surprisal: "#f08c3c",
  layers: ["#56b4e9", "#f08c3c", "#2fc79a", "#e0a3c5", "#f0c04a", "#8fd0f5"], operations: ["#56b4e9", "#33383f", "#f08c3c"]};

const NARROW = 12, WIDE = 18, LETTER = 6, LEFT = 22, BARS = 18, TEXT = 20, LANE = 22, HEAT = 13, STRIP = 4, BELOW = 10;  // pixels
const MOST_BITS = 12;  // a surprisal that fills its bar
const FIGURE_COLUMNS = 90, LONGEST = 12;  // symbols in a row of a figure, and letters of a token that are shown

export const OPERATIONS = ["UPDATE", "COPY", "FLUSH"];
export const visible = s => s === "\n" || s === "\r" ? "↵" : /^\s$/.test(s) ? "␣" : s;
// Chinese, Japanese and Korean characters and emoji take two columns of a terminal. Where there are some, all cells are wider.
const TWO_COLUMNS = /[\u1100-\u115f\u2e80-\ua4cf\ua960-\ua97f\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6]|[\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;
const shortened = s => s.length > LONGEST ? s.slice(0, LONGEST - 1) + "…" : s;
// Tokens have room for the longest of them, and a space between them.
const cellWidth = ({symbols, between}) => {
  if (between) return NARROW + LETTER * Math.min(LONGEST, symbols.reduce((n, s) => Math.max(n, s.length), 1));
  return symbols.some(symbol => TWO_COLUMNS.test(symbol)) ? WIDE : NARROW;
};
const rowHeight = data => BARS + TEXT + LANE * data.operations.length + BELOW;

// Rows of at most so many symbols; a line of the text ends a row, too. Each is [its first symbol, one past its last].
export function rowsOf(symbols, columns) {
  const rows = [];
  let start = 0;
  symbols.forEach((symbol, i) => {
    if (symbol === "\n" || i + 1 - start === columns) { rows.push([start, i + 1]); start = i + 1; }
  });
  if (start < symbols.length) rows.push([start, symbols.length]);
  return rows;
}

// `paint` has rect, text and line; what it paints on begins at (0, 0).
function paintRow(paint, data, [start, end], width, colours, largest, now) {
  const x = i => LEFT + (i - start) * width, L = data.operations.length, detectors = data.z.length;
  for (let i = start; i < end; i++) {
    const bits = Math.min(1, (data.surprisal[i] ?? 0) / MOST_BITS) * (BARS - 3), symbol = data.symbols[i];
    paint.rect(x(i) + 1, BARS - bits, width - 2, bits, colours.surprisal, 0.75);
    paint.text(x(i) + width / 2, BARS + 15, shortened(visible(symbol)), /^\s$/.test(symbol) ? colours.blank : colours.ink, data.between ? 10 : symbol.length > 1 ? 9 : 15, "middle");
  }
  for (let l = 0; l < L; l++) {
    const top = BARS + TEXT + l * LANE, done = data.operations[l];
    paint.text(LEFT - 5, top + 11, `h${l + 1}`, colours.soft, 10, "end");
    for (let i = start; i < end; i++) paint.rect(x(i), top, width, HEAT, colours.norm, 0.75 * data.norms[l][i] / largest[l]);
    for (let i = start, from = i; i < end; i++) {  // what is done alike by neighbours is one strip
      if (i + 1 < end && done[i + 1] === done[from]) continue;
      paint.rect(x(from), top + HEAT + 1, x(i + 1) - x(from), STRIP, colours.operations[done[from]], 1);
      from = i + 1;
    }
    if (l >= detectors) continue;
    const places = [];
    for (let i = start; i < end; i++) places.push([x(i) + width / 2, top + HEAT - 1 - data.z_tilde[l][i] * (HEAT - 2)]);
    paint.line(places, colours.ink);
    for (let i = start; i < end; i++) if (data.z[l][i + data.delay]) paint.rect(x(i + 1) - 2, top - 1, 2.5, HEAT + STRIP + 3, colours.ink, 1);
  }
  if (now >= start && now < end) paint.frame(x(now), 1, width, rowHeight(data) - BELOW, colours.ink);
}

class OnCanvas {
  constructor(context) { this.context = context; }
  rect(x, y, w, h, colour, alpha) {
    this.context.globalAlpha = alpha;
    this.context.fillStyle = colour;
    this.context.fillRect(x, y, w, h);
    this.context.globalAlpha = 1;
  }
  text(x, y, string, colour, size, anchor) {
    this.context.font = `${size}px ui-monospace, monospace`;
    this.context.textAlign = anchor === "middle" ? "center" : anchor;
    this.context.fillStyle = colour;
    this.context.fillText(string, x, y);
  }
  line(places, colour) {
    this.context.beginPath();
    for (const [x, y] of places) this.context.lineTo(x, y);
    this.context.strokeStyle = colour;
    this.context.lineWidth = 1;
    this.context.stroke();
  }
  frame(x, y, w, h, colour) {
    this.context.strokeStyle = colour;
    this.context.lineWidth = 1.5;
    this.context.strokeRect(x, y, w, h);
  }
}

class AsSVG {
  parts = [];
  rect(x, y, w, h, colour, alpha) {
    if (w > 0 && h > 0 && alpha > 0.001) this.parts.push(`<rect x="${short(x)}" y="${short(y)}" width="${short(w)}" height="${short(h)}" fill="${colour}" fill-opacity="${short(alpha)}"/>`);
  }
  text(x, y, string, colour, size, anchor) {
    this.parts.push(`<text x="${short(x)}" y="${short(y)}" fill="${colour}" font-size="${size}" text-anchor="${anchor}">${escaped(string)}</text>`);
  }
  line(places, colour) {
    this.parts.push(`<polyline points="${places.map(place => place.map(short).join(",")).join(" ")}" fill="none" stroke="${colour}"/>`);
  }
}
const short = value => +value.toFixed(2);
// Control characters have no place in XML.
const escaped = string => string.replace(/[\x00-\x1f\ufffe\uffff]/g, "·").replace(/&/g, "&amp;").replace(/</g, "&lt;");

const largestNorms = data => data.norms.map(column => column.reduce((a, b) => Math.max(a, b), 1e-9));

export function svgOf(data, title) {
  const cell = cellWidth(data), columns = data.between ? Math.floor(FIGURE_COLUMNS * NARROW / cell) : FIGURE_COLUMNS;
  const rows = rowsOf(data.symbols, columns), height = rowHeight(data), largest = largestNorms(data);
  const groups = rows.map((row, r) => {
    const paint = new AsSVG();
    paintRow(paint, data, row, cell, LIGHT, largest, -1);
    return `<g transform="translate(0 ${r * height})">\n${paint.parts.join("\n")}\n</g>\n`;
  });
  const width = LEFT + columns * cell + 4, key = new AsSVG(), below = rows.length * height;
  OPERATIONS.forEach((name, k) => {
    key.rect(LEFT + k * 90, below, 14, 8, LIGHT.operations[k], 1);
    key.text(LEFT + k * 90 + 18, below + 8, name, LIGHT.soft, 11, "start");
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${below + 16}" font-family="monospace">\n` +
    `<title>${escaped(title)}</title>\n<rect width="100%" height="100%" fill="${LIGHT.paper}"/>\n${groups.join("")}${key.parts.join("\n")}\n</svg>\n`;
}

// Rows of canvases, of which only those in sight are drawn and take memory.
export class Picture {
  #canvases = [];
  #inSight = new Set();
  #rows = [];
  #now = -1;
  #wanted = -1;
  #cell = NARROW;

  constructor(element, data, pointed) {
    this.element = element;
    this.data = data;
    this.draw = oncePerFrame(() => this.#draw());
    this.observer = new IntersectionObserver(entries => {
      for (const {target, isIntersecting} of entries) {
        if (isIntersecting) this.#inSight.add(target);
        else { this.#inSight.delete(target); target.width = target.height = 0; }
      }
      this.draw();
    }, {rootMargin: "200px"});
    new ResizeObserver(this.draw).observe(element);
    darkScheme.addEventListener("change", this.draw);
    element.addEventListener("pointermove", event => this.#at(event, pointed));
    element.addEventListener("click", event => this.#at(event, pointed));
  }

  set now(i) {
    this.#now = i;
    this.draw();
  }

  // Scrolls to a symbol: the picture, and not the page.
  show(i) {
    this.#wanted = i;
    this.draw();
  }

  #scroll() {
    const canvas = this.#canvases[this.#rows.findIndex(([, end]) => this.#wanted < end)];
    this.#wanted = -1;
    if (!canvas) return;
    const {element} = this, below = canvas.offsetTop + canvas.offsetHeight - element.clientHeight;
    element.scrollTop = Math.min(canvas.offsetTop, Math.max(below, element.scrollTop));
  }

  #at(event, pointed) {
    const row = this.#rows[this.#canvases.indexOf(event.target)];
    if (!row) return;
    const i = row[0] + Math.floor((event.offsetX - LEFT) / this.#cell);
    if (i >= row[0] && i < row[1]) pointed(i);
  }

  #draw() {
    this.#cell = cellWidth(this.data);
    const columns = Math.max(this.data.between ? 2 : 8, Math.floor((this.element.clientWidth - LEFT - 4) / this.#cell));
    this.#rows = rowsOf(this.data.symbols, columns);
    while (this.#canvases.length < this.#rows.length) {
      const canvas = document.createElement("canvas");
      canvas.style.height = `${rowHeight(this.data)}px`;
      this.#canvases.push(canvas);
      this.element.append(canvas);
      this.observer.observe(canvas);
    }
    for (const canvas of this.#canvases.splice(this.#rows.length)) {
      this.observer.unobserve(canvas);
      this.#inSight.delete(canvas);
      canvas.remove();
    }
    if (this.#wanted >= 0) this.#scroll();
    const colours = darkScheme.matches ? DARK : LIGHT, largest = largestNorms(this.data), scale = devicePixelRatio;
    this.#rows.forEach((row, r) => {
      const canvas = this.#canvases[r];
      if (!this.#inSight.has(canvas)) return;
      canvas.width = Math.round(this.element.clientWidth * scale);  // clears it, too
      canvas.height = Math.round(rowHeight(this.data) * scale);
      const context = canvas.getContext("2d");
      context.scale(scale, scale);
      paintRow(new OnCanvas(context), this.data, row, this.#cell, colours, largest, this.#now);
    });
  }
}
