/* Markdown as safe HTML, from the site. Texts that finish together travel together, and none is
   asked for twice. What cannot be rendered stays as the plain text it was. */

import { call } from "./api.js";
import { copyButton } from "./clipboard.js";
import { h, safeHtml } from "./dom.js";
import { highlight } from "./highlight.js";

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

/* Show rendered text in an element. What is there already stays the same node: a text that grows
   does not flicker, and a reader's selection in it lives on. */
export function show(element, html) {
  element.className = "prose";
  const fresh = [...nodes(html).childNodes];
  const shown = [...element.childNodes];
  const from = shown.findIndex((node, i) => !fresh[i]?.isEqualNode(node));
  const same = from < 0 ? shown.length : from;
  for (const node of shown.slice(same)) node.remove();
  element.append(...fresh.slice(same));
}

/* Rendered text as nodes, with the buttons, frames and colours that belong to it. */
export function nodes(html) {
  const root = h("div");
  safeHtml(root, html);
  for (const table of root.querySelectorAll("table")) wrap(table, h("div", { class: "table", tabIndex: 0 }));
  for (const block of root.querySelectorAll("pre")) {
    block.tabIndex = 0;
    wrap(block, h("div", { class: "copyable" })).append(copyButton(() => block.textContent));
  }
  highlight(root);
  return root;
}

function wrap(element, frame) {
  element.replaceWith(frame);
  frame.append(element);
  return frame;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const ITEM = /^ {0,3}(?:[-*+]|\d{1,9}(?:[.)]|$))(?:\s|$)/;

/* How much of a growing text is surely whole blocks, which nothing that follows can change: up to a
   line after an empty one that goes on with neither a fence nor a list. */
export function settled(text) {
  let end = 0;
  let at = 0;
  let fence = "";
  let isList = false;
  let afterEmpty = false;
  for (const line of text.split("\n")) {
    const item = ITEM.test(line);
    if (!fence && afterEmpty && /^\S/.test(line) && !(isList && item)) {
      end = at;
      isList = false;
    }
    const mark = FENCE.exec(line)?.[1] ?? "";
    if (!fence) fence = mark;
    else if (mark[0] === fence[0] && mark.length >= fence.length && line.trim() === mark) fence = "";
    isList ||= !fence && item;
    afterEmpty = line.trim() === "";
    at += line.length + 1;
  }
  return end;
}
