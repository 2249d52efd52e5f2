// The page for runs on text: what is typed is read by every run, and goes on from the cursor.

import {copyOf, download, Latest, slider, slopeSlider, tell, updatesOf} from "./explorer.js";
import {OPERATIONS, Picture, svgOf, visible} from "./picture.js";
import {Stopped} from "./asking.js";

const PER_LAYER = ["operations", "z", "z_tilde", "norms"], ONE = ["symbols", "surprisal"];

// What a run made of the text, and its part of the page.
class Panel {
  constructor(server, hello, number, page) {
    this.server = server;
    this.number = number;
    this.page = page;
    this.run = hello.runs[number];
    this.latest = new Latest(wanted => this.#read(wanted));
    this.had = [];  // the characters of which `data` tells, with the slope
    this.hadSlope = null;
    const {hidden, detectors} = this.run, columns = n => Array.from({length: n}, () => []);
    this.data = {symbols: [], surprisal: [], operations: columns(hidden.length), norms: columns(hidden.length), z: columns(detectors), z_tilde: columns(detectors)};
    this.#build(hello.runs.length > 1);
  }

  #build(several) {
    const part = copyOf("text-panel"), $ = this.$ = selector => this.element.querySelector(selector);
    this.element = part.querySelector(".panel");
    document.getElementById("panels").append(part);
    const {name, model, hidden} = this.run;
    $("h2").textContent = `${name} (${model}, ${hidden.join(" + ")} units)`;
    if (several) $(".generate").textContent = `Generate with ${name}`;
    this.slope = slopeSlider($(".slope"), this.run, () => this.page.readAll());
    this.picture = new Picture($(".picture"), this.data, i => this.page.go(i));
    this.rows = hidden.map(() => {
      const row = $("tbody").insertRow(0);  // the highest layer on top
      return Array.from({length: 6}, () => row.insertCell());
    });
    $(".generate").addEventListener("click", () => this.page.generate(this));
    $(".stop").addEventListener("click", () => this.page.stop());
    $(".figure").addEventListener("click", () => download(`${name}.svg`, svgOf(this.data, name), "image/svg+xml"));
    $(".segments").addEventListener("click", () => this.#downloadSegments());
    $(".place").addEventListener("input", event => { this.page.go(+event.target.value); this.picture.show(+event.target.value); });
  }

  read(text) { return this.latest.want(text); }

  async #read(text) {
    const characters = [...text], slope = this.slope();
    let have = 0;
    if (slope.slope === this.hadSlope) while (have < characters.length && characters[have] === this.had[have]) have++;
    this.had = [];  // until it is known that the answer came to its end
    try {
      await this.server.ask({kind: "read", run: this.number, text, have, ...slope}, answer => this.take(answer));
      this.had = characters;
      this.hadSlope = slope.slope;
    } catch (error) {
      if (!(error instanceof Stopped)) tell(error.message);
    }
  }

  // Steps from `start` on take the place of what was there.
  take(answer) {
    const {data} = this;
    if (answer.start > data.symbols.length) return;  // what lies before was never read: a later answer tells all
    for (const name of ONE) replace(data[name], answer.start, answer[name]);
    for (const name of PER_LAYER) data[name].forEach((column, l) => replace(column, answer.start, answer[name]?.[l]));
    if (answer.unknown) this.#tellUnknown(answer.unknown);
    this.picture.draw();
    this.#summarise();
    this.go(this.page.now);
    this.picture.show(Math.min(this.page.now, data.symbols.length - 1));
  }

  #tellUnknown(names) {
    const fate = this.run.on_unknown === "skip" ? "left out" : "replaced";
    this.$(".unknown").textContent = names.length ? `not known to ${this.run.name}, and ${fate}: ${names.join(", ")}` : "";
  }

  #summarise() {
    const {symbols, surprisal, operations} = this.data, known = surprisal.filter(bits => bits !== null);
    const bits = known.length ? `; ${(known.reduce((a, b) => a + b, 0) / known.length).toFixed(3)} bits per ${this.run.unit}` : "";
    this.$(".summary").textContent = `${symbols.length.toLocaleString("en")} symbols${bits}; ${updatesOf(operations, symbols.length)}`;
  }

  // Reads out a symbol.
  go(i) {
    const {data, $} = this, n = data.symbols.length;
    $(".readout").hidden = n === 0;
    if (n === 0) return;
    i = Math.max(0, Math.min(n - 1, i));
    this.picture.now = i;
    $(".place").max = n - 1;
    $(".place").value = i;
    $(".place").setAttribute("aria-valuetext", `symbol ${i}: ${visible(data.symbols[i])}`);
    $(".symbol").textContent = visible(data.symbols[i]);
    const bits = data.surprisal[i];
    $(".where").textContent = `symbol ${i} of ${n}, surprisal ${bits === null ? "–" : `${bits.toFixed(3)} bits`}`;
    this.rows.forEach((cells, l) => {
      const detects = l < data.z.length, [first, last] = detects ? around(data.z[l], i, this.run.delay) : [0, 0];
      const values = [l + 1, OPERATIONS[data.operations[l][i]], detects ? data.z_tilde[l][i].toFixed(3) : "–",
        detects ? (data.z[l][i] ? "yes" : "no") : "–", data.norms[l][i].toFixed(3),
        detects ? `${first}–${last} ${data.symbols.slice(first, Math.min(last + 1, first + 60)).map(visible).join("")}` : "–"];
      values.forEach((value, c) => { cells[c].textContent = value; });
    });
  }

  async #downloadSegments() {
    const request = {kind: "segments", run: this.number, text: this.page.start(), ...this.slope()};
    await this.page.trying(this.server.ask(request, answer => download(`${this.run.name}.json`, answer.file, "application/json")));
  }
}

