// The one connection to the server: questions, answers that come bit by bit, and what to do when it is busy or away.

const AGAIN = 300;  // milliseconds until a busy server is asked again
const AWAY = 1000;  // … until a lost one is called again

export class Stopped extends Error {}

export class Server {
  #socket = null;
  #last = 0;
  #open = new Map();  // questions that are not answered to the end, by their number

  constructor(greeted, away) {
    this.greeted = greeted;
    this.away = away;
    this.#connect();
  }

  #connect() {
    const socket = this.#socket = new WebSocket(`ws://${location.host}/socket`);
    socket.onmessage = event => {
      const message = JSON.parse(event.data);
      if (message.runs) this.greeted(message);
      else this.#hear(message);
    };
    socket.onclose = event => {
      for (const question of this.#open.values()) question.reject(new Stopped("the connection was lost"));
      this.#open.clear();
      this.away(event.reason || "the server does not answer: is it still running?");
      setTimeout(() => this.#connect(), AWAY);
    };
  }

  #hear(message) {
    const question = this.#open.get(message.id);
    if (!question) return;
    if (message.busy) {
      // Not all at once: those that were sent away together come back one by one.
      setTimeout(() => { this.#open.delete(message.id); this.#send(question); }, AGAIN * (1 + Math.random()));
      return;
    } else if (message.done || message.stopped) {
      question.resolve();
    } else if (message.error) {
      question.reject(new Error(message.error));
    } else {
      question.answered(message);
      return;
    }
    this.#open.delete(message.id);
  }

  #send(question) {
    if (question.stopped) {
      question.resolve();
      return;
    }
    if (this.#socket.readyState !== WebSocket.OPEN) {
      question.reject(new Stopped("the server is away"));
      return;
    }
    const id = ++this.#last;
    this.#open.set(id, question);
    this.#socket.send(JSON.stringify({...question.request, id}));
  }

  // Resolves when the last answer has come, or when it was stopped.
  ask(request, answered = () => {}) {
    return new Promise((resolve, reject) => this.#send({request, answered, resolve, reject}));
  }

  stop(run) {
    for (const question of this.#open.values()) question.stopped ||= question.request.kind === "generate" && question.request.run === run;
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify({kind: "stop", run, id: 0}));
  }
}
