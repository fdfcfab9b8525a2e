/* The chat page: one state, its views, its stream.

   The page comes with the state as it was, and the stream goes on from that state's cursor. Where
   the log has begun anew (or a tab slept for a week), the state is read again as a whole. */

import { Again } from "./again.js";
import { AgentsPanel } from "./agents.js";
import { ApiError, call, url } from "./api.js";
import { showChain } from "./chain.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { announce, byId, h } from "./dom.js";
import { exportAs } from "./export.js";
import { drawers, Follower, reveal, tabs, whenNear } from "./layout.js";
import { Letters } from "./letters.js";
import * as markdown from "./markdown.js";
import { Questions } from "./questions.js";
import { Queue } from "./queue.js";
import { Sessions } from "./sessions.js";
import { State } from "./state.js";
import { Stream } from "./stream.js";
import { Usage } from "./usage.js";
import { agentName, setSiteClock, t } from "./words.js";
import { WorkLog } from "./worklog.js";

const initial = JSON.parse(byId("state").textContent);
const sessionId = initial?.snapshot.id ?? null;

const state = new State();
const follower = new Follower();

const actions = {
  async stop(agentId) {
    const stopButton = byId("stop");
    if (!agentId) stopButton.disabled = true;
    try {
      const answer = await call("POST", `api/chat/${sessionId}/interrupt`, agentId ? { agent_id: agentId } : {});
      if (answer.status === "accepted") actions.trouble(t("stop_accepted"), "stop");
      if (answer.status === "no_active_run" || answer.status === "already_finished") await reload();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      actions.trouble(t("stop_failed", { detail: error.message }), "stop");
    } finally {
      stopButton.disabled = false;
    }
  },

  /* `of`: what it is about, where that can end by itself. */
  trouble(text, of = "") {
    byId("trouble").textContent = text;
    byId("trouble").dataset.of = of;
    byId("trouble").hidden = text === "";
  },

  commands: [
    { name: "new", can: () => true, run: () => location.assign(url("chat/new/")) },
    { name: "stop", can: () => state.busy, run: () => actions.stop() },
    { name: "retry", can: () => sessionId && !state.busy, run: () => again.retry() },
    { name: "edit", can: () => sessionId, run: () => again.edit() },
    { name: "rename", can: () => sessions.own !== null, run: () => sessions.rename() },
    { name: "search", can: () => true, run: () => reveal("sessions", "#session-search") },
    { name: "agents", can: () => true, run: () => reveal("panel", "[role=tab][aria-selected=true]") },
    { name: "markdown", can: () => sessionId, run: () => actions.export("markdown") },
    { name: "json", can: () => sessionId, run: () => actions.export("json") },
  ],

  titled(title) {
    byId("title").textContent = title;
    drawTab();
  },

  editLast(event) {
    event.preventDefault();
    again.edit();
  },

  loadLetters: () => letters.load(),

  async showChain(letterId) {
    try {
      await showChain(sessionId, letterId);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      actions.trouble(error.message);
    }
  },

  async export(kind) {
    try {
      await exportAs(kind, sessionId);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      actions.trouble(t("export_failed", { detail: error.message }));
    }
  },

  sent() {
    byId("welcome").hidden = true;
    follower.toEnd();
  },

  async loadSubrun(subrun) {
    subrun.whole = true;
    try {
      const { items } = await call("GET", `api/chat/${sessionId}/messages?agent_id=${encodeURIComponent(subrun.agentId)}`);
      state.loadSubrun(subrun, items);
    } catch (error) {
      subrun.whole = false;
      if (!(error instanceof ApiError)) throw error;
    }
  },
};

const conversation = new Conversation(state, actions);
const worklog = new WorkLog(state);
const letters = new Letters(state, actions, sessionId);
const sessions = new Sessions(state, actions, sessionId);
const composer = new Composer(state, actions, sessionId);
const again = new Again(state, conversation, composer);
new Queue(state, actions, sessionId);
new Usage(state, sessionId);
drawers();
tabs((shown) => {
  if (shown === "worklog") worklog.shown();
  if (shown === "letters") letters.shown();
});

for (const button of document.querySelectorAll("[data-suggestion]")) {
  button.addEventListener("click", () => composer.fill(button.textContent));
}

for (const button of document.querySelectorAll("#conversation-menu [data-export]")) {
  button.addEventListener("click", () => actions.export(button.dataset.export));
}

/* -- what is going on, in one line under the conversation --------------------------------------- */

function activity() {
  if (state.status === "queued") return t("waiting_for_worker");
  if (state.status !== "running") return "";
  if (state.master?.status === "queued") return t("waiting_for_worker"); // again: its worker was lost
  const speaking = state.order.some((id) => {
    const item = state.items.get(id);
    return item.status === "partial" && item.role === "assistant" && item.text !== "";
  });
  if (speaking) return "";
  if (state.master?.status === "waiting_child") return t("waiting_for_agents");
  return t("thinking", { agent: agentName("assistant") });
}

