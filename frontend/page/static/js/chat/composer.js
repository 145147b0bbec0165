/** Where a message is written: Enter sends it, Shift and Enter begin a line, Escape stops an answer. */

import { byId, icon } from "../dom.js";

const MAX_HEIGHT_PX = 240;

/** The field and its button. `actions` are {send, stop}. */
export class Composer {
  constructor(actions) {
    this.actions = actions;
    this.isBusy = false;
    this.input = byId("message");
    this.button = byId("send");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.input.addEventListener("input", () => this.#resize());
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.isBusy) this.#submit();
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.isBusy && !document.querySelector("dialog[open]")) actions.stop();
    });
    this.setBusy(false);
  }

  /** Offer to stop while an answer is written, to send otherwise. */
  setBusy(isBusy) {
    this.isBusy = isBusy;
    const label = isBusy ? "Stop" : "Send";
    this.button.replaceChildren(icon(isBusy ? "stop" : "send"));
    this.button.setAttribute("aria-label", label);
    this.button.title = isBusy ? "Stop (Escape)" : "Send (Enter)";
    this.button.classList.toggle("stops", isBusy);
  }

  /** Put a text in the field and the cursor behind it. */
  fill(text) {
    this.input.value = text;
    this.#resize();
    this.input.focus();
  }

  #submit() {
    if (this.isBusy) {
      this.actions.stop();
      return;
    }
    const text = this.input.value;
    if (!text.trim()) return;
    this.fill("");
    this.actions.send(text);
  }

  #resize() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, MAX_HEIGHT_PX)}px`;
  }
}
