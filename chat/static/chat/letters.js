/* What the agents write to each other, oldest first; each opens the tree of its replies. Those from
   before the page was opened are asked for once, when somebody wants them; the others are events. */

import { ApiError, call } from "./api.js";
import { byId, h } from "./dom.js";
import { agentName, t } from "./words.js";

export async function allLetters(sessionId) {
  const all = [];
  for (let after = ""; after !== null;) {
    const { items, next } = await call("GET", `api/chat/${sessionId}/inbox?after=${after}`);
    all.push(...items);
    after = next;
  }
  return all;
}

export const fromTo = ({ sender, recipient }) => `${agentName(sender)} → ${agentName(recipient)}`;
export const kindOf = ({ type }) => t(`letter_${type}`);

export class Letters {
  constructor(state, actions, sessionId) {
    this.state = state;
    this.actions = actions;
    this.sessionId = sessionId;
    this.root = byId("letters");
    state.listen((kind) => kind === "letters" && !this.root.hidden && this.draw());
  }

  /* Once; what happens later comes by itself. */
  async load() {
    if (!this.sessionId || this.loaded === this.state.letters) return;
    this.loaded = this.state.letters;
    try {
      this.state.addLetters(await allLetters(this.sessionId));
    } catch (error) {
      this.loaded = null;
      if (!(error instanceof ApiError)) throw error; // a panel without them is still a panel
    }
  }

  shown() {
    this.load();
    this.draw();
  }

  draw() {
    const letters = [...this.state.letters.values()];
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    this.root.replaceChildren(letters.length === 0 ? h("p", { class: "empty", textContent: t("letters_none") }) : h("ol", { class: "letters" }, letters.map((letter) => this.#row(letter))));
    if (focused) this.root.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
  }

  #row(letter) {
    return h("li", {}, h("button", { type: "button", data: { id: letter.id }, "aria-haspopup": "dialog", onclick: () => this.actions.showChain(letter.id) },
      h("span", { class: "letter-head" }, h("span", { textContent: fromTo(letter) }), h("span", { class: "pill", textContent: kindOf(letter) })),
      h("span", { class: "letter-text", dir: "auto", textContent: letter.preview })));
  }
}
