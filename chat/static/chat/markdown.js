/* Markdown as safe HTML, from the site. Texts that finish together travel together, and none
   that is whole is asked for twice. What cannot be rendered stays as the plain text it was. */

import { call } from "./api.js";
import { copyButton } from "./clipboard.js";
import { h, safeHtml } from "./dom.js";
import { highlight } from "./highlight.js";

const known = new Map(); // text → promise of HTML
let waiting = [];

export function render(text) {
  if (!known.has(text)) {
    known.set(text, renderOnce(text));
    known.get(text).catch(() => known.delete(text));
  }
  return known.get(text);
}

/* The same for a text that will not be shown again: it is not remembered. */
export function renderOnce(text) {
  return new Promise((resolve, reject) => {
    if (waiting.length === 0) queueMicrotask(send);
    waiting.push({ text, resolve, reject });
  });
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

const FENCE = /^( {0,3})(`{3,}(?=[^`]*$)|~{3,})/;
const ITEM = /^ {0,3}(?:[-*+]|\d{1,9}(?:[.)]|$))(?:\s|$)/;

/* How a growing text falls into blocks, read once and no line twice.

   Up to `end` there are whole blocks, which nothing that follows can change: up to a line after an
   empty one that goes on with neither a fence nor a list, or up to and from a block of code. Up to
   `rows` there are whole items of a list, or rows of a table, that may still go on. `parts` are the
   stretches of words and of code: each begins at `at`, what it shows at `from`, and ends at `to`. */
export class Blocks {
  constructor() {
    this.end = 0;
    this.rows = 0;
    this.at = 0; // the line that is being read
    this.fence = "";
    this.isCode = false; // the fence is at the margin, and so in no list
    this.isList = false;
    this.tableRows = 0;
    this.afterEmpty = false;
    this.parts = [{ isCode: false, at: 0, from: 0, to: null }];
  }

  read(text) {
    for (let next; (next = text.indexOf("\n", this.at)) >= 0; this.at = next + 1) this.#line(text.slice(this.at, next), next + 1);
    this.#begins(text.slice(this.at));
  }

  /* What a line begins with may tell that all before it is whole. */
  #begins(line) {
    if (this.fence || !this.afterEmpty || !/^\S/.test(line) || (this.isList && ITEM.test(line))) return;
    this.end = this.at;
    this.isList = false;
  }

  #line(line, next) {
    this.#begins(line);
    const [, indent, mark = ""] = FENCE.exec(line) ?? [];
    if (this.fence) this.#inFence(line, mark, next);
    else if (mark) this.#open(mark, indent === "", next);
    else this.#row(line);
    this.afterEmpty = line.trim() === "";
  }

  #open(mark, isCode, next) {
    this.fence = mark;
    this.isCode = isCode;
    if (!isCode) return;
    this.isList = false;
    this.end = this.at;
    this.#part(true, next);
  }

  #inFence(line, mark, next) {
    if (mark[0] !== this.fence[0] || mark.length < this.fence.length || line.trim() !== mark) return;
    this.fence = "";
    if (!this.isCode) return;
    this.#part(false, next);
    this.parts.at(-1).at = next;
    this.end = next;
  }

  #part(isCode, from) {
    this.parts.at(-1).to = this.at;
    this.parts.push({ isCode, at: this.at, from, to: null });
  }

  #row(line) {
    const isItem = ITEM.test(line);
    this.tableRows = line.startsWith("|") ? this.tableRows + 1 : 0;
    if ((this.isList && isItem) || this.tableRows > 2) this.rows = this.at;
    this.isList ||= isItem;
  }
}
