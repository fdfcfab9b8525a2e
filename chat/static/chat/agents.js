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
    state.listen((kind) => kind === "agents" && this.draw());
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
    const focused = document.activeElement?.dataset.stops;
    const agents = this.state.agents.map((agent) => this.#agent(agent));
    this.root.replaceChildren(...(agents.length ? agents : [h("p", { class: "empty", textContent: t("agents_none") })]));
    if (focused) this.root.querySelector(`[data-stops="${CSS.escape(focused)}"]`)?.focus();
  }

  #agent(agent) {
    const ended = TERMINAL.has(agent.status);
    const kind = tone(agent.status, agent.reason);
    const name = agentName(agent.agent_id);
    const subrun = this.state.subruns.get(agent.run_id);
    const live = !ended && subrun ? tail(subrun, this.state) : "";
    return h("section", { class: "agent", data: { agent: agent.agent_id, status: agent.status, reason: agent.reason ?? "", tone: kind }, "aria-label": name },
      h("div", { class: "agent-head" },
        h("h3", { class: "agent-name", textContent: name, title: agent.agent_id }),
        statusPill(agent.status, agent.reason),
        !ended && agent.parent_run_id ? this.#stopButton(agent, name) : null),
      agent.reason ? h("p", { class: "agent-reason", textContent: reasonText(agent.reason) }) : null,
      this.#facts(agent, ended),
      live ? h("p", { class: "agent-live", dir: "auto" }, h("span", { textContent: live })) : null);
  }

  #stopButton(agent, name) {
    return h("button", {
      type: "button", class: "icon-button", data: { stops: agent.agent_id },
      "aria-label": t("stop_agent", { agent: name }), title: t("stop_agent", { agent: name }),
      onclick: () => this.actions.stop(agent.agent_id),
    }, icon("stop"));
  }

  #facts(agent, ended) {
    const { lease } = agent;
    const late = lease && secondsSince(lease.expires_at) > 0;
    const task = this.state.previews.get(agent.task_id);
    const rows = [];
    if (task) rows.push([t("task"), h("dd", { class: "wrap", dir: "auto", textContent: task })]);
    if (lease) rows.push([t("heartbeat"), ageCell(lease.beat_at, late)]);
    if (agent.last_progress_at) rows.push([t("progress"), ageCell(agent.last_progress_at)]);
    if (lease) rows.push([t("lease_held_by"), h("dd", { title: lease.runner_id }, h("code", { textContent: lease.runner_id }), ` · ${t("lease_epoch", { epoch: lease.epoch })}`)]);
    else if (!ended) rows.push([t("lease_held_by"), h("dd", { textContent: t("no_lease") })]);
    return h("dl", { class: "agent-facts" }, rows.map(([term, cell]) => [h("dt", { textContent: term }), cell]));
  }
}

function ageCell(at, late = false) {
  return h("dd", { data: { at, tone: late ? "bad" : "" }, title: fullTime(at), textContent: age(at) });
}
