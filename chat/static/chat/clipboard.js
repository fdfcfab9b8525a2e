/* Copying, and a button that does it. On a plain http site of a local network there is no
   navigator.clipboard; a selected field and the old command do the same there. */

import { byId, h } from "./dom.js";
import { t } from "./words.js";

const SAID_FOR = 1500; // ms

export function copyButton(text) {
  return h("button", {
    type: "button",
    class: "copy",
    textContent: t("copy"),
    async onclick({ currentTarget: button }) {
      button.textContent = (await copied(text())) ? t("copied") : t("copy_failed");
      setTimeout(() => { button.textContent = t("copy"); }, SAID_FOR);
    },
  });
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedByCommand(text);
  }
}

function copiedByCommand(text) {
  const focused = document.activeElement;
  const field = h("textarea", { value: text, class: "visually-hidden", readOnly: true });
  byId("announcer").after(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return done;
}
