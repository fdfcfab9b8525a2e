/* Question cards: the seven kinds an agent may ask in, and a tool call to be approved.

   A card answers nothing by itself: it closes when the `question` event says so, in every tab, or
   when the site refuses the answer because somebody else was first. Skipping is an answer of its
   own ("declined"), never a yes. */

import { ApiError, call } from "./api.js";
import { announce, byId, h, icon } from "./dom.js";
import { agentName, t } from "./words.js";

let fresh = 0;

export class Questions {
  constructor(state, sessionId, { onOpened }) {
    this.state = state;
    this.sessionId = sessionId;
    this.onOpened = onOpened;
    this.root = byId("questions");
    this.cards = new Map();
    state.listen((kind) => kind === "questions" && this.draw());
  }

  draw() {
    for (const [id, card] of this.cards) {
      if (this.state.questions.has(id)) continue;
      const held = card.holdsFocus;
      card.element.remove();
      this.cards.delete(id);
      if (held) byId("message").focus();
    }
    for (const question of this.state.questions.values()) {
      if (this.cards.has(question.id)) continue;
      const card = new Card(question, this);
      this.cards.set(question.id, card);
      this.root.append(card.element);
      announce(t("question_announce", { agent: agentName(question.agent_id), text: question.question }));
      this.onOpened();
    }
  }

  async respond(card, body) {
    card.busy(true);
    try {
      await call("POST", `api/chat/${this.sessionId}/respond`, { question_id: card.question.id, ...body });
    } catch (error) {
      card.busy(false);
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 409 || error.status === 404) return card.close(error.code === "already_answered" ? t("question_answered") : t("question_closed"));
      card.fault(error.message);
    }
  }
}

