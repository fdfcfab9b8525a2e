/* Markdown as safe HTML, from the site. Texts that finish together travel together, and none is
   asked for twice. What cannot be rendered stays as the plain text it was. */

import { call } from "./api.js";
import { h, safeHtml } from "./dom.js";
import { t } from "./words.js";

const known = new Map(); // text → promise of HTML
let waiting = [];

export function render(text) {
  if (!known.has(text)) {
    known.set(text, new Promise((resolve, reject) => {
      if (waiting.length === 0) queueMicrotask(send);
      waiting.push({ text, resolve, reject });
    }));
    known.get(text).catch(() => known.delete(text));
  }
  return known.get(text);
}

async function send() {
  const batch = waiting;
  waiting = [];
  try {
    const { html } = await call("POST", "rendered/", { texts: batch.map((one) => one.text) });
    batch.forEach((one, i) => one.resolve(html[i]));
  } catch (error) {
    batch.forEach((one) => one.reject(error));
  }
}

/* Show rendered text in an element, with the buttons and frames that belong to it. */
export function show(element, html) {
  safeHtml(element, html);
  element.className = "prose";
  for (const table of element.querySelectorAll("table")) wrap(table, h("div", { class: "table", tabIndex: 0 }));
  for (const block of element.querySelectorAll("pre")) {
    block.tabIndex = 0;
    wrap(block, h("div", { class: "copyable" })).append(copyButton(() => block.textContent));
  }
}

function wrap(element, frame) {
  element.replaceWith(frame);
  frame.append(element);
  return frame;
}

function copyButton(text) {
  return h("button", {
    type: "button",
    class: "copy",
    textContent: t("copy"),
    async onclick(event) {
      await navigator.clipboard?.writeText(text());
      event.target.textContent = t("copied");
      setTimeout(() => { event.target.textContent = t("copy"); }, 1500);
    },
  });
}
