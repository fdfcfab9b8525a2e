/* The conversation: one element per item, changed in place.

   Streaming text is a text node that grows; block by block, and at last as a whole, it is replaced by
   the site's rendering of the same text. What is rendered stays: a reader may be selecting in it. */

import { CallCard } from "./calls.js";
import { copyButton } from "./clipboard.js";
import { announce, byId, h, icon } from "./dom.js";
import * as markdown from "./markdown.js";
import { reasonText } from "./status.js";
import { tokens } from "./usage.js";
import { agentName, fullTime, t } from "./words.js";

export class Conversation {
  constructor(state, actions) {
    this.state = state;
    this.actions = actions;
    this.views = new Map();
    this.root = byId("messages");
    state.listen((kind, ids) => this.#heard(kind, ids));
  }

  clear() {
    this.views.clear();
    this.root.replaceChildren();
  }

  #heard(kind, ids) {
    if (kind === "order") this.#arrange();
    if (kind === "item") for (const id of ids) this.views.get(id)?.update();
    if (kind === "call") for (const id of ids) this.#callChanged(id);
    if (kind === "subrun") for (const id of ids) this.#subrunChanged(id);
  }

  #arrange() {
    let before = null;
    let next = this.root.firstChild;
    for (const id of this.state.order) {
      const item = this.state.items.get(id);
      if (!this.views.has(id)) this.views.set(id, itemView(item, this.state, this.actions));
      const { element } = this.views.get(id);
      if (element === next) next = next.nextSibling;
      else this.root.insertBefore(element, next);
      element.classList.toggle("goes-on", item.role !== "user" && before !== null && before.role !== "user" && !before.part);
      if (item.role !== "reasoning") before = item;
      this.views.get(id).update();
    }
  }

  #callChanged(id) {
    const call = this.state.calls.get(id);
    const item = call && this.state.items.get(call.itemId);
    if (!item) return;
    if (item.runId) this.#subrunChanged(item.runId);
    else this.views.get(item.id)?.update();
  }

  #subrunChanged(runId) {
    const subrun = this.state.subruns.get(runId);
    if (subrun?.callId) this.#callChanged(subrun.callId);
  }
}

export function itemView(item, state, actions) {
  if (item.role === "user") return new UserView(item);
  if (item.role === "usage") return new UsageView(item);
  if (item.role === "reasoning") return new ReasoningView(item);
  if (item.role === "system") return item.part?.type === "notice" ? new NoticeView(item) : new SystemView(item, state);
  return new AssistantView(item, state, actions);
}

class UserView {
  constructor(item) {
    this.element = h("article", { class: "message", data: { role: "user" }, title: fullTime(item.at), "aria-label": t("agent_user") },
      h("div", { class: "text", dir: "auto", textContent: item.text }));
  }

  update() {}
}

class UsageView {
  constructor(item) {
    this.element = h("p", { class: "turn-usage", textContent: tokens(item.part.tokens) });
  }

  update() {}
}

class NoticeView {
  constructor(item) {
    const { kind = "" } = item.part;
    const text = kind === "error" ? `${t("run_failed")} ${reasonText(item.text) || item.text}` : item.text;
    this.element = h("p", { class: "notice", data: { kind } }, h("span", { dir: "auto", textContent: text }));
    announce(text);
  }

  update() {}
}

class SystemView {
  constructor(item) {
    const from = item.part?.sender ?? "system";
    this.element = h("details", { class: "fold quiet" },
      h("summary", {}, icon("chevron"), h("span", { class: "fold-name", textContent: t("message_from", { agent: agentName(from) }) }), h("span", { class: "fold-note", textContent: item.text })),
      h("div", { class: "fold-body" }, h("pre", { textContent: item.text })));
  }

  update() {}
}

class ReasoningView {
  constructor(item) {
    this.item = item;
    this.text = new TextView(item);
    this.element = h("details", { class: "fold quiet" },
      h("summary", {}, icon("chevron"), h("span", { class: "fold-name", textContent: t("reasoning") })),
      h("div", { class: "fold-body" }, this.text.element));
  }

  update() {
    this.text.update();
  }
}

class AssistantView {
  constructor(item, state, actions) {
    this.item = item;
    this.state = state;
    this.actions = actions;
    this.text = new TextView(item);
    this.cards = new Map();
    this.calls = h("div", { class: "calls", hidden: true });
    this.copy = copyButton(() => item.text);
    this.superseded = h("p", { class: "mark", textContent: t("message_superseded"), hidden: !item.superseded });
    this.element = h("article", { class: "message", data: { role: "assistant" }, hidden: true, "aria-label": agentName(item.agentId) },
      h("div", { class: "speaker", title: fullTime(item.at), textContent: agentName(item.agentId) }), this.text.element, this.copy, this.superseded, this.calls);
  }

  update() {
    const { item } = this;
    this.element.hidden = item.text === "" && item.calls.length === 0;
    this.element.dataset.status = item.status;
    this.copy.hidden = item.text === "" || item.status === "partial";
    this.text.update();
    for (const id of item.calls) {
      if (!this.cards.has(id)) {
        const card = new CallCard(this.state.calls.get(id), this.state, this.actions);
        this.cards.set(id, card);
        this.calls.append(card.element);
        this.calls.hidden = false;
      }
      this.cards.get(id).update();
    }
  }
}

/* A text that grows: its finished blocks as Markdown, what is still being written as it comes. When
   the message is complete, all of it is shown as the site renders the whole. */
export class TextView {
  constructor(item) {
    this.item = item;
    this.drawn = 0;
    this.shown = null;
    this.node = document.createTextNode("");
    this.tail = h("div", { class: "streaming" }, this.node);
    this.element = h("div", { class: "prose", dir: "auto" }, this.tail);
  }

  update() {
    const { item } = this;
    const whole = item.status !== "partial";
    if (whole && this.shown === item.text) return;
    if (whole && item.html !== null) return this.#show(item.html);
    if (this.drawn < item.text.length) {
      this.node.appendData(item.text.slice(this.drawn));
      this.drawn = item.text.length;
    }
    this.tail.classList.toggle("caret", !whole && item.text !== "");
    if (whole && item.text !== "") this.#render(item.text);
    else this.#settle();
  }

  async #settle() {
    const end = this.settling ? 0 : markdown.settled(this.node.data);
    if (end === 0) return;
    this.settling = true;
    try {
      const html = await markdown.render(this.node.data.slice(0, end));
      if (!this.tail.isConnected) return; // it is complete by now, and shown as a whole
      this.tail.before(...markdown.nodes(html).childNodes);
      this.node.deleteData(0, end);
      this.settling = false;
      this.#settle();
    } catch {
      // it stays plain until the message is complete
    }
  }

  async #render(text) {
    this.shown = text;
    try {
      const html = await markdown.render(text);
      if (this.item.text === text) this.#show(html);
    } catch {
      this.shown = null; // it stays plain text; a later change asks again
    }
  }

  #show(html) {
    this.item.html = html;
    this.shown = this.item.text;
    markdown.show(this.element, html);
  }
}