function replace(column, start, values = []) {
  column.length = start;
  for (const value of values) column.push(value);
}

// The segment around a place. Detectors fire on its last symbol, or so many symbols later.
function around(z, i, delay) {
  let first = i, last = i;
  while (first > 0 && !z[first - 1 + delay]) first--;
  while (last < z.length - 1 && !z[last + delay]) last++;
  return [first, last];
}

class TextPage {
  now = 0;
  #making = null;  // the panel that is generating
  #stopped = false;

  constructor(server, hello) {
    this.server = server;
    this.most = hello.most_symbols;
    this.text = document.getElementById("text");
    this.text.value = hello.runs[0].text;
    this.text.selectionStart = this.text.selectionEnd = this.text.value.length;
    this.temperature = slider(document.getElementById("temperature"));
    this.length = slider(document.getElementById("new"));
    this.panels = hello.runs.map((_, number) => new Panel(server, hello, number, this));
    this.text.addEventListener("input", () => this.#typed());
    document.getElementById("file").addEventListener("change", event => this.#open(event.target));
    document.addEventListener("keydown", event => {
      if (event.key === "Escape") this.stop();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.generate(this.panels[0]);
    });
  }

  #typed() {
    tell("");
    this.now = this.text.selectionEnd - 1;
    this.readAll();
  }

  readAll() {
    if (!this.#making) for (const panel of this.panels) panel.read(this.start());
  }

  // As much of the text as is read.
  start() {
    const characters = [...this.text.value], {most} = this, told = n => n.toLocaleString("en");
    if (characters.length > most) tell(`the text has ${told(characters.length)} characters: the first ${told(most)} are read`);
    return characters.slice(0, most).join("");
  }

  go(i) {
    this.now = i;
    for (const panel of this.panels) panel.go(i);
  }

  async trying(promise) {
    try { await promise; } catch (error) { tell(error.message); }
  }

  async #open(input) {
    const [file] = input.files;
    input.value = "";  // so that the same file can be opened again
    if (!file) return;
    const characters = [...await file.slice(0, 4 * this.most).text()], longer = characters.length > this.most || file.size > 4 * this.most;
    this.text.value = characters.slice(0, this.most).join("");
    tell(longer ? `${file.name}: the first ${this.most.toLocaleString("en")} characters are read` : "");
    this.now = 0;
    this.readAll();
  }

  stop() {
    this.#stopped = true;  // what was not yet asked for is not asked for
    if (this.#making) this.server.stop(this.#making.number);
  }

  // What is made goes into the text as it comes. Behind the cursor nothing is read until it is all there.
  async generate(panel) {
    if (this.#making) return;
    const {text} = this, before = text.value.slice(0, text.selectionEnd), after = text.value.slice(text.selectionEnd);
    let made = "";
    tell("");
    this.#begin(panel);
    await panel.read(before);
    const request = {kind: "generate", run: panel.number, text: before, temperature: +this.temperature.value, new: +this.length.value};
    if (!this.#stopped) await this.trying(this.server.ask({...request, ...panel.slope()}, answer => {
      made += answer.text;
      text.value = before + made + after;
      text.scrollTop = after ? text.scrollTop : text.scrollHeight;
      this.now = answer.start;
      panel.take(answer);
      for (const other of this.panels) if (other !== panel) other.read(before + made);
    }));
    this.#begin(null);
    panel.had = [];
    text.focus();
    text.selectionStart = text.selectionEnd = before.length + made.length;
    this.readAll();
  }

  #begin(panel) {
    this.#making = panel;
    this.#stopped = false;
    this.text.readOnly = panel !== null;
    for (const each of this.panels) {
      each.$(".generate").disabled = panel !== null;
      each.$(".stop").disabled = each !== panel;
    }
  }
}

export const start = (server, hello) => new TextPage(server, hello);
