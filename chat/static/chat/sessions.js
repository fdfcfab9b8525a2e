/* The list of conversations: plain links, drawn by the site for the first paint, then kept as it is
   now. What happens in other conversations is no event of this one, so the list asks; a row that
   is there stays the same element, so that nobody's click or open form is lost. */

import { ApiError, call, url } from "./api.js";
import { byId, h, icon } from "./dom.js";
import { whenNear } from "./layout.js";
import { rename } from "./rename.js";
import { Unread } from "./unread.js";
import { t } from "./words.js";

const ASK_EVERY = 10000; // ms, while the page is visible
const TYPING = 250; // ms without a key after which a search is begun

export class Sessions {
  constructor(state, actions, sessionId) {
    this.state = state;
    this.actions = actions;
    this.sessionId = sessionId;
    this.list = byId("session-list");
    this.more = byId("older-sessions");
    this.search = byId("session-search");
    this.none = byId("session-none");
    this.searched = "";
    this.unread = new Unread(sessionId);
    this.more.addEventListener("click", () => this.#older());
    whenNear(this.more, () => this.#older());
    this.list.addEventListener("click", (event) => this.#clicked(event));
    this.search.addEventListener("input", () => this.#typed());
    this.search.addEventListener("keydown", (event) => this.#escape(event));
    state.listen((kind) => kind === "status" && this.#drawStatus());
    document.addEventListener("visibilitychange", () => this.#ask());
    setInterval(() => this.#ask(), ASK_EVERY);
    this.#ask();
  }

  get own() {
    return this.#row(this.sessionId);
  }

  #row(id) {
    return this.list.querySelector(`[data-id="${CSS.escape(id ?? "")}"]`);
  }

  #drawStatus() {
    if (this.own) this.own.dataset.status = this.state.status;
  }

  /* This page has shown its conversation up to here. */
  seen(cursor) {
    this.unread.saw(this.sessionId, cursor);
  }

  setTitle(title) {
    if (this.own) setTitle(this.own, title);
  }

  #clicked(event) {
    const button = event.target.closest("[data-does]");
    const row = button?.closest("li");
    if (button?.dataset.does === "delete") this.#delete(row);
    if (button?.dataset.does === "rename") this.rename(row);
  }

  /* Give a conversation another title; without a row, this page's own. */
  async rename(row = this.own) {
    if (row && !row.checkVisibility({ visibilityProperty: true })) document.querySelector('[data-opens="sessions"]').click();
    const title = row && (await rename(row));
    if (!title) return;
    try {
      await call("PATCH", `api/chat/${row.dataset.id}`, { title });
      setTitle(row, title);
      if (row === this.own) this.actions.titled(title);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.actions.trouble(t("rename_failed", { detail: error.message }));
    }
  }

  /* -- the list as it is now ------------------------------------------------------------------- */

  async #ask() {
    if (document.hidden) return;
    const words = this.search.value.trim();
    try {
      const { items, next } = await call("GET", `chat/list/?q=${encodeURIComponent(words)}`);
      if (words === this.search.value.trim()) this.#draw(items, next, words);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error; // the stream says what is wrong
    }
  }

  #draw(items, next, words) {
    const rows = items.map((item) => this.#updated(item));
    const older = words || this.searched ? [] : [...this.list.children].filter((row) => "older" in row.dataset);
    if (older.length === 0) {
      this.more.hidden = !next || words !== "";
      this.list.dataset.older = next ?? "";
    }
    this.searched = words;
    const shown = [...rows, ...older.filter((row) => !rows.includes(row))];
    if (shown.length !== this.list.childElementCount || shown.some((row, i) => row !== this.list.children[i])) this.list.replaceChildren(...shown);
    this.none.hidden = words === "" || rows.length > 0;
    if (!words) this.unread.keep(items);
  }

  #updated(item) {
    const isOwn = item.id === this.sessionId;
    const title = item.title || t("untitled");
    const row = this.#row(item.id) ?? newRow(item, isOwn);
    if (isOwn) this.actions.titled(title); // another tab may have renamed it
    else row.dataset.status = item.status; // of its own the page knows more
    setTitle(row, title);
    const unread = this.unread.has(item);
    row.toggleAttribute("data-unread", unread);
    row.querySelector(".unread-word").hidden = !unread;
    return row;
  }

  #typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.#ask(), TYPING);
  }

  #escape(event) {
    if (event.key !== "Escape" || event.isComposing || this.search.value === "") return;
    event.preventDefault();
    this.search.value = "";
    this.#ask();
  }

  async #older() {
    if (this.more.disabled || this.more.hidden) return;
    this.more.disabled = true;
    try {
      const { items, next } = await call("GET", `api/chat?after=${encodeURIComponent(this.list.dataset.older)}`);
      for (const item of items) {
        if (this.#row(item.id)) continue;
        const row = newRow(item, item.id === this.sessionId);
        row.dataset.older = "";
        this.list.append(row);
      }
      this.list.dataset.older = next ?? "";
      this.more.hidden = !next;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.actions.trouble(error.message);
    } finally {
      this.more.disabled = false;
    }
  }

  async #delete(row) {
    const title = row.querySelector(".session-title").textContent;
    if (!(await confirmed(t("delete_session", { title })))) return;
    try {
      await call("DELETE", `api/chat/${row.dataset.id}`);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status !== 404) return this.actions.trouble(t("delete_failed", { detail: error.message }));
    }
    if (row.dataset.id === this.sessionId) return location.assign(url(""));
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    (next?.querySelector("a") ?? this.search).focus();
  }
}

function newRow(item, isOwn) {
  const button = (does, sign) => h("button", { type: "button", class: "icon-button", data: { does } }, icon(sign));
  const row = h("li", { data: { id: item.id, status: item.status } },
    h("a", { href: url(`chat/${item.id}/`), "aria-current": isOwn ? "page" : null },
      h("span", { class: "session-title", dir: "auto" }), h("span", { class: "unread-word visually-hidden", hidden: true, textContent: t("unread") })),
    button("rename", "edit"), button("delete", "trash"));
  setTitle(row, item.title || t("untitled"));
  return row;
}

function setTitle(row, title) {
  const place = row.querySelector(".session-title");
  if (place.textContent !== title) place.textContent = title;
  for (const does of ["rename", "delete"]) row.querySelector(`[data-does="${does}"]`).setAttribute("aria-label", t(`${does}_session`, { title }));
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
