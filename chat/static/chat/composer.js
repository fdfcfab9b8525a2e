/* The message field and Stop.

   Enter sends, but never while an input method is composing: there it confirms a word. The field is
   free for the next message at once; what the site refuses comes back into it. */

import { call, url } from "./api.js";
import { Commands } from "./commands.js";
import { byId } from "./dom.js";
import { keepDraft, Outbox, takeDraft } from "./outbox.js";
import { t } from "./words.js";

const PAUSES = [500, 2000]; // ms, before what was not answered is sent again
const LONG = 20000; // characters; in more, finding each line's direction costs seconds a key

export class Composer {
  constructor(state, actions, sessionId) {
    this.state = state;
    this.actions = actions;
    this.sessionId = sessionId;
    this.form = byId("composer");
    this.field = byId("message");
    this.sendButton = byId("send");
    this.stopButton = byId("stop");
    this.commands = new Commands(this.field, actions.commands);
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    this.field.addEventListener("input", () => this.#typed());
    this.field.addEventListener("paste", (event) => this.#pasted(event));
    this.field.addEventListener("keydown", (event) => this.#key(event));
    this.stopButton.addEventListener("click", () => actions.stop());
    document.addEventListener("keydown", (event) => this.#escape(event));
    state.listen((kind) => this.#heard(kind));
    this.outbox = new Outbox((item) => this.#deliver(item), (items, error) => this.#takeBack(items, error));
    addEventListener("pagehide", () => this.hasMoved || keepDraft(sessionId, this.field.value, this.outbox.items));
    this.#goOn(takeDraft(sessionId));
  }

  /* With what another page of this tab has left. */
  #goOn({ text, unsent }) {
    if (text !== "") this.field.value = text;
    for (const { content, id } of unsent) this.outbox.push(content, id);
    this.#typed();
  }

  get sending() {
    return this.outbox.items.length > 0;
  }

  #heard(kind) {
    if (kind === "status") this.#drawStop();
    if (kind === "questions") {
      const open = this.state.questions.size > 0;
      byId("supersede-hint").hidden = !open;
      byId("supersede-hint").textContent = open ? t("question_supersedes") : "";
      document.querySelector(".hint-keys").hidden = open;
    }
  }

  #drawStop() {
    const { busy } = this.state;
    if (!busy) this.stopButton.disabled = false;
    if (!busy && document.activeElement === this.stopButton) this.field.focus();
    this.stopButton.hidden = !busy;
  }

  #typed() {
    this.sendButton.disabled = this.field.value.trim() === "";
    this.field.dir = this.field.value.length > LONG ? "" : "auto";
    if (!CSS.supports("field-sizing", "content")) {
      this.field.style.height = "auto";
      this.field.style.height = `${this.field.scrollHeight}px`;
    }
  }

  /* The browser itself takes a minute for a megabyte, for the sake of an undo. */
  #pasted(event) {
    const text = event.clipboardData.getData("text/plain");
    if (text.length <= LONG) return;
    event.preventDefault();
    this.field.dir = "";
    this.field.setRangeText(text, this.field.selectionStart, this.field.selectionEnd, "end");
    this.#typed();
  }

  #key(event) {
    if (this.commands.key(event)) return;
    if (event.key === "ArrowUp" && this.field.value === "") return this.actions.editLast(event);
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    this.send();
  }

  #escape(event) {
    if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return;
    if (document.querySelector("dialog[open], .side[data-open], :popover-open") || !this.state.busy) return;
    event.preventDefault();
    this.actions.stop();
  }

  fill(text) {
    this.field.value = text;
    this.#typed();
    this.field.focus();
  }

  send(text = this.field.value) {
    const content = text.trim();
    if (content === "") return;
    if (this.commands.taken(content, () => this.actions.trouble(t("command_not_now", { command: content })))) return;
    if (text === this.field.value) this.field.value = "";
    this.#typed();
    this.actions.trouble("");
    this.outbox.push(content);
    this.actions.sent();
  }

  async #deliver({ content, id }) {
    if (!this.sessionId) return this.#begin(content, id);
    const answer = await this.#ask(() => call("POST", `api/chat/${this.sessionId}/messages`, { content, id }));
    if (answer.status !== "started") return; // it is in the queue, and the queue is an event
    this.state.addUserMessage(answer.message_id, content, answer.run_id);
    const heardOf = this.state.master?.run_id === answer.run_id; // and what has become of it
    if (!this.state.busy && !heardOf) this.state.setStatus("queued");
  }

  /* An answer may be lost where the message has arrived. Under the same key it is the same one, but
     words that have come back into the field may be joined by others, and go as another. */
  async #ask(send) {
    for (const pause of PAUSES) {
      try {
        return await send();
      } catch (error) {
        if (error.status !== 0) throw error;
        await new Promise((done) => setTimeout(done, pause));
      }
    }
    return send();
  }

  /* The first message makes the conversation; its page takes over from here, with all the rest. */
  async #begin(content, id) {
    this.beginning ??= await call("POST", "api/chat", {});
    await call("POST", `api/chat/${this.beginning.id}/messages`, { content, id });
    addEventListener("pagehide", () => keepDraft(this.beginning.id, this.field.value, this.outbox.items.slice(1)));
    this.hasMoved = true;
    location.assign(url(`chat/${this.beginning.id}/`));
    await new Promise(() => {}); // keep all as it is until the page is gone
  }

  #takeBack(items, error) {
    const texts = [...items.map((item) => item.content), this.field.value];
    this.fill(texts.filter((text) => text.trim() !== "").join("\n\n"));
    this.actions.trouble(t("send_failed", { detail: error.message }));
  }
}