const said = new Set();

function announceAnswers(ids) {
  for (const id of ids) {
    const item = state.items.get(id);
    if (item?.role !== "assistant" || item.runId || item.status !== "complete" || said.has(id) || !item.text) continue;
    said.add(id);
    announce(t("answered", { agent: agentName(item.agentId), text: item.text }));
  }
}

state.listen((kind, ids) => {
  if (kind === "item") announceAnswers(ids);
  if (kind === "order") byId("welcome").hidden = state.order.length > 0 || state.questions.size > 0;
  if (kind === "status" && !state.busy && byId("trouble").dataset.of === "stop") actions.trouble("");
  if (kind === "status" && !state.busy && document.hidden) hasNews = true;
  if (kind === "status" || kind === "agents") sawAll();
  if (kind === "status" || kind === "questions") drawTab();
  const text = activity();
  byId("activity").hidden = text === "";
  if (byId("activity").textContent !== text) byId("activity").textContent = text;
});

/* -- earlier messages ---------------------------------------------------------------------------- */

const PAGE = 200; // the snapshot's newest; fewer means there are no earlier ones
let earlier = null;

const messages = (query = "") => call("GET", `api/chat/${sessionId}/messages${query}`);

byId("earlier").addEventListener("click", showEarlier);
whenNear(byId("earlier"), showEarlier);

async function showEarlier() {
  const button = byId("earlier");
  if (button.disabled || button.hidden) return;
  button.disabled = true;
  try {
    earlier ??= (await messages()).next; // the page began with the newest
    const { items, next } = await messages(`?before=${earlier}`);
    const html = await rendered(items);
    earlier = next;
    follower.hold(() => state.prepend(items, html));
    button.hidden = !next;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    actions.trouble(error.message);
  } finally {
    button.disabled = false;
  }
}

/* Rendered before they are shown: what is above a reader must not change its height. */
async function rendered(items) {
  const said = items.filter((item) => item.role === "assistant" && item.content !== "");
  const html = await Promise.all(said.map((item) => markdown.renderOnce(item.content)));
  return Object.fromEntries(said.map((item, i) => [item.id, html[i]]));
}

/* -- beginning, and beginning again -------------------------------------------------------------- */

const stream = sessionId && new Stream(sessionId, {
  onEvent(event) {
    const needs = state.apply(event);
    if (needs === "reload") reload();
    if (needs === "words") setTimeout(askForWords, OWN_ANSWER, event.runId);
  },
  onState: connection,
});

/* A turn's words are no event. This page knows those it has sent; others' it must ask for. */
const OWN_ANSWER = 400; // ms in which the answer to our own sending has surely come

async function askForWords(turn) {
  if (state.hasWordsOf(turn) || composer.sending) return;
  try {
    const { items } = await messages();
    for (const { role, id, content } of items.slice(-20)) if (role === "user") state.addUserMessage(id, content, turn);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error; // the next reload shows them
  }
}

function connection(name) {
  const line = byId("connection");
  if (line.dataset.state === name) return;
  line.dataset.state = name;
  line.textContent = t(name);
  if (name === "signed_out") line.replaceChildren(h("a", { href: location.href, textContent: t("signed_out") }));
}

function begin(fresh) {
  earlier = null;
  setSiteClock(fresh.now);
  conversation.clear();
  worklog.clear();
  state.load(fresh);
  for (const id of state.order) said.add(id);
  byId("earlier").hidden = fresh.snapshot.messages.length < PAGE;
  const title = fresh.snapshot.title || t("untitled");
  actions.titled(title);
  sessions.setTitle(title);
  stream.open(fresh.snapshot.cursor);
  sawAll();
}

/* What has come while the page is in sight has been seen. */
function sawAll() {
  if (document.hidden) return;
  hasNews = false;
  drawTab();
  if (stream) sessions.seen(stream.cursor);
}

/* The tab tells what goes on behind it: a question, something new, work. */
let hasNews = false;

function drawTab() {
  const sign = state.questions.size > 0 ? "(?) " : hasNews ? "● " : state.busy ? "… " : "";
  document.title = `${sign}${byId("title").textContent} · agentsite`;
}

addEventListener("pagehide", sawAll);
document.addEventListener("visibilitychange", sawAll);

let reloading = null;

function reload() {
  reloading ??= call("GET", `chat/${sessionId}/state/`).then(begin, (error) => {
    if (error.status === 404) connection("session_gone");
    else if (error.status === 401) connection("signed_out");
    else setTimeout(reload, 2000); // the stream is still open, but what it says has no ground
  }).finally(() => { reloading = null; });
  return reloading;
}

new Questions(state, sessionId, { onOpened: () => follower.following && follower.toEnd() });
new AgentsPanel(state, actions, sessionId).draw();
if (stream) begin(initial);

/* For the browser tests: what the page knows. */
globalThis.agentsite = { state, stream };
