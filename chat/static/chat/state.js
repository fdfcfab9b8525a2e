/* What is known of one conversation: the snapshot it began with, and every event since.

   Nothing here touches the page. A change marks what it concerns, and the listeners hear of it at
   the next frame, so a hundred tokens between two frames are one drawing. A sub-agent's text never
   gets into the master's: its events name its run, and live in that run's `items`. */

import { siteNow } from "./words.js";

export const TERMINAL = new Set(["completed", "failed", "interrupted", "timeout"]);
const MASTER = "assistant";
const PREVIEW = 200; // characters, as in the events

export class State {
  constructor() {
    this.listeners = [];
    this.changed = new Map();
    this.reset();
  }

  reset() {
    this.items = new Map(); // id → item: a message, a reasoning, a notice
    this.order = []; // ids of the conversation with the master
    this.calls = new Map(); // tool call id → call
    this.subruns = new Map(); // run id → subrun
    this.agents = [];
    this.questions = new Map();
    this.queue = [];
    this.log = [];
    this.usage = { turns: {}, total: { input_tokens: 0, output_tokens: 0 } };
    this.status = "idle";
    this.runId = null;
    this.letters = new Map(); // what agents wrote to each other, oldest first: id → its beginning
    this.pendingLog = [];
  }

  /* `listener(kind, ids)`; kinds: order, item, call, subrun, tail, agents, questions, queue, log, status,
     usage, letters. */
  listen(listener) {
    this.listeners.push(listener);
  }

  mark(kind, id = "") {
    if (this.changed.size === 0) requestAnimationFrame(() => this.#tell());
    if (!this.changed.has(kind)) this.changed.set(kind, new Set());
    this.changed.get(kind).add(id);
  }

  #tell() {
    const changed = this.changed;
    this.changed = new Map();
    for (const listener of this.listeners) {
      for (const [kind, ids] of changed) listener(kind, ids);
    }
  }

  get busy() {
    return this.status !== "idle";
  }

  get master() {
    return this.agents.find((agent) => agent.agent_id === MASTER) ?? null;
  }

  /* -- the snapshot ------------------------------------------------------------------------- */

  load({ snapshot, html, worklog, usage }) {
    this.reset();
    this.status = snapshot.status;
    this.runId = snapshot.run_id;
    this.queue = snapshot.queue;
    this.log = worklog;
    this.pendingLog = worklog.slice(-50).map(logKey);
    for (const message of snapshot.messages) this.#addMessage(message, html);
    for (const question of snapshot.questions) this.questions.set(question.id, question);
    this.#setAgents(snapshot.agents);
    this.#joinAgentsToCalls();
    this.setUsage(usage);
    for (const kind of ["order", "agents", "questions", "queue", "log", "status"]) this.mark(kind);
  }

  /* Earlier messages, oldest first. */
  prepend(messages, html) {
    const known = this.order;
    this.order = [];
    for (const message of messages) this.#addMessage(message, html);
    this.order.push(...known);
    this.mark("order");
    this.setUsage(this.usage);
  }

