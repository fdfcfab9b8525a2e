/* Drawers on narrow screens, the panel's tabs, and keeping the newest message in sight.

   The page follows the conversation only while the reader is at its end: who has scrolled up is
   reading, and must not be pulled away. */

import { byId } from "./dom.js";

const NEAR = 80; // px from the end that still count as being there

export function drawers() {
  const set = (side, open) => {
    side.toggleAttribute("data-open", open);
    for (const button of document.querySelectorAll(`[data-opens="${side.id}"]`)) button.setAttribute("aria-expanded", open);
    if (open) side.querySelector("a, button")?.focus();
    else document.querySelector(`[data-opens="${side.id}"]`)?.focus();
  };
  for (const button of document.querySelectorAll("[data-opens]")) {
    const side = byId(button.dataset.opens);
    button.addEventListener("click", () => set(side, !side.hasAttribute("data-open")));
  }
  for (const button of document.querySelectorAll("[data-closes]")) {
    button.addEventListener("click", () => set(byId(button.dataset.closes), false));
  }
  document.addEventListener("keydown", (event) => {
    const open = document.querySelector(".side[data-open]");
    if (event.key !== "Escape" || !open) return;
    event.preventDefault();
    set(open, false);
  });
  document.querySelector(".middle").addEventListener("pointerdown", (event) => {
    const open = document.querySelector(".side[data-open]");
    if (open && !event.target.closest("[data-opens]")) set(open, false);
  });
}

/* Open a side where it is a drawer, and go to an element in it. */
export function reveal(id, selector) {
  const target = byId(id).querySelector(selector);
  if (!target.checkVisibility({ visibilityProperty: true })) document.querySelector(`[data-opens="${id}"]`).click();
  target.focus();
}

export function tabs(onShown) {
  const all = [...document.querySelectorAll("[role=tab]")];
  const select = (tab) => {
    for (const one of all) {
      one.setAttribute("aria-selected", one === tab);
      one.tabIndex = one === tab ? 0 : -1;
      byId(one.getAttribute("aria-controls")).hidden = one !== tab;
    }
    onShown(tab.getAttribute("aria-controls"));
  };
  for (const [i, tab] of all.entries()) {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
      const next = all.at((i + (event.key === "ArrowRight" ? 1 : -1)) % all.length);
      next.focus();
      select(next);
    });
  }
}

/* Act whenever an element comes near, and once more where it is still there afterwards. */
export function whenNear(element, act) {
  const near = new IntersectionObserver(async (entries) => {
    if (!entries.at(-1).isIntersecting) return;
    await act();
    near.unobserve(element);
    near.observe(element);
  }, { rootMargin: "600px 0px" });
  near.observe(element);
}

export class Follower {
  constructor() {
    this.box = byId("scroll");
    this.button = byId("to-end");
    this.following = true;
    this.top = 0;
    this.box.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.button.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.#grew()).observe(this.box.firstElementChild);
    new ResizeObserver(() => this.#grew()).observe(this.box);
  }

  get #distance() {
    return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight;
  }

  /* Only who scrolls up leaves the end: what grows moves it away too, and nobody has moved then. */
  #scrolled() {
    const { scrollTop } = this.box;
    const isNear = this.#distance < NEAR;
    if (isNear || scrollTop < this.top) this.#follow(isNear);
    this.top = scrollTop;
    this.button.hidden = isNear;
  }

  #follow(is) {
    this.following = is;
    this.box.toggleAttribute("data-reading", !is);
  }

  #grew() {
    if (this.following) this.box.scrollTop = this.box.scrollHeight;
    else this.button.hidden = this.#distance < NEAR;
  }

  toEnd() {
    this.#follow(true);
    this.button.hidden = true;
    this.box.scrollTop = this.box.scrollHeight;
  }

  /* Change what is above without moving what is in sight; the change is drawn at the next frame. */
  hold(change) {
    this.#follow(false);
    const fromEnd = this.box.scrollHeight - this.box.scrollTop;
    change();
    requestAnimationFrame(() => { this.box.scrollTop = this.box.scrollHeight - fromEnd; });
  }
}
