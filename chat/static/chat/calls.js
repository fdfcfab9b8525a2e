/* Tool calls as folding cards. A call that gave an agent its task holds that agent's work: its
   text as it streams, its own calls, its end. So the master's text stays the master's. */

import { itemView } from "./conversation.js";
import { h, icon } from "./dom.js";
import * as markdown from "./markdown.js";
import { recipient, parsed, TERMINAL } from "./state.js";
import { statusPill } from "./status.js";
import { agentName, has, t } from "./words.js";

const TAIL = 120; // characters of a sub-agent's newest text, shown while its card is closed

export class CallCard {
  constructor(call, state, actions) {
    this.call = call;
    this.state = state;
    this.actions = actions;
    this.name = h("span", { class: "fold-name" });
    this.note = h("span", { class: "fold-note" });
    this.pill = h("span", { class: "pill" });
    this.body = h("div", { class: "fold-body" });
    this.views = new Map();
    this.work = h("div", { class: "messages fold-text", hidden: true });
    this.element = h("details", { class: "fold call", data: { tool: call.name }, ontoggle: () => this.#toggled() },
      h("summary", {}, icon("chevron"), this.name, this.note, this.pill), this.body);
  }

  update() {
    const subrun = this.state.subruns.get(this.call.subrunId);
    this.name.textContent = title(this.call);
    this.note.textContent = note(this.call, subrun, this.state);
    this.pill.replaceWith((this.pill = subrun ? statusPill(subrun.status, subrun.reason) : callPill(this.call, this.state)));
    if (this.element.open) this.#drawBody(subrun);
  }

  #toggled() {
    const subrun = this.state.subruns.get(this.call.subrunId);
    if (!this.element.open) return;
    if (subrun && !subrun.whole) this.actions.loadSubrun(subrun);
    this.#drawBody(subrun);
  }

  #drawBody(subrun) {
    const { call } = this;
    const parts = `${call.state} ${call.result !== null} ${call.subrunId} ${this.#isSaid()}`;
    if (parts !== this.parts) {
      this.parts = parts;
      this.body.replaceChildren(...this.#sections());
    }
    if (subrun) this.#drawWork(subrun);
  }

  #sections() {
    const { call } = this;
    const args = parsed(call.args);
    const task = call.name === "send_message" && typeof args.content === "string";
    const sections = [];
    if (task) sections.push(h("p", { class: "fold-part", textContent: t("task") }), richText(args.content));
    else if (call.args && call.args !== "{}") sections.push(h("p", { class: "fold-part", textContent: t("tool_arguments") }), h("pre", { textContent: pretty(call.args), tabIndex: 0 }));
    sections.push(this.work);
    if (call.result !== null && !this.#isSaid()) sections.push(h("p", { class: "fold-part", textContent: t("tool_result") }), resultView(call));
    return sections;
  }

  /* The agent's last words are its result: once is enough. */
  #isSaid() {
    const subrun = this.state.subruns.get(this.call.subrunId);
    const last = subrun && this.state.items.get(subrun.items.at(-1));
    return Boolean(last) && last.text !== "" && last.text === parsed(this.call.result).content;
  }

  #drawWork(subrun) {
    const { work } = this;
    const atEnd = work.scrollHeight - work.scrollTop - work.clientHeight < 40;
    for (const id of this.views.keys()) if (!subrun.items.includes(id)) { this.views.get(id).element.remove(); this.views.delete(id); }
    for (const id of subrun.items) {
      if (!this.views.has(id)) {
        this.views.set(id, itemView(this.state.items.get(id), this.state, this.actions));
        work.append(this.views.get(id).element);
      }
      this.views.get(id).update();
    }
    work.hidden = subrun.items.length === 0;
    if (atEnd) work.scrollTop = work.scrollHeight;
  }
}

export function title(call) {
  const args = parsed(call.args);
  if (call.name === "send_message") {
    return t(args.type === "revision" ? "tool_send_revision" : "tool_send_message", { agent: agentName(recipient(call)) || "…" });
  }
  if (call.name === "stop_agent") return t("tool_stop_agent", { agent: agentName(String(args.agent_id ?? "…")) });
  return has(`tool_${call.name}`) ? t(`tool_${call.name}`) : call.name;
}

function note(call, subrun, state) {
  const args = parsed(call.args);
  if (subrun && !TERMINAL.has(subrun.status)) {
    const live = tail(subrun, state);
    if (live) return live;
  }
  if (call.name === "ask_user") {
    const { answer } = parsed(call.result ?? "");
    return String(args.question ?? "") + (answer === undefined ? "" : ` → ${answerText(answer)}`);
  }
  if (call.name === "send_message") return String(args.content ?? "");
  return call.result ?? "";
}

function answerText(answer) {
  if (typeof answer === "boolean") return t(answer ? "question_yes" : "question_no");
  if (Array.isArray(answer)) return answer.map(answerText).join(", ");
  if (answer !== null && typeof answer === "object") return Object.entries(answer).map(([name, value]) => `${name}: ${answerText(value)}`).join(", ");
  return String(answer);
}

/* The end of what a sub-agent is saying. */
export function tail(subrun, state) {
  const last = subrun.items.map((id) => state.items.get(id)).findLast((item) => item.text !== "");
  if (!last) return "";
  const end = last.text.slice(-TAIL).replace(/\s+/g, " ").trim();
  return last.text.length > TAIL ? `… ${end.replace(/^[\w,.;:]+ /, "")}` : end; // no half words
}

function callPill(call, state) {
  const isAsked = call.name === "ask_user" || [...state.questions.values()].some(({ approval }) => approval?.tool === call.name);
  if (isAsked && call.state === "called") return statusPill("waiting_user");
  if (call.state === "interrupted") return h("span", { class: "pill", textContent: t("tool_interrupted") });
  if (call.state === "done") return h("span", { class: "pill", data: { tone: "good" } }, icon("check"), t("tool_done"));
  return h("span", { class: "pill", data: { tone: "busy" }, textContent: t("tool_running") });
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // half a call: it was cut off
  }
}

/* An awaited result is the other agent's Markdown; any other is shown as it is. */
function resultView(call) {
  const { content } = parsed(call.result);
  if (call.name === "send_message" && typeof content === "string" && content !== "") return richText(content);
  return h("pre", { textContent: pretty(call.result), tabIndex: 0 });
}

export function richText(text) {
  const element = h("div", { class: "streaming", dir: "auto", textContent: text });
  markdown.render(text).then((html) => markdown.show(element, html), () => {});
  return element;
}