  /* A message of the API's shape becomes items: a tool's answer goes into its call. */
  #addMessage(message, html = {}, order = this.order) {
    if (this.items.has(message.id)) return;
    if (message.role === "tool") return this.#addToolMessage(message);
    for (const part of message.parts) {
      if (part.type === "reasoning" && part.text) {
        this.#addItem({ id: `reasoning:${message.id}`, role: "reasoning", text: part.text, status: "complete" }, order);
      }
    }
    const item = {
      id: message.id,
      role: message.role,
      agentId: message.agent_id,
      text: message.content,
      html: html[message.id] ?? null,
      status: message.status,
      at: message.created_at,
      calls: [],
      part: message.role === "system" ? (message.parts[0] ?? null) : null,
      superseded: message.parts.some((part) => part.type === "superseded"),
    };
    this.#addItem(item, order);
    for (const part of message.parts) {
      if (part.type === "tool_call") {
        const id = part.tool_call_id ?? part.id;
        const args = part.args ?? part.arguments ?? "";
        this.#addCall({ id, name: part.name ?? part.tool_name, args: asText(args), state: "called" }, item);
      }
    }
  }

  #addToolMessage(message) {
    for (const part of message.parts) {
      const call = this.calls.get(part.tool_call_id ?? part.id);
      if (call) this.#answerCall(call, asText(part.content ?? message.content), message.status);
    }
  }

  #addItem(item, order) {
    this.items.set(item.id, item);
    order.push(item.id);
    this.mark(order === this.order ? "order" : "subrun", item.runId ?? "");
    return item;
  }

  #addCall(call, item) {
    this.calls.set(call.id, { result: null, subrunId: null, itemId: item.id, ...call });
    item.calls.push(call.id);
    this.mark("item", item.id);
  }

  #answerCall(call, content, status = "complete") {
    call.result = content;
    call.state = status === "interrupted" ? "interrupted" : "done";
    this.mark("call", call.id);
  }

  /* After a reload, no event says which call gave an agent its task: its name does. */
  #joinAgentsToCalls() {
    for (const agent of this.agents) {
      if (!agent.parent_run_id || this.subruns.has(agent.run_id)) continue;
      const calls = [...this.calls.values()].filter((c) => c.name === "send_message" && recipient(c) === agent.agent_id);
      const call = calls.at(-1);
      if (!call) continue;
      call.subrunId = agent.run_id;
      this.subruns.set(agent.run_id, {
        runId: agent.run_id, agentId: agent.agent_id, callId: call.id, items: [],
        status: agent.status, reason: agent.reason, whole: false,
      });
    }
  }

  /* A sub-agent's conversation as the API has it, for a card that was opened after a reload. */
  loadSubrun(subrun, messages) {
    const from = messages.findLastIndex((message) => message.role === "user");
    for (const id of subrun.items) this.items.delete(id);
    subrun.items = [];
    subrun.whole = true;
    for (const message of messages.slice(from + 1)) {
      this.#addMessage(message, {}, subrun.items);
      const item = this.items.get(message.id);
      if (item) item.runId = subrun.runId;
    }
    this.mark("subrun", subrun.runId);
  }

  /* -- events ------------------------------------------------------------------------------- */

  /* "reload" where the log itself has begun anew, and the page must read its state again; "words"
     where a turn has begun and somebody else's page has sent its words. */
  apply(event) {
    return EVENTS[event.type]?.(this, event) ?? null;
  }

  setStatus(status) {
    if (this.status === status) return;
    this.status = status;
    this.mark("status");
  }

  item(event, role = "assistant") {
    const id = role === "reasoning" ? `reasoning:${event.messageId}` : (event.messageId ?? event.parentMessageId);
    const known = this.items.get(id);
    if (known) return known;
    const subrun = event.subagentRunId ? this.subrun(event.subagentRunId) : null;
    const item = {
      id, role, agentId: subrun?.agentId ?? event.name ?? MASTER, text: "", html: null,
      status: "partial", at: siteNow(), calls: [], part: null, runId: event.subagentRunId ?? null, turn: this.runId,
    };
    return this.#addItem(item, subrun ? subrun.items : this.order);
  }

  subrun(runId, agentId = "") {
    if (!this.subruns.has(runId)) {
      const agent = this.agents.find((one) => one.run_id === runId);
      this.subruns.set(runId, {
        runId, agentId: agentId || agent?.agent_id || "", callId: null, items: [],
        status: "running", reason: null, whole: false,
      });
    }
    return this.subruns.get(runId);
  }

  grow(item, delta) {
    item.text += delta;
    item.html = null;
    this.mark(item.runId ? "subrun" : "item", item.runId ?? item.id);
    if (item.runId) this.mark("tail", item.runId);
  }

  finish(item) {
    item.status = "complete";
    this.mark(item.runId ? "subrun" : "item", item.runId ?? item.id);
  }

  startCall(event) {
    if (this.calls.has(event.toolCallId)) return;
    const item = this.item({ ...event, messageId: event.parentMessageId || event.toolCallId });
    this.#addCall({ id: event.toolCallId, name: event.toolCallName, args: "", state: "open" }, item);
    if (item.runId) this.mark("subrun", item.runId);
  }

  finishCall(event) {
    const call = this.calls.get(event.toolCallId);
    if (call) this.#answerCall(call, event.content);
  }

  startSubrun(event) {
    const fresh = !this.subruns.has(event.subagentRunId);
    const subrun = this.subrun(event.subagentRunId, event.name);
    subrun.status = "running";
    subrun.reason = null;
    if (fresh) subrun.whole = true;
    const call = this.calls.get(event.parentToolCallId);
    if (call) {
      call.subrunId = subrun.runId;
      subrun.callId = call.id;
      this.mark("call", call.id);
    }
    this.mark("subrun", subrun.runId);
  }

  endSubrun(runId, status, reason) {
    const subrun = this.subrun(runId);
    subrun.status = status;
    subrun.reason = reason;
    for (const id of subrun.items) if (this.items.get(id).status === "partial") this.items.get(id).status = "interrupted";
    this.mark("subrun", runId);
  }

  endRun(status, notice) {
    this.setStatus(status);
    for (const id of this.order) {
      const item = this.items.get(id);
      if (item.status === "partial") {
        item.status = "interrupted";
        this.mark("item", id);
      }
      for (const callId of item.calls ?? []) this.#endCall(callId, status);
    }
    if (notice) {
      this.#addItem({ id: `notice:${this.runId}`, role: "system", text: notice.text, part: { type: "notice", kind: notice.kind }, status: "complete", at: siteNow(), calls: [] }, this.order);
    }
  }

  #endCall(callId, status) {
    const call = this.calls.get(callId);
    if (status === "suspended" || call.state === "done" || call.state === "interrupted") return;
    call.state = "interrupted";
    this.mark("call", callId);
  }

  /* A user's message stands before whatever its turn has already said. */
  addUserMessage(id, text, turn = null) {
    if (this.items.has(id)) return;
    this.#addItem({ id, role: "user", agentId: MASTER, text, html: null, status: "complete", at: siteNow(), calls: [], part: null, turn }, this.order);
    const place = turn ? this.order.findIndex((other) => other !== id && this.items.get(other).turn === turn) : -1;
    if (place >= 0) this.order.splice(place, 0, this.order.pop());
  }

  hasWordsOf(turn) {
    const last = this.items.get(this.order.at(-1));
    if (last?.role === "user") last.turn ??= turn; // it came out of the queue
    return this.order.some((id) => this.items.get(id).role === "user" && this.items.get(id).turn === turn);
  }

  /* Each turn's tokens stand under its last words; a turn is known by the message it answers. */
  setUsage(usage) {
    this.usage = usage;
    this.mark("usage");
    for (const [id, tokens] of Object.entries(usage.turns)) {
      const from = this.order.indexOf(id);
      if (from < 0 || this.items.has(`usage:${id}`)) continue;
      const next = this.order.findIndex((other, i) => i > from && this.items.get(other).role === "user");
      if (next < 0 && this.busy) continue; // it is under way
      this.#addItem({ id: `usage:${id}`, role: "usage", status: "complete", text: "", calls: [], part: { type: "usage", tokens } }, this.order);
      if (next >= 0) this.order.splice(next, 0, this.order.pop());
    }
  }

  #setAgents(agents) {
    this.agents = agents;
    for (const agent of agents) {
      const subrun = this.subruns.get(agent.run_id);
      if (subrun) {
        subrun.status = agent.status;
        subrun.reason = agent.reason;
        this.mark("subrun", agent.run_id);
      }
    }
    this.mark("agents");
  }

  setAgents(agents) {
    this.#setAgents(agents);
    const master = this.master;
    if (!master) return;
    if (TERMINAL.has(master.status)) this.setStatus("idle");
    else if (master.status === "waiting_user") this.setStatus("suspended");
    else if (master.status === "queued" && !master.last_progress_at) this.setStatus("queued");
    else this.setStatus("running");
  }

  /* Those of the API, then what has been heard meanwhile. */
  addLetters(items) {
    const heard = [...this.letters];
    this.letters.clear();
    for (const { id, sender, recipient, type, content } of items) this.letters.set(id, { id, sender, recipient, type, preview: content.slice(0, PREVIEW) });
    for (const [id, letter] of heard) if (!this.letters.has(id)) this.letters.set(id, letter);
    this.mark("letters");
  }

  addLog(value) {
    const entry = { at: siteNow(), level: value.level, kind: value.kind, agent_id: value.agentId, run_id: value.runId, text: value.text };
    const twin = this.pendingLog.indexOf(logKey(entry));
    if (twin >= 0) return void this.pendingLog.splice(twin, 1); // came with the page already
    this.log.push(entry);
    this.mark("log");
  }
}

