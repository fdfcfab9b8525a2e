/* The replies to a letter as a tree: who answered whom, how long each hop took, what became of it.
   Read anew each time it is opened; a delivery is no event. */

import { call } from "./api.js";
import { richText } from "./calls.js";
import { byId, h, icon } from "./dom.js";
import { fromTo, kindOf } from "./letters.js";
import { reasonText, tone } from "./status.js";
import { duration, fullTime, t } from "./words.js";

export async function showChain(sessionId, letterId) {
  const root = await call("GET", `api/chat/${sessionId}/inbox/${letterId}/chain`);
  byId("chain-tree").replaceChildren(node(root, letterId));
  byId("chain").showModal();
}

function node(letter, askedFor) {
  const isAskedFor = letter.id === askedFor;
  const { replies } = letter;
  return h("li", { "aria-current": isAskedFor ? "true" : null, data: { kind: letter.type, state: letter.status } },
    h("details", { open: isAskedFor },
      h("summary", {}, icon("chevron"),
        h("span", { class: "chain-head" }, h("strong", { textContent: fromTo(letter) }), h("span", { class: "pill", textContent: kindOf(letter) }), outcome(letter)),
        h("span", { class: "chain-times" }, h("time", { dateTime: letter.created_at, textContent: fullTime(letter.created_at) }), ` · ${fate(letter)}`)),
      richText(letter.content)),
    replies.length ? h("ol", { class: "replies" }, replies.map((reply) => node(reply, askedFor))) : null);
}

/* Why a result is what it is: an agent that was lost must not look like one that has finished. */
function outcome({ reason }) {
  if (!reason) return null;
  const kind = reason === "completed" ? "good" : tone("failed", reason);
  return h("span", { class: "pill", data: { tone: kind, reason } }, kind === "lost" ? icon("lost") : null, reasonText(reason) || reason);
}

function fate(letter) {
  const took = (at) => duration(Math.max(0, Date.parse(at) - Date.parse(letter.created_at)));
  const parts = [];
  if (letter.delivered_at) parts.push(t("letter_delivered", { duration: took(letter.delivered_at) }));
  parts.push(letter.acked_at ? t("letter_acked", { duration: took(letter.acked_at) }) : t(`letter_state_${letter.status}`));
  if (letter.late) parts.push(t("letter_late"));
  return parts.join(" · ");
}
