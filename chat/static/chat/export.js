/* The whole conversation as a file, put together here from the API's pages: Markdown to read, JSON
   with everything the API has, the agents' letters to each other too. */

import { call } from "./api.js";
import { title as callTitle } from "./calls.js";
import { h } from "./dom.js";
import { allLetters } from "./letters.js";
import { agentName, fullTime, siteNow, t } from "./words.js";

const KEPT_FOR = 60000; // ms that the browser has for writing the file

export async function exportAs(kind, sessionId) {
  const { id, title, created_at } = await call("GET", `api/chat/${sessionId}`);
  const messages = await allMessages(sessionId);
  const name = (title || t("untitled")).replace(/[\\/:*?"<>|\s]+/g, " ").trim();
  if (kind === "markdown") return save(`${name}.md`, "text/markdown", asMarkdown(title, messages));
  const { total: usage } = await call("GET", `chat/${sessionId}/usage/`);
  const everything = { id, title, created_at, exported_at: siteNow(), usage, messages, inbox: await allLetters(sessionId) };
  save(`${name}.json`, "application/json", `${JSON.stringify(everything, null, 2)}\n`);
}

async function allMessages(sessionId) {
  const all = [];
  for (let before = ""; before !== null;) {
    const { items, next } = await call("GET", `api/chat/${sessionId}/messages?before=${before}`);
    all.unshift(...items);
    before = next;
  }
  return all;
}

function asMarkdown(title, messages) {
  const parts = [`# ${title || t("untitled")}`];
  for (const message of messages) {
    if (message.role === "tool") continue; // an answer to a call; the JSON has it
    if (message.role === "system") parts.push(`*${message.content}*`);
    else parts.push(`## ${agentName(message.role === "user" ? "user" : message.agent_id)} · ${fullTime(message.created_at)}`, message.content);
    for (const part of message.parts) if (part.type === "tool_call") parts.push(`*${callTitle(part)}*`);
    if (message.parts.some((part) => part.type === "superseded")) parts.push(`*${t("message_superseded")}*`);
  }
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}

function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), KEPT_FOR);
}