/* The page reads the log after the snapshot, so a line written between the two comes twice. */
const logKey = (entry) => JSON.stringify([entry.kind, entry.run_id, entry.text]);

export const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

export function parsed(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" ? value : {};
  } catch {
    return {};
  }
}

export const recipient = (call) => String(parsed(call.args).to ?? "");

const CUSTOM = {
  agents: (state, value) => state.setAgents(value),
  queue(state, value) {
    const noTurn = new Set([...value.items.map((item) => item.id), value.removed]);
    for (const item of state.queue) if (!noTurn.has(item.id)) state.addUserMessage(item.id, item.content);
    state.queue = value.items;
    state.mark("queue");
  },
  question(state, value) {
    if (value.state === "open") state.questions.set(value.id, value);
    else state.questions.delete(value.id);
    state.mark("questions", value.id);
    for (const call of state.calls.values()) if (call.state === "called") state.mark("call", call.id);
  },
  inbox(state, value) {
    state.letters.set(value.id, value);
    state.mark("letters");
  },
  work_log: (state, value) => state.addLog(value),
  superseded(state, value) {
    for (const id of value.messageIds) {
      const item = state.items.get(id);
      if (!item) continue;
      item.superseded = true;
      state.mark("item", id);
    }
  },
  ax(state, value) {
    if (state.subruns.has(value.runId)) state.endSubrun(value.runId, value.status, value.reason);
  },
};

