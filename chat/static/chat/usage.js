/* Tokens: of each turn under its last words, of the whole conversation under the panel. They are no
   events of their own, so the page asks for them when a turn has ended. */

import { ApiError, call } from "./api.js";
import { byId } from "./dom.js";
import { number, t } from "./words.js";

export const tokens = ({ input_tokens: input, output_tokens: output }) => t("usage_tokens", { input: number(input), output: number(output) });

export class Usage {
  constructor(state, sessionId) {
    this.state = state;
    this.sessionId = sessionId;
    this.line = byId("usage");
    state.listen((kind) => {
      if (kind === "usage") this.#draw();
      if (kind === "status" && sessionId && this.wasBusy && !state.busy) this.#ask();
      if (kind === "status") this.wasBusy = state.busy;
    });
  }

  async #ask() {
    try {
      this.state.setUsage(await call("GET", `chat/${this.sessionId}/usage/`));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error; // the next turn's end asks again
    }
  }

  #draw() {
    const { total } = this.state.usage;
    this.line.hidden = total.input_tokens + total.output_tokens === 0;
    this.line.textContent = t("usage_total", { tokens: tokens(total) });
  }
}
