/* The last message once more: "retry" sends the same words as a new message, "edit" puts them back
   into the field. What was said stays said: agents have worked on it, and the log is no draft. */

import { h, icon } from "./dom.js";
import { t } from "./words.js";

export class Again {
  constructor(state, conversation, composer) {
    this.state = state;
    this.conversation = conversation;
    this.composer = composer;
    const button = (label, sign, onclick) => h("button", { type: "button", class: "icon-button", title: label, "aria-label": label, onclick }, icon(sign));
    this.bar = h("div", { class: "again" }, button(t("message_edit"), "edit", () => this.edit()), button(t("message_retry"), "retry", () => this.retry()));
    state.listen((kind) => (kind === "order" || kind === "status") && this.#draw());
  }

  get #last() {
    const { items, order } = this.state;
    return items.get(order.findLast((id) => items.get(id).role === "user"));
  }

  edit() {
    if (this.#last) this.composer.fill(this.#last.text);
  }

  retry() {
    if (this.#last && !this.state.busy) this.composer.send(this.#last.text);
  }

  #draw() {
    const last = this.state.busy ? null : this.#last;
    const element = last && this.conversation.views.get(last.id)?.element;
    if (!element) this.bar.remove();
    else if (this.bar.parentNode !== element) element.append(this.bar);
  }
}
