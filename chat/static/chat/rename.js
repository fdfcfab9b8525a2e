/* A conversation's title as a field in its row: Enter saves, Escape and leaving keep it as it was. */

import { h } from "./dom.js";
import { t } from "./words.js";

const LONGEST = 200; // characters; what the site keeps of a title

/* The new title, or "" where it stays. */
export function rename(row) {
  const link = row.querySelector("a");
  const before = row.querySelector(".session-title").textContent;
  const field = h("input", { type: "text", value: before, maxLength: LONGEST, dir: "auto", class: "rename", "aria-label": t("rename_session", { title: before }) });
  link.hidden = true;
  link.after(field);
  field.select();
  return new Promise((resolve) => {
    let isDone = false; // a field that is taken away loses the focus once more
    const done = (title, { focus }) => {
      if (isDone) return;
      isDone = true;
      resolve(title === before ? "" : title);
      link.hidden = false;
      field.remove();
      if (focus) link.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || event.keyCode === 229) return;
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      done(event.key === "Enter" ? field.value.trim() : "", { focus: true });
    });
    field.addEventListener("blur", () => done("", { focus: false }));
  });
}