const EVENTS = {
  RUN_STARTED(state, event) {
    const goesOn = state.runId === event.runId;
    state.runId = event.runId;
    state.setStatus("running");
    return goesOn || state.hasWordsOf(event.runId) ? null : "words";
  },
  RUN_FINISHED(state, event) {
    const outcome = event.outcome?.type ?? "success";
    const notice = outcome === "cancelled" && event.result?.text ? { kind: "stopped", ...event.result } : null;
    state.endRun(outcome === "interrupt" ? "suspended" : "idle", notice);
  },
  RUN_ERROR: (state, event) => state.endRun("idle", { kind: "error", text: event.message }),
  TEXT_MESSAGE_START(state, event) {
    const item = state.item(event, event.role ?? "assistant");
    state.mark("item", item.id);
  },
  TEXT_MESSAGE_CONTENT: (state, event) => state.grow(state.item(event), event.delta),
  TEXT_MESSAGE_END: (state, event) => state.finish(state.item(event)),
  REASONING_MESSAGE_START: (state, event) => void state.item(event, "reasoning"),
  REASONING_MESSAGE_CONTENT: (state, event) => state.grow(state.item(event, "reasoning"), event.delta),
  REASONING_MESSAGE_END: (state, event) => state.finish(state.item(event, "reasoning")),
  TOOL_CALL_START: (state, event) => state.startCall(event),
  TOOL_CALL_ARGS(state, event) {
    const call = state.calls.get(event.toolCallId);
    if (call) call.args += event.delta;
  },
  TOOL_CALL_END(state, event) {
    const call = state.calls.get(event.toolCallId);
    if (!call || call.state !== "open") return;
    call.state = "called";
    state.mark("call", call.id);
  },
  TOOL_CALL_RESULT: (state, event) => state.finishCall(event),
  SUBAGENT_STARTED: (state, event) => state.startSubrun(event),
  SUBAGENT_FINISHED(state, event) {
    const suspended = event.outcome?.type === "suspended";
    state.endSubrun(event.subagentRunId, suspended ? "waiting_user" : "completed", suspended ? null : "completed");
  },
  SUBAGENT_ERROR: (state, event) => state.endSubrun(event.subagentRunId, "failed", event.code ?? "error"),
  MESSAGES_SNAPSHOT: () => "reload",
  CUSTOM: (state, event) => CUSTOM[event.name]?.(state, event.value),
};
