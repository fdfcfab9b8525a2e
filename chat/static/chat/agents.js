/* The agents' panel: who is there, who is alive, who has ended and why.

   Two clocks, never mixed: the heartbeat says that the worker lives, progress says that the work
   moves. Beats are no events (they would flood the log), so while anything runs the panel asks for
   them; ages tick by themselves. */

import { call } from "./api.js";
import { tail } from "./calls.js";
import { byId, h, icon } from "./dom.js";
import { TERMINAL } from "./state.js";
import { reasonText, statusPill, tone } from "./status.js";
import { age, agentName, fullTime, secondsSince, t } from "./words.js";

const TICK = 1000; // ms; ages are shown in seconds
const ASK_EVERY = 3; // ticks; about as often as workers beat

export class AgentsPanel {
  constructor(state, actions, sessionId) {
    this.state = state;
    this.actions = actions;
    this.sessionId = sessionId;
    this.root = byId("agents");
    this.ticks = 0;
    this.cards = new Map();
    this.empty = h("p", { class: "empty", textContent: t("agents_none") });
    state.listen((kind, ids) => {
      if (kind === "agents" || kind === "letters") this.draw();
      if (kind === "tail" || kind === "subrun") for (const id of ids) this.#drawTail(id);
    });
    setInterval(() => this.#tick(), TICK);
  }

  #tick() {
    if (document.hidden) return;
    for (const element of this.root.querySelectorAll("[data-at]")) element.textContent = age(element.dataset.at);
    const alive = this.state.agents.some((agent) => agent.lease || !TERMINAL.has(agent.status));
    if (alive && ++this.ticks % ASK_EVERY === 0) this.#ask();
  }

  async #ask() {
    try {
      const { agents } = await call("GET", `chat/${this.sessionId}/agents/`);
      this.state.setAgents(agents);
    } catch {
      // The stream says what is wrong with the connection; the ages go on growing, as they should.
    }
  }

  draw() {
    if (this.state.agents.some((a) => a.task_id && !this.state.letters.has(a.task_id))) this.actions.loadLetters();
    const { agents } = this.state;
    const cards = agents.map((agent) => this.#card(agent));
    const wanted = cards.length ? cards.map((card) => card.element) : [this.empty];
    if (wanted.length !== this.root.childElementCount || wanted.some((element, i) => element !== this.root.children[i])) {
      this.root.replaceChildren(...wanted);
    }
  }

  /* The agent's card. It is built anew only where more has changed than its times, so that nobody's
     click falls between two cards. */
  #card(agent) {
    const { lease } = agent;
    const task = this.state.letters.get(agent.task_id)?.preview ?? "";
    const shape = JSON.stringify([agent.run_id, agent.status, agent.reason, lease?.runner_id, lease?.epoch, task]);
    const known = this.cards.get(agent.agent_id);
    if (known?.shape === shape) {
      known.update(agent);
      return known;
    }
    const card = new AgentCard(agent, task, shape, this.actions);
    this.cards.set(agent.agent_id, card);
    this.#drawTail(agent.run_id);
    return card;
  }

  #drawTail(runId) {
    const subrun = this.state.subruns.get(runId);
    if (subrun) this.cards.get(subrun.agentId)?.say(TERMINAL.has(subrun.status) ? "" : tail(subrun, this.state));
  }
}

class AgentCard {
  constructor(agent, task, shape, actions) {
    this.shape = shape;
    this.actions = actions;
    const ended = TERMINAL.has(agent.status);
    const name = agentName(agent.agent_id);
    this.beat = h("dd", {});
    this.progress = h("dd", {});
    this.live = h("p", { class: "agent-live", dir: "auto", hidden: true }, h("span", {}));
    this.element = h("section", { class: "agent", data: { agent: agent.agent_id, status: agent.status, reason: agent.reason ?? "", tone: tone(agent.status, agent.reason) }, "aria-label": name },
      h("div", { class: "agent-head" },
        h("h3", { class: "agent-name", textContent: name, title: agent.agent_id }),
        statusPill(agent.status, agent.reason),
        !ended && agent.parent_run_id ? stopButton(agent.agent_id, name, actions) : null),
      agent.reason && agent.reason !== "completed" ? h("p", { class: "agent-reason", textContent: reasonText(agent.reason) }) : null,
      h("dl", { class: "agent-facts" }, this.#rows(agent, task, ended).map(([term, cell]) => [h("dt", { textContent: term }), cell])),
      this.live);
    this.update(agent);
  }

  #rows({ lease, last_progress_at: progress, task_id: taskId }, task, ended) {
    const rows = [];
    if (task) rows.push([t("task"), h("dd", {}, h("button", { type: "button", class: "link wrap", dir: "auto", title: t("chain_show"), "aria-haspopup": "dialog", textContent: task, onclick: () => this.actions.showChain(taskId) }))]);
    if (lease) rows.push([t("heartbeat"), this.beat]);
    if (progress) rows.push([t("progress"), this.progress]);
    if (lease) rows.push([t("lease_held_by"), h("dd", { class: "lease", title: lease.runner_id }, h("code", { textContent: lease.runner_id }), h("span", { textContent: t("lease_epoch", { epoch: lease.epoch }) }))]);
    else if (!ended) rows.push([t("lease_held_by"), h("dd", { textContent: t("no_lease") })]);
    return rows;
  }

  update({ lease, last_progress_at: progress }) {
    showAge(this.progress, progress);
    showAge(this.beat, lease?.beat_at);
    this.beat.dataset.tone = lease && secondsSince(lease.expires_at) > 0 ? "bad" : "";
  }

  say(text) {
    this.live.hidden = text === "";
    this.live.firstChild.textContent = text;
  }
}

function stopButton(agentId, name, actions) {
  const text = t("stop_agent", { agent: name });
  return h("button", { type: "button", class: "icon-button", "aria-label": text, title: text, onclick: () => actions.stop(agentId) }, icon("stop"));
}

function showAge(cell, at) {
  if (!at) return;
  cell.dataset.at = at;
  cell.title = fullTime(at);
  cell.textContent = age(at);
}
