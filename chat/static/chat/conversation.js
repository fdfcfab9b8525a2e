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

/* A tooltip with the time, made when it is wanted: a date costs more than the rest of the element. */
const timed = (item) => ({ currentTarget: element }) => { element.title ||= fullTime(item.at); };

const SHOWN = 20000; // characters of a pasted book

class UserView {
  constructor(item) {
    const isLong = item.text.length > SHOWN;
    const text = h("div", { class: "text", dir: "auto", textContent: isLong ? `${item.text.slice(0, SHOWN)}…` : item.text });
    this.element = h("article", { class: "message", data: { role: "user" }, onmouseenter: timed(item), "aria-label": t("agent_user") }, text);
    if (isLong) this.element.append(h("button", { type: "button", class: "link", textContent: t("show_all"), onclick({ currentTarget: button }) { text.textContent = item.text; button.remove(); } }));
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
      h("div", { class: "speaker", onmouseenter: timed(item), textContent: agentName(item.agentId) }), this.text.element, this.copy, this.superseded, this.calls);
  }

  update() {
    const { item } = this;
    this.element.hidden = item.text === "" && item.calls.length === 0;
    this.element.dataset.status = item.status;
    this.copy.hidden = item.text === "" || item.status === "partial";
    this.superseded.hidden = !item.superseded;
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

const CHUNK = 4000; // characters of a growing block of code that are laid out together
const GROWN = 1 / 8; // by which an open list must have grown before it is rendered anew

/* A text that grows: its finished blocks as Markdown, and so the finished items of a list that goes
   on; what is still being written as it comes, code in a frame of its own. When the message is
   complete, all of it is shown as the site renders the whole. */
export class TextView {
  constructor(item) {
    this.item = item;
    this.shown = null;
    this.element = h("div", { class: "prose", dir: "auto" });
    this.blocks = new markdown.Blocks();
    this.live = []; // the parts that are shown as they come
    this.begun = 0; // how many of the parts have ever been
    this.html = ""; // of the whole blocks
    this.from = 0; // where the first block begins that is not whole
    this.to = 0; // up to here it is rendered, whole or not
    this.open = []; // the nodes between the two
  }

  update() {
    const { item } = this;
    const whole = item.status !== "partial";
    if (whole && this.shown === item.text) return;
    if (whole && item.html !== null) return this.#show(item.html);
    this.#write();
    if (whole && item.text !== "") this.#render(item.text);
    else this.#settle();
  }

  #write() {
    const { text, status } = this.item;
    this.blocks.read(text);
    for (const part of this.blocks.parts.slice(this.begun)) {
      this.live.push(new LivePart(part));
      this.element.append(this.live.at(-1).element);
    }
    this.begun = this.blocks.parts.length;
    for (const part of this.live) part.write(text, status === "partial" && part === this.live.at(-1) && text !== "");
  }

  /* Up to where it is worth rendering now. */
  get #next() {
    const { end, rows } = this.blocks;
    if (end > this.from) return end;
    return rows > this.from && rows - this.to > (this.to - this.from) * GROWN ? rows : 0;
  }

  async #settle() {
    const to = this.#next;
    if (to === 0 || this.settling) return;
    this.settling = true;
    try {
      const isWhole = to === this.blocks.end;
      const html = await markdown.renderOnce(this.item.text.slice(this.from, to));
      if (this.shown !== null) return; // it is complete by now, and shown as a whole
      this.#replace(html, to, isWhole);
      this.settling = false;
      this.#settle();
    } catch {
      // it stays plain until the message is complete
    }
  }

  #replace(html, to, isWhole) {
    const fresh = [...markdown.nodes(html).childNodes];
    const before = this.open[0] ?? this.live[0].element;
    before.before(...fresh);
    for (const node of this.open) node.remove();
    this.to = to;
    if (isWhole) [this.from, this.html, this.open] = [to, this.html + html, []];
    else this.open = fresh;
    while (this.live.length > 1 && this.live[1].at <= to) this.live.shift().element.remove();
    this.live[0].dropUpTo(to);
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

  /* What is rendered and right stays; of a long text that is nearly all. */
  #show(html) {
    this.item.html = html;
    this.shown = this.item.text;
    if (this.from === 0 || !html.startsWith(this.html)) return markdown.show(this.element, html);
    for (const node of this.open) node.remove();
    for (const part of this.live) part.element.remove();
    this.element.append(...markdown.nodes(html.slice(this.html.length)).childNodes);
    [this.from, this.open, this.live] = [0, [], []];
  }
}

/* A stretch of a growing text as it comes. Code is laid out in chunks of whole lines, so that a
   token at the end of a long block does not lay out all of it. */
class LivePart {
  constructor(part) {
    const { isCode, at, from } = part;
    this.part = part;
    this.at = at;
    this.drawn = from;
    this.dropped = from;
    this.node = document.createTextNode("");
    this.chunk = h(isCode ? "span" : "div", { class: isCode ? "chunk" : "streaming" }, this.node);
    this.code = isCode ? h("code", {}, this.chunk) : null;
    this.element = isCode ? h("div", { class: "copyable" }, h("pre", { tabIndex: 0 }, this.code)) : this.chunk;
  }

  write(text, isLast) {
    const to = this.part.to ?? text.length;
    if (to > this.drawn) this.node.appendData(text.slice(this.drawn, to));
    else this.node.deleteData(this.node.length - (this.drawn - to), this.drawn - to); // it was a fence
    this.drawn = to;
    while (this.code && this.node.length > CHUNK && this.#cut());
    this.chunk.classList.toggle("caret", isLast);
  }

  #cut() {
    const at = this.node.data.indexOf("\n", CHUNK - 1) + 1;
    if (at === 0 || at === this.node.length) return false;
    this.chunk.classList.remove("caret");
    this.node = this.node.splitText(at);
    this.chunk = h("span", { class: "chunk" }, this.node);
    this.code.append(this.chunk);
    return true;
  }

  dropUpTo(to) {
    if (to <= this.dropped) return;
    this.node.deleteData(0, to - this.dropped);
    this.dropped = to;
  }
}