class Card {
  constructor(question, owner) {
    this.question = question;
    this.owner = owner;
    this.prefix = `q${++fresh}`;
    this.problem = h("p", { class: "fault", role: "alert", hidden: true });
    const build = question.approval ? approval : (KINDS[question.ui_type] ?? KINDS.text);
    const { parts, read, buttons, skip = true } = build(question, this.prefix, (payload) => this.#answer(payload), (text) => this.fault(text));
    this.read = read;
    const who = question.path.length ? question.path.map(agentName).join(" › ") : agentName(question.agent_id);
    this.fields = h("fieldset", {},
      h("legend", {},
        h("span", { class: "question-from" }, icon("question"), t("question_from", { agent: who })),
        h("span", { class: "question-text", dir: "auto", textContent: question.question })),
      parts,
      this.problem,
      h("div", { class: "question-buttons" },
        buttons ?? h("button", { class: "primary", textContent: t("question_answer") }),
        skip ? h("button", { type: "button", class: "link", textContent: t("question_skip"), onclick: () => owner.respond(this, { status: "cancelled" }) }) : null));
    this.element = h("form", { class: "question", noValidate: true, data: { question: question.id, kind: question.approval ? "approval" : question.ui_type }, onsubmit: (event) => this.#submitted(event) }, this.fields);
  }

  #submitted(event) {
    event.preventDefault();
    const payload = this.read?.();
    if (payload === undefined) return this.fault(t("question_choose"));
    this.#answer(payload);
  }

  #answer(payload) {
    this.fault("");
    this.owner.respond(this, { payload });
  }

  /* A disabled field loses the focus, and nobody has taken it elsewhere. */
  busy(is) {
    if (is) this.focused = this.element.contains(document.activeElement) ? document.activeElement : null;
    this.fields.disabled = is;
    if (!is && this.holdsFocus) this.focused?.focus();
  }

  get holdsFocus() {
    const { activeElement } = document;
    return this.element.contains(activeElement) || (Boolean(this.focused) && activeElement === document.body);
  }

  fault(text) {
    this.problem.textContent = text;
    this.problem.hidden = text === "";
  }

  close(text) {
    this.fields.disabled = true;
    this.fault(text);
  }
}

/* Each kind: its inputs, and `read` for their value (undefined: nothing chosen yet). */
const KINDS = {
  text(question, id) {
    const field = h("textarea", { id, rows: 2, value: question.default_value ?? "", "aria-label": question.question, dir: "auto" });
    field.addEventListener("keydown", sendByEnter);
    return { parts: [field], read: () => field.value.trim() || undefined };
  },
  number(question, id) {
    const field = h("input", { id, type: "number", step: "any", value: question.default_value ?? "", "aria-label": question.question });
    return { parts: [field], read: () => (field.value === "" ? undefined : field.valueAsNumber) };
  },
  date(question, id) {
    const field = h("input", { id, type: "date", value: question.default_value ?? "", "aria-label": question.question });
    return { parts: [field], read: () => field.value || undefined };
  },
  confirm(question, id, answer) {
    const button = (value, text, kind) => h("button", { type: "button", class: kind, textContent: text, onclick: () => answer(value) });
    const yes = question.default_value !== false;
    return {
      parts: [],
      buttons: [button(true, t("question_yes"), yes ? "primary" : "button"), button(false, t("question_no"), yes ? "button" : "primary")],
      read: () => undefined,
    };
  },
  select: (question, id) => choices(question, id, "radio"),
  multi_select: (question, id) => choices(question, id, "checkbox"),
  form(question, id) {
    const fields = question.fields.map((field, i) => formField(field, `${id}-${i}`, question.default_value?.[field.name]));
    return {
      parts: [h("div", { class: "stack" }, fields.map((field) => field.element))],
      read() {
        const empty = fields.find((field) => field.required && field.read() === "");
        if (empty) {
          empty.input.focus();
          return undefined;
        }
        return Object.fromEntries(fields.filter((f) => f.read() !== "").map((f) => [f.name, f.read()]));
      },
    };
  },
};

/* The arguments as they are shown are what is approved: the digest says which those were. */
function approval({ approval: { tool, arguments: shown, digest } }, id, answer, fault) {
  const text = JSON.stringify(shown, null, 2);
  const edited = h("textarea", { id, rows: text.split("\n").length, value: text, hidden: true, spellcheck: false, "aria-label": t("tool_arguments"), dir: "auto" });
  const fixed = h("pre", { class: "approval-arguments", textContent: text, dir: "auto" });
  const reason = h("input", { id: `${id}-reason`, type: "text", placeholder: t("approval_reason"), "aria-label": t("approval_reason"), dir: "auto" });
  const edit = h("button", { type: "button", class: "button", textContent: t("approval_edit"), onclick() {
    [edited.hidden, fixed.hidden, edit.hidden] = [false, true, true];
    edited.focus();
  } });
  const button = (kind, words, onclick) => h("button", { type: "button", class: kind, textContent: words, onclick });
  const approve = () => {
    if (edited.hidden || edited.value === text) return answer({ decision: "approve", digest });
    try {
      answer({ decision: "approve", digest, arguments: JSON.parse(edited.value) });
    } catch {
      fault(t("approval_no_json"));
    }
  };
  return {
    parts: [h("code", { class: "approval-tool", textContent: tool }), fixed, edited, reason],
    buttons: [
      button("primary", t("approval_approve"), approve),
      button("button", t("approval_deny"), () => answer({ decision: "deny", digest, reason: reason.value.trim() })),
      edit],
    read: () => undefined, // Enter decides nothing
    skip: false,
  };
}

const label = (option) => (typeof option === "object" ? (option.label || option.value) : option);
const value = (option) => (typeof option === "object" ? option.value : option);

function choices(question, id, type) {
  const preset = [question.default_value].flat();
  const inputs = question.options.map((option) => ({ value: value(option), input: h("input", { type, name: id, checked: preset.includes(value(option)) }) }));
  const rows = question.options.map((option, i) => h("label", { class: "choice" }, inputs[i].input,
    h("span", { dir: "auto" }, String(label(option)), option?.description ? h("small", { textContent: option.description }) : null)));
  let other = null;
  if (question.allow_other) {
    const pick = h("input", { type, name: id });
    const text = h("input", { type: "text", "aria-label": t("question_other_label"), placeholder: t("question_other"), dir: "auto", oninput: () => { pick.checked = true; } });
    pick.setAttribute("aria-label", t("question_other"));
    pick.addEventListener("change", () => text.focus());
    rows.push(h("div", { class: "choice" }, pick, text));
    other = { pick, text };
  }
  return {
    parts: [h("div", { class: "choices" }, rows)],
    read() {
      const chosen = inputs.filter((one) => one.input.checked).map((one) => one.value);
      if (other?.pick.checked) {
        if (other.text.value.trim() === "") return void other.text.focus();
        chosen.push(other.text.value.trim());
      }
      return type === "radio" ? chosen[0] : chosen.length ? chosen : undefined;
    },
  };
}

function formField(field, id, preset) {
  const start = preset ?? field.default_value ?? field.default ?? "";
  const kind = field.ui_type ?? field.type ?? "text";
  const input = fieldInput(field, kind, id, start);
  const read = () => {
    if (kind === "confirm" || kind === "boolean" || kind === "checkbox") return input.checked;
    if (input.value === "") return "";
    return kind === "number" || kind === "integer" ? input.valueAsNumber : input.value;
  };
  const required = field.required ? h("span", { class: "required", textContent: ` (${t("question_required")})` }) : null;
  const element = h("div", { class: "field" }, h("label", { for: id }, field.label || field.name, required), input);
  return { name: field.name, required: Boolean(field.required), input, read, element };
}

function fieldInput(field, kind, id, start) {
  if (field.options?.length) {
    return h("select", { id }, h("option", { value: "", textContent: "" }),
      field.options.map((option) => h("option", { value: value(option), textContent: label(option), selected: value(option) === start })));
  }
  switch (kind) {
    case "number": case "integer": return h("input", { id, type: "number", step: "any", value: start });
    case "date": return h("input", { id, type: "date", value: start });
    case "confirm": case "boolean": case "checkbox": return h("input", { id, type: "checkbox", checked: start === true });
    case "textarea": return h("textarea", { id, rows: 3, value: start, dir: "auto" });
    default: return h("input", { id, type: "text", value: start, dir: "auto" });
  }
}

function sendByEnter(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  event.target.form.requestSubmit();
}
