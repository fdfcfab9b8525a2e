/* The message field and Stop.

   Enter sends, but never while an input method is composing: there it confirms a word. What was
   typed is kept until the site has acknowledged it, under one idempotency key, so that sending
   again after a lost answer is the same message. */

import { ApiError, call, newId, url } from "./api.js";
import { Commands } from "./commands.js";
import { byId } from "./dom.js";
import { t } from "./words.js";

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
    this.field.addEventListener("keydown", (event) => this.#key(event));
    this.stopButton.addEventListener("click", () => actions.stop());
    document.addEventListener("keydown", (event) => this.#escape(event));
    state.listen((kind) => this.#heard(kind));
    this.#typed();
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
    this.sendButton.disabled = this.sending || this.field.value.trim() === "";
    if (!CSS.supports("field-sizing", "content")) {
      this.field.style.height = "auto";
      this.field.style.height = `${this.field.scrollHeight}px`;
    }
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

  async send(text = this.field.value) {
    const content = text.trim();
    if (content === "" || this.sending) return;
    if (this.draft?.content !== content) this.draft = { content, id: newId() };
    this.sending = true;
    this.#typed();
    this.actions.trouble("");
    try {
      if (!this.sessionId) return await this.#begin(content);
      const answer = await call("POST", `api/chat/${this.sessionId}/messages`, { content, id: this.draft.id });
      this.#sent(content, answer);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.actions.trouble(t("send_failed", { detail: error.message }));
    } finally {
      this.sending = false;
      this.#typed();
    }
  }

  #sent(content, answer) {
    this.draft = null;
    if (this.field.value.trim() === content) this.field.value = "";
    if (answer.status === "started") {
      this.state.addUserMessage(answer.message_id, content, answer.run_id);
      if (!this.state.busy) this.state.setStatus("queued");
    }
    this.actions.sent();
  }

  /* The first message makes the conversation; its page takes over from here. */
  async #begin(content) {
    this.beginning ??= await call("POST", "api/chat", {});
    await call("POST", `api/chat/${this.beginning.id}/messages`, { content, id: this.draft.id });
    location.assign(url(`chat/${this.beginning.id}/`));
    await new Promise(() => {}); // keep the field as it is until the page is gone
  }
}
