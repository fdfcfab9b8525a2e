/* How a run's status looks. An agent that was lost must never look like one that has finished: it
   has its own tone, its own sign and its own words. */

import { h, icon } from "./dom.js";
import { has, t } from "./words.js";

const TONES = {
  queued: "quiet", running: "busy", stalled: "warn", waiting_child: "busy", waiting_user: "warn",
  completed: "good", failed: "bad", interrupted: "quiet", timeout: "lost",
};
const LOST = new Set(["lease_expired", "crashed", "fenced"]);

export function tone(status, reason) {
  return LOST.has(reason) ? "lost" : (TONES[status] ?? "quiet");
}

export function statusPill(status, reason) {
  const kind = tone(status, reason);
  const sign = { good: "check", bad: "cross", lost: "lost", warn: status === "waiting_user" ? "question" : null }[kind];
  const word = kind === "lost" ? t("status_timeout") : t(`status_${status}`);
  return h("span", { class: "pill", data: { tone: kind, status, reason: reason ?? "" }, title: reasonText(reason) }, sign ? icon(sign) : null, word);
}

export function reasonText(reason) {
  return reason && has(`reason_${reason}`) ? t(`reason_${reason}`) : "";
}
