/** Which models can be asked? Those of /v1/models that generate text, adapters among them. */

import { getJson } from "../api.js";
import { byId, h } from "../dom.js";
import { recall, remember } from "../preferences.js";

/** The picker in the bar; `onChange` is called when another model is chosen or found. */
export class ModelPicker {
  constructor(onChange) {
    this.select = byId("model");
    this.onChange = onChange;
    this.select.addEventListener("change", () => {
      remember("model", this.select.value);
      onChange();
    });
  }

  /** The model that is chosen, "" while there is none. */
  get model() {
    return this.select.value;
  }

  /** Ask for the models again; throws ApiError. */
  async refresh() {
    const cards = (await getJson("/v1/models")).data.filter((card) => (card.task ?? "generate") === "generate");
    const names = cards.map((card) => card.id);
    const shown = [...this.select.options].map((option) => option.value);
    if (names.length && names.join("\n") === shown.join("\n")) return;
    const wanted = recall("model", "");
    this.select.replaceChildren(...cards.map((card) => option(card)));
    if (!names.length) this.select.append(h("option", { value: "" }, "No model"));
    if (names.includes(wanted)) this.select.value = wanted;
    this.select.disabled = !names.length;
    this.onChange();
  }
}

function option(card) {
  const isAdapter = card.parent && card.parent !== card.id;
  return h("option", { value: card.id }, isAdapter ? `${card.id} (adapter of ${card.parent})` : card.id);
}
