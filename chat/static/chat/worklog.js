/* The work log: what happened, newest last, as the operator's log has it. */

import { byId, h } from "./dom.js";
import { agentName, fullTime, has, t, timeOfDay } from "./words.js";

const SHOWN = 200; // lines, as the page begins with; the whole log is in the admin

export class WorkLog {
  constructor(state) {
    this.state = state;
    this.root = byId("worklog");
    this.list = h("ol", { class: "log" });
    this.drawn = 0;
    state.listen((kind) => kind === "log" && !this.root.hidden && this.draw());
  }

  shown() {
    this.draw();
    this.root.scrollTo(0, this.root.scrollHeight);
  }

  clear() {
    this.drawn = 0;
    this.list.replaceChildren();
  }

  draw() {
    const { log } = this.state;
    if (log.length === 0) return this.root.replaceChildren(h("p", { class: "empty", textContent: t("worklog_none") }));
    const atEnd = this.root.scrollHeight - this.root.scrollTop - this.root.clientHeight < 40;
    this.drawn = Math.max(this.drawn, log.length - SHOWN);
    this.list.append(...log.slice(this.drawn).map(line));
    this.drawn = log.length;
    while (this.list.childElementCount > SHOWN) this.list.firstChild.remove();
    const earlier = log.length >= SHOWN ? [h("p", { class: "empty", textContent: t("worklog_earlier") })] : [];
    this.root.replaceChildren(...earlier, this.list);
    if (atEnd) this.root.scrollTop = this.root.scrollHeight;
  }
}

/* What happened in the reader's words, then the log's own text where it says more than that. */
function line(entry) {
  const what = has(`log_${entry.kind}`) ? t(`log_${entry.kind}`) : entry.kind;
  const who = entry.agent_id ? `${agentName(entry.agent_id)} · ` : "";
  return h("li", { data: { level: entry.level, kind: entry.kind } },
    h("time", { dateTime: entry.at, textContent: timeOfDay(entry.at), title: fullTime(entry.at) }),
    h("p", { title: entry.kind }, who + what, details(entry)));
}

const SAID = ["run_completed", "run_interrupted", "run_moves"]; // by their kind, all of it

function details({ kind, text, agent_id: agent }) {
  const rest = SAID.includes(kind) ? "" : text.replace(`${agent}: `, "");
  return rest && h("span", { class: "details", dir: "auto", textContent: ` ${rest}` });
}
