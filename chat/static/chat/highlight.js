/* Colours in code blocks that name their language, by highlight.js (vendor/, BSD).

   It is fetched when the first such block is shown: most conversations have none. It runs here and
   not on the site, because a grammar is a pile of regular expressions, and a text that one of them
   chokes on may cost its reader's tab, never a node. */

import { safeHtml } from "./dom.js";

const LONGEST = 20000; // characters; what is longer stays plain, and the page quick

let library = null; // once it is there
let fetching = null;

export function highlight(root) {
  const blocks = [...root.querySelectorAll("pre > code[class^=language-]")].filter((code) => code.textContent.length <= LONGEST);
  if (blocks.length === 0) return;
  if (library) return blocks.forEach(colour);
  fetching ??= import("./vendor/highlight.min.js").then((module) => { library = module.default; });
  fetching.then(() => blocks.forEach(colour), () => { fetching = null; }); // without it, code is plain
}

function colour(code) {
  const language = code.className.slice("language-".length);
  if (!library.getLanguage(language)) return;
  safeHtml(code, library.highlight(code.textContent, { language, ignoreIllegals: true }).value);
}
