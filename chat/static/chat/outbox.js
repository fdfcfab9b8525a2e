/* What has been sent and not been acknowledged yet, in the order in which it was written.

   Each goes out when the one before has arrived, under a key of its own, so that sending it again
   after a lost answer is the same message. A page that is left in between keeps them for the next
   one of this tab, together with what was being typed: nothing that was written is lost. */

import { ApiError, call, newId } from "./api.js";
import { byId, h } from "./dom.js";
import { t } from "./words.js";

/* Each reader has their own: who signs in after another neither sees nor sends what that one wrote. */
const place = (sessionId) => `agentsite.draft.${document.body.dataset.reader}.${sessionId ?? "new"}`;

/* What a page of this conversation has left behind, once: { text, unsent }. */
export function takeDraft(sessionId) {
  try {
    const found = JSON.parse(sessionStorage.getItem(place(sessionId)));
    sessionStorage.removeItem(place(sessionId));
    return found ?? { text: "", unsent: [] };
  } catch {
    return { text: "", unsent: [] }; // no storage
  }
}

export function keepDraft(sessionId, text, unsent) {
  if (text === "" && unsent.length === 0) return;
  try {
    sessionStorage.setItem(place(sessionId), JSON.stringify({ text, unsent }));
  } catch {
    // no storage, or too long for it
  }
}

export class Outbox {
  /* `deliver(item)` sends one; `onRefused(items, error)` takes back what did not go. */
  constructor(deliver, onRefused) {
    this.deliver = deliver;
    this.onRefused = onRefused;
    this.root = byId("outbox");
    this.items = [];
    this.refused = null; // the last one: the same words again are the same message
  }

  push(content, id = this.refused?.content === content ? this.refused.id : newId()) {
    this.items.push({ content, id });
    this.#draw();
    if (this.items.length === 1) this.#work();
  }

  async #work() {
    try {
      while (this.items.length > 0) {
        await this.deliver(this.items[0]);
        this.items.shift();
        this.refused = null; // the same words are another message now
        requestAnimationFrame(() => this.#draw()); // with what stands for it from now on
      }
    } catch (error) {
      const back = this.items.splice(0);
      this.refused = back.length === 1 ? back[0] : null;
      this.#draw();
      if (!(error instanceof ApiError)) throw error;
      this.onRefused(back, error);
    }
  }

  #draw() {
    this.root.replaceChildren(...this.items.map(({ content }) =>
      h("article", { class: "message", data: { role: "user" }, "aria-label": t("agent_user") },
        h("div", { class: "text", dir: "auto", textContent: content }), h("span", { class: "mark", textContent: t("sending") }))));
  }
}
