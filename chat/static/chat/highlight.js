/* Colours in code blocks that name their language, by highlight.js (vendor/, BSD).

   It is fetched when the first such block is shown: most conversations have none. It runs here and
   not on the site, because a grammar is a pile of regular expressions, and a text that one of them
   chokes on may cost its reader's tab, never a node. */

import { safeHtml } from "./dom.js";

const LONGEST = 20000; // characters; what is longer stays plain, and the page quick

let fetching = null;

/* Each block when it comes near the reader's eyes: a long conversation has hundreds. */
const near = new IntersectionObserver((entries) => {
  const seen = entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target);
  for (const code of seen) near.unobserve(code);
  if (seen.length) colourAll(seen);
}, { rootMargin: "600px" });

export function highlight(root) {
  for (const code of root.querySelectorAll("pre > code[class^=language-]")) {
    if (code.textContent.length <= LONGEST) near.observe(code);
  }
}

async function colourAll(blocks) {
  fetching ??= import("./vendor/highlight.min.js");
  try {
    const { default: library } = await fetching;
    for (const code of blocks) colour(library, code);
  } catch {
    fetching = null; // without it, code is plain
  }
}

function colour(library, code) {
  const language = code.className.slice("language-".length);
  if (!library.getLanguage(language)) return;
  safeHtml(code, library.highlight(code.textContent, { language, ignoreIllegals: true }).value);
}
