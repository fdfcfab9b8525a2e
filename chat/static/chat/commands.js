/* Commands in the message field: "/" lists those that can be given now, further letters narrow the
   list, Enter or Tab gives the chosen one. What fits no command is a message like any other, and
   Escape closes the list, so that a message may begin with "/" too. A command that makes no sense
   now is not sent to the agents instead. */

import { announce, byId, h } from "./dom.js";
import { t } from "./words.js";

export class Commands {
  /* `all`: { name, can(), run() } each; `can` says whether it makes sense now. */
  constructor(field, all) {
    this.field = field;
    this.all = all;
    this.list = byId("commands");
    this.open = [];
    field.addEventListener("input", () => this.#typed());
    field.addEventListener("blur", () => this.#show([]));
    this.list.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // the focus stays in the field
      const option = event.target.closest("[role=option]");
      if (option) this.#give(this.open[Number(option.dataset.place)]);
    });
  }

  #typed() {
    const word = /^\/(\w*)$/.exec(this.field.value)?.[1];
    this.#show(word === undefined ? [] : this.all.filter((command) => command.name.startsWith(word.toLowerCase()) && command.can()));
  }

  /* True where a text is a command and nothing else, and so none of the agents' business. */
  taken(text, cannot) {
    const command = this.all.find(({ name }) => `/${name}` === text.toLowerCase());
    if (command?.can()) this.#give(command);
    else if (command) cannot(command);
    return command !== undefined;
  }

  /* True where the key was the list's. */
  key(event) {
    if (this.open.length === 0 || event.isComposing || event.keyCode === 229) return false;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) this.#choose((this.chosen + step + this.open.length) % this.open.length);
    else if (event.key === "Escape") this.#show([]);
    else if ((event.key === "Enter" || event.key === "Tab") && !event.shiftKey) this.#give(this.open[this.chosen]);
    else return false;
    event.preventDefault();
    return true;
  }

  #show(commands) {
    if (commands.length && this.open.length === 0) announce(t("commands_count", { count: commands.length }));
    this.open = commands;
    this.list.hidden = commands.length === 0;
    this.list.replaceChildren(...commands.map((command, i) =>
      h("li", { role: "option", id: `command-${command.name}`, data: { place: i } }, h("code", { textContent: `/${command.name}` }), h("span", { textContent: t(`command_${command.name}`) }))));
    if (commands.length) this.#choose(0);
    else this.field.removeAttribute("aria-activedescendant");
  }

  #choose(place) {
    this.chosen = place;
    for (const [i, option] of [...this.list.children].entries()) option.setAttribute("aria-selected", i === place);
    this.field.setAttribute("aria-activedescendant", this.list.children[place].id);
  }

  #give(command) {
    this.field.value = "";
    this.field.dispatchEvent(new Event("input"));
    command.run();
  }
}
