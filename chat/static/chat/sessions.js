/* The list of conversations: plain links, drawn by the site; here only older ones and Delete. */

import { ApiError, call, url } from "./api.js";
import { byId, h, icon } from "./dom.js";
import { t } from "./words.js";

export class Sessions {
  constructor(state, actions, sessionId) {
    this.state = state;
    this.actions = actions;
    this.sessionId = sessionId;
    this.list = byId("session-list");
    this.more = byId("older-sessions");
    this.more.addEventListener("click", () => this.#older());
    this.list.addEventListener("click", (event) => {
      const button = event.target.closest("[data-delete]");
      if (button) this.#delete(button.closest("li"));
    });
    state.listen((kind) => kind === "status" && this.#drawStatus());
  }

  get own() {
    return this.list.querySelector(`[data-id="${CSS.escape(this.sessionId ?? "")}"]`);
  }

  #drawStatus() {
    if (this.own) this.own.dataset.status = this.state.status;
  }

  setTitle(title) {
    const own = this.own?.querySelector(".session-title");
    if (own) own.textContent = title;
  }

  async #older() {
    this.more.disabled = true;
    try {
      const { items, next } = await call("GET", `api/chat?after=${encodeURIComponent(this.list.dataset.older)}`);
      this.list.append(...items.map(row));
      this.list.dataset.older = next ?? "";
      this.more.hidden = !next;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.actions.trouble(error.message);
    } finally {
      this.more.disabled = false;
    }
  }

  async #delete(item) {
    const title = item.querySelector(".session-title").textContent;
    if (!(await confirmed(t("delete_session", { title })))) return;
    try {
      await call("DELETE", `api/chat/${item.dataset.id}`);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status !== 404) return this.actions.trouble(t("delete_failed", { detail: error.message }));
    }
    if (item.dataset.id === this.sessionId) location.assign(url(""));
    else item.remove();
  }
}

function row(session) {
  const title = session.title || t("untitled");
  return h("li", { data: { id: session.id, status: session.status } },
    h("a", { href: url(`chat/${session.id}/`) }, h("span", { class: "session-title", dir: "auto", textContent: title })),
    h("button", { type: "button", class: "icon-button", data: { delete: "" }, "aria-label": t("delete_session", { title }) }, icon("trash")));
}

function confirmed(question) {
  const dialog = byId("confirm");
  byId("confirm-title").textContent = question;
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "confirm"), { once: true });
  });
}
