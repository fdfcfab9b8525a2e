/* The event stream of one conversation, for as long as the page is open.

   Read with fetch and not with EventSource: that gives up for ever at the first 502 of a restarting
   node, and does not show the comment lines by which a dead connection is told from a quiet one.
   The cursor moves with each event, so a reconnect goes on where it was, and an event that came
   twice is dropped by its number. */

import { url } from "./api.js";

const SILENCE = 35000; // ms; the site sends at least a comment every 15 s
const FIRST_PAUSE = 300; // ms until the first reconnect; doubled up to LONGEST_PAUSE
const LONGEST_PAUSE = 8000;

export class Stream {
  constructor(sessionId, { onEvent, onState }) {
    this.sessionId = sessionId;
    this.onEvent = onEvent;
    this.onState = onState;
    this.generation = 0;
    addEventListener("online", () => this.wake?.());
    document.addEventListener("visibilitychange", () => document.hidden || this.wake?.());
  }

  /* Follow the log after this cursor; whatever was followed before is left. */
  open(cursor) {
    this.cursor = cursor;
    this.abort?.abort();
    this.#run(++this.generation);
  }

  close() {
    this.generation++;
    this.abort?.abort();
  }

  async #run(generation) {
    let pause = FIRST_PAUSE;
    while (generation === this.generation) {
      const refusal = await this.#read(generation, () => { pause = FIRST_PAUSE; });
      if (generation !== this.generation) return;
      if (refusal === 401 || refusal === 403) return this.onState("signed_out");
      if (refusal === 404) return this.onState("session_gone");
      this.onState("reconnecting");
      await this.#sleep(pause * (0.75 + Math.random() / 2));
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }

  #sleep(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => { clearTimeout(timer); resolve(); };
    });
  }

  /* One connection, to its end. The HTTP status where the site refused it. */
  async #read(generation, onAlive) {
    const abort = (this.abort = new AbortController());
    let timer = setTimeout(() => abort.abort(), SILENCE);
    try {
      const response = await fetch(url(`api/chat/${this.sessionId}/events?cursor=${this.cursor}`), {
        headers: { Accept: "text/event-stream" },
        signal: abort.signal,
        cache: "no-store",
      });
      if (!response.ok) return response.status;
      this.onState("connected");
      const lines = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new Parser((id, data) => this.#deliver(generation, id, data));
      for (;;) {
        const { done, value } = await lines.read();
        if (done) return null;
        clearTimeout(timer);
        timer = setTimeout(() => abort.abort(), SILENCE);
        onAlive();
        parser.push(value);
      }
    } catch {
      return null; // cut off, or aborted by the silence: both are mended by the next connection
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }

  #deliver(generation, id, data) {
    if (generation !== this.generation) return;
    if (id !== "") {
      const seq = Number(id);
      if (seq <= this.cursor) return;
      this.cursor = seq;
    }
    this.onEvent(JSON.parse(data));
  }
}

/* Server-sent events: fields by line, an empty line ends an event, a colon begins a comment. */
class Parser {
  constructor(onEvent) {
    this.onEvent = onEvent;
    this.rest = "";
    this.id = "";
    this.data = [];
  }

  push(text) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop();
    for (const line of lines) this.#line(line.endsWith("\r") ? line.slice(0, -1) : line);
  }

  #line(line) {
    if (line === "") {
      if (this.data.length) this.onEvent(this.id, this.data.join("\n"));
      this.id = "";
      this.data = [];
    } else if (line.startsWith("data:")) {
      this.data.push(line.slice(line[5] === " " ? 6 : 5));
    } else if (line.startsWith("id:")) {
      this.id = line.slice(3).trim();
    }
  }
}
