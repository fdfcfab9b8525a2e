/* The admin's dashboard, fetched again every few seconds while somebody looks at it. Without this it
   is as it was when the page was loaded. */

const EVERY = 5000;

const board = document.getElementById("dashboard");
const stale = document.getElementById("dashboard-stale");
let timer = null;

/* Not under somebody's hands: a text that is being selected would be gone. */
function inUse() {
  const selection = getSelection();
  return !selection.isCollapsed && board.contains(selection.anchorNode);
}

/* The same link, or the same table, has the focus afterwards. */
function replace(html) {
  const active = board.contains(document.activeElement) ? document.activeElement : null;
  const focusables = () => [...board.querySelectorAll("a, [tabindex]")];
  const name = (element) => element.getAttribute("href") ?? element.getAttribute("aria-labelledby");
  const scrolled = new Map([...board.querySelectorAll(".scroll")].map((box) => [name(box), box.scrollLeft]));
  const focused = active && name(active);
  board.innerHTML = html; // the site's own page: what is in it was escaped there
  for (const box of board.querySelectorAll(".scroll")) box.scrollLeft = scrolled.get(name(box)) ?? 0;
  if (focused) focusables().find((element) => name(element) === focused)?.focus({ preventScroll: true });
}

async function refresh() {
  let problem = "";
  try {
    const answer = await fetch(board.dataset.url, { signal: AbortSignal.timeout(2 * EVERY) });
    if (answer.redirected) problem = board.dataset.signedOut;
    else if (!answer.ok) problem = board.dataset.lost;
    else if (!inUse()) replace(await answer.text());
  } catch {
    problem = board.dataset.lost;
  }
  if (stale.textContent !== problem) stale.textContent = problem;
}

async function round() {
  await refresh();
  clearTimeout(timer); // of another round, where the tab was hidden and shown meanwhile
  if (!document.hidden) timer = setTimeout(round, EVERY);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) round();
});
timer = setTimeout(round, EVERY);
