// One thread of @ag-ui/client, driven by its standard input:
//
//     node agui.mjs URL TOKEN THREAD
//     {"say": "hello"}         a turn with this message
//     {"answer": "blue"}       a turn that answers whatever the last one has asked
//     {"leave": true}          hang up in the middle of a turn
//
// Each line of its output is one thing that the client has seen: {"event": …}, {"warning": …}, and
// at the end of a turn {"end": {error, messages, interrupts}}. The client refuses what breaks the
// protocol, and warns of what it has to strip.

import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";

import { HttpAgent, buildResumeArray } from "@ag-ui/client";

const [url, token, threadId] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${token}` };
const agent = new HttpAgent({ url: `${url}/api/agui`, threadId, headers });

const print = (seen) => process.stdout.write(`${JSON.stringify(seen)}\n`);
console.warn = (...words) => print({ warning: words.join(" ") });
console.error = () => {}; // it prints the error that it throws

function resume(payload) {
  const answer = { status: "resolved", payload };
  const answers = agent.pendingInterrupts.map(({ id }) => [id, answer]);
  return buildResumeArray(agent.pendingInterrupts, Object.fromEntries(answers));
}

async function turn(order) {
  let error = null;
  try {
    const parameters = "answer" in order ? { resume: resume(order.answer) } : {};
    if ("say" in order) {
      agent.addMessage({ id: randomUUID(), role: "user", content: order.say });
    }
    await agent.runAgent(parameters, { onEvent: ({ event }) => print({ event }) });
  } catch (thrown) {
    error = String(thrown);
  }
  print({ end: { error, messages: agent.messages, interrupts: agent.pendingInterrupts } });
}

createInterface({ input: process.stdin }).on("line", (line) => {
  const order = JSON.parse(line);
  return order.leave ? agent.abortRun() : turn(order);
});
