// The page for runs on text: what is typed is read by every run, and goes on from the cursor.

import {download, slider, tell} from "./explorer.js";
import {Page, Panel, sum} from "./panels.js";
import {OPERATIONS, Picture, svgOf, visible} from "./picture.js";

class TextPanel extends Panel {
  had = [];  // the characters of which `data` tells, with the slope
  hadSlope = null;

  get once() { return ["symbols", "surprisal"]; }
  get perLayer() { return ["operations", "z", "z_tilde", "norms"]; }

  build($) {
    this.data.between = this.run.between;
    this.data.delay = this.run.delay;
    this.picture = new Picture($(".picture"), this.data, i => this.page.go(i));
    this.draw = this.picture.draw;
    this.rows = this.run.hidden.map(() => {
      const row = $("tbody").insertRow(0);  // the highest layer on top
      return Array.from({length: 6}, () => row.insertCell());
    });
    $(".figure").addEventListener("click", () => download(`${this.run.name}.svg`, svgOf(this.data, this.run.name), "image/svg+xml"));
    $(".place").addEventListener("input", event => { this.page.go(+event.target.value); this.picture.show(+event.target.value); });
  }

  // Only what is new is asked for.
  async ask(request) {
    const characters = [...request.text], {slope} = request;
    let have = 0;
    if (slope === this.hadSlope) while (have < characters.length && characters[have] === this.had[have]) have++;
    this.had = [];  // until it is known that the answer came to its end
    await super.ask({...request, have});
    this.had = characters;
    this.hadSlope = slope;
  }

  take(answer) {
    if (answer.unknown) this.#tellUnknown(answer.unknown);
    super.take(answer);
  }

  show() {
    super.show();
    this.go(this.page.now);
    this.picture.show(Math.min(this.page.now, this.length - 1));
  }

  #tellUnknown(names) {
    const fate = this.run.on_unknown === "skip" ? "left out" : "replaced";
    this.$(".unknown").textContent = names.length ? `not known to ${this.run.name}, and ${fate}: ${names.join(", ")}` : "";
  }

  summary() {
    const {surprisal} = this.data, known = surprisal.filter(bits => bits !== null);
    const bits = known.length ? `; ${(sum(known) / known.length).toFixed(3)} bits per ${this.run.unit}` : "";
    return `${this.length.toLocaleString("en")} symbols${bits}`;
  }

  // Reads out a symbol.
  go(i) {
    const {data, $, length: n} = this;
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
        detects ? (data.z[l][i + this.run.delay] ? "yes" : "no") : "–", data.norms[l][i].toFixed(3),
        detects ? `${first}–${last} ${data.symbols.slice(first, Math.min(last + 1, first + 60)).map(visible).join(this.run.between)}` : "–"];
      values.forEach((value, c) => { cells[c].textContent = value; });
    });
  }
}

// The segment around a place. Detectors fire on its last symbol, or so many symbols later.
function around(z, i, delay) {
  let first = i, last = i;
  while (first > 0 && !z[first - 1 + delay]) first--;
  while (last < z.length - 1 && !z[last + delay]) last++;
  return [first, last];
}

class TextPage extends Page {
  now = 0;
  #before = "";  // of the text, where a run goes on with it,
  #made = "";  // what it has made,
  #after = "";  // and what comes then: it is not read until all is there

  build(hello) {
    this.most = hello.runs[0].most_characters;
    this.text = document.getElementById("text");
    this.text.value = hello.runs[0].text;
    this.text.selectionStart = this.text.selectionEnd = this.text.value.length;
    this.temperature = slider(document.getElementById("temperature"));
    this.text.addEventListener("input", () => this.#typed());
    document.addEventListener("keydown", event => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.generate(this.panels[0]);
    });
  }

  get empty() { return false; }
  content() { return {text: this.making ? this.#before + this.#made : this.start()}; }
  wanted() { return {temperature: +this.temperature.value}; }

  #typed() {
    tell("");
    this.now = this.text.selectionEnd - 1;
    this.readAll();
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

  async open(file) {
    const characters = [...await file.slice(0, 4 * this.most).text()], longer = characters.length > this.most || file.size > 4 * this.most;
    this.text.value = characters.slice(0, this.most).join("");
    tell(longer ? `${file.name}: the first ${this.most.toLocaleString("en")} characters are read` : "");
    this.now = 0;
    this.readAll();
  }

  async generate(panel) {
    if (this.making) return;
    const {text} = this, at = text.selectionEnd;
    [this.#before, this.#made, this.#after] = [text.value.slice(0, at), "", text.value.slice(at)];
    text.readOnly = true;
    await super.generate(panel);
    text.readOnly = false;
    text.focus();
    text.selectionStart = text.selectionEnd = at + this.#made.length;
  }

  add(answer) {
    const {text} = this;
    this.#made += answer.text;
    text.value = this.#before + this.#made + this.#after;
    text.scrollTop = this.#after ? text.scrollTop : text.scrollHeight;
    this.now = answer.start;
  }
}

export const start = (server, hello) => new TextPage(server, hello, TextPanel);
