/* The messages that wait above the field. Each can be given other words, or be taken out, until its
   turn comes: then the site refuses, and the list says so by itself.

   Editing is a form in the item's place: Enter saves, Escape leaves the message as it was. A list
   that is drawn anew in the meantime (another tab, another turn) keeps that form. */

import { ApiError, call } from "./api.js";
import { announce, byId, h, icon } from "./dom.js";
import { t } from "./words.js";

const BEGINNING = 40; // characters of a message that name it in a button's label

export class Queue {
  constructor(state, actions, sessionId) {
    this.state = state;
    this.actions = actions;
    this.sessionId = sessionId;
    this.box = byId("queue");
    this.editing = null; // { id, form } of the item that is being edited
    state.listen((kind) => kind === "queue" && this.#draw());
  }

  #draw() {
    const { queue } = this.state;
    const focused = this.box.contains(document.activeElement) ? document.activeElement : null;
    const { id, does } = focused?.dataset ?? {};
    if (this.editing && !queue.some((item) => item.id === this.editing.id)) this.editing = null;
    this.box.hidden = queue.length === 0;
    this.box.replaceChildren(h("h2", { textContent: t("queue_title") }), h("ol", {}, queue.map((item) => this.#item(item))));
    if (!focused) return;
    const again = this.box.contains(focused) ? focused : this.#button(id, does);
    (again ?? byId("message")).focus();
  }

  #button(id, does) {
    return [...this.box.querySelectorAll("button")].find((one) => one.dataset.id === id && one.dataset.does === does);
  }

  #item(item) {
    if (this.editing?.id === item.id) return h("li", {}, this.editing.form);
    const text = item.content.length > BEGINNING ? `${item.content.slice(0, BEGINNING)}…` : item.content;
    const button = (does, name, label, onclick) =>
      h("button", { type: "button", class: "icon-button", data: { id: item.id, does }, title: label, "aria-label": label, onclick }, icon(name));
    return h("li", {},
      h("span", { textContent: item.content, dir: "auto", title: item.content }),
      button("edit", "edit", t("queue_edit", { text }), () => this.#edit(item)),
      button("remove", "trash", t("queue_remove", { text }), () => this.#remove(item)));
  }

  #edit(item) {
    const field = h("textarea", { value: item.content, dir: "auto", rows: 2, "aria-label": t("queue_words") });
    const form = h("form", { class: "queue-edit" }, field,
      h("button", { class: "button", textContent: t("queue_save") }),
      h("button", { type: "button", class: "button", textContent: t("queue_keep"), onclick: () => this.#done(item.id) }));
    form.addEventListener("submit", (event) => { event.preventDefault(); this.#save(item, field.value); });
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || event.keyCode === 229) return;
      if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); form.requestSubmit(); }
      if (event.key === "Escape") { event.preventDefault(); this.#done(item.id); }
    });
    this.editing = { id: item.id, form };
    this.#draw();
    field.focus();
  }

  /* Close the form; the focus goes back to the button that has opened it. */
  #done(id) {
    this.editing = null;
    this.#draw();
    (this.#button(id, "edit") ?? byId("message")).focus();
  }

  async #save(item, text) {
    const content = text.trim();
    if (content === "" || content === item.content) return this.#done(item.id);
    if (await this.#change("PATCH", item.id, { content })) this.#done(item.id);
  }

  async #remove(item) {
    if (await this.#change("DELETE", item.id)) announce(t("queue_removed"));
  }

  async #change(method, id, body) {
    this.actions.trouble("");
    try {
      await call(method, `api/chat/${this.sessionId}/queue/${id}`, body);
      return true;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.actions.trouble(error.code === "already_started" ? t("queue_started") : t("queue_failed", { detail: error.message }));
      return false;
    }
  }
}
