/** The panel beside the chat: system prompt, sampling, tools. */

import { byId, h } from "../dom.js";
import { recall, remember } from "../preferences.js";
import { FIELDS, toolsOf } from "./sampling.js";

/** Reads and keeps what the panel says. */
export class Panel {
  /** `onSystem` is told of every change of the system prompt. */
  constructor(onSystem) {
    this.values = recall("sampling", {});
    this.system = byId("system-prompt");
    this.system.addEventListener("input", () => onSystem(this.system.value));
    byId("sampling-fields").append(...FIELDS.map((field) => this.#field(field)));
    this.tools = byId("tools");
    this.tools.value = this.values.tools ?? "";
    this.tools.addEventListener("input", () => this.#set("tools", this.tools.value));
    this.tools.addEventListener("change", () => this.#checkTools());
    byId("reset-sampling").addEventListener("click", () => this.#reset());
    this.#checkTools();
  }

  /** Show the system prompt of a conversation. */
  showSystem(text) {
    this.system.value = text;
  }

  #field(field) {
    const id = `sampling-${field.name}`;
    const { min, max, step } = field;
    const input =
      field.kind === "choice"
        ? h("select", { id }, field.choices.map((choice) => h("option", { value: choice }, choice || "Default")))
        : h("input", { id, type: field.kind, min, max, step, placeholder: "Default", autocomplete: "off" });
    input.value = this.values[field.name] ?? "";
    input.addEventListener("change", () => {
      if (input.checkValidity()) this.#set(field.name, input.value);
      else input.reportValidity();
    });
    const hint = field.hint ? h("span", { class: "hint", id: `${id}-hint` }, field.hint) : null;
    if (hint) input.setAttribute("aria-describedby", hint.id);
    return h("div", { class: "field" }, h("label", { for: id }, field.label), input, hint);
  }

  #set(name, value) {
    this.values = { ...this.values, [name]: value };
    remember("sampling", this.values);
  }

  #reset() {
    this.values = {};
    remember("sampling", this.values);
    for (const { name } of FIELDS) byId(`sampling-${name}`).value = "";
    this.tools.value = "";
    this.#checkTools();
  }

  #checkTools() {
    let message = "";
    try {
      toolsOf(this.tools.value);
    } catch (error) {
      message = error.message;
    }
    this.tools.setAttribute("aria-invalid", String(Boolean(message)));
    byId("tools-error").textContent = message;
  }
}
