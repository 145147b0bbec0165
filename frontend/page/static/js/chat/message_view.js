/** How does one message look, while it grows and when it is done? */

import { copyFrom, h, icon, iconButton } from "../dom.js";
import { GrowingText, fill } from "../markdown.js";
import { speedOf } from "./answer.js";

const NAMES = { user: "You", assistant: "Assistant", tool: "Result of a tool" };
const ENDS = {
  length: "Stopped at the limit of tokens",
  repetition: "Stopped: it repeated itself",
  stopped: "Stopped by you",
};

/** Shows a node of a conversation. `actions` are {edit, again, step, answerCall}, called with the node. */
export class MessageView {
  constructor(node, siblings, actions) {
    this.node = node;
    this.actions = actions;
    this.text = h("div", { class: "text" });
    this.thought = null;
    this.calls = h("div", { class: "calls" });
    this.foot = h("div", { class: "foot" });
    this.siblings = siblings;
    this.element = h(
      "article",
      { class: `message ${node.role}`, "aria-label": NAMES[node.role] },
      h("h2", { class: "role" }, NAMES[node.role]),
      this.text,
      this.calls,
      this.foot,
    );
    this.growing = null;
    this.frame = 0;
  }

  /** Show the message as it is: it grows no more. */
  finish() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.growing = null;
    this.element.classList.remove("growing");
    if (this.node.role === "user") this.text.textContent = this.node.content;
    else fill(this.text, this.node.content);
    this.#showThought(false);
    this.#showCalls(true);
    this.#showFoot();
    return this;
  }

  /** Show more of it with the next picture that is drawn; `then` is called afterwards. */
  grow(then) {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.element.classList.add("growing");
      if (!this.growing) {
        this.text.replaceChildren();
        this.growing = new GrowingText(this.text);
      }
      this.growing.show(this.node.content);
      this.#showThought(true);
      this.#showCalls(false);
      this.#showStats();
      then();
    });
  }

  #showThought(growing) {
    if (!this.node.reasoning) return;
    if (!this.thought) {
      this.thought = { body: h("div", { class: "fold-body" }), title: h("span", {}) };
      const summary = h("summary", {}, icon("right"), this.thought.title);
      this.text.before(h("details", { class: "fold" }, summary, this.thought.body));
    }
    this.thought.title.textContent = growing && !this.node.content ? "Thinking…" : "Reasoning";
    this.thought.body.textContent = this.node.reasoning;
  }

  #showCalls(withForms) {
    const calls = this.node.toolCalls ?? [];
    if (!calls.length) return;
    this.calls.replaceChildren(...calls.map((call) => this.#call(call, withForms)));
  }

  #call(call, withForm) {
    const code = h("pre", { class: "fold-body", tabindex: "0" }, pretty(call.function.arguments));
    const summary = h("summary", {}, icon("right"), h("span", {}, "Calls ", h("code", {}, call.function.name)));
    const open = h("details", { class: "fold call" }, summary, code);
    return h("div", {}, open, withForm && this.actions.answerCall ? this.#resultForm(call) : null);
  }

  #resultForm(call) {
    const input = h("textarea", { rows: "2", "aria-label": `Result of ${call.function.name}`, placeholder: "What the function returns" });
    const submit = (event) => {
      event.preventDefault();
      if (input.value.trim()) this.actions.answerCall(this.node, call, input.value);
    };
    return h("form", { class: "result-form", onsubmit: submit }, input, h("button", { class: "button small" }, "Send result"));
  }

  #showFoot() {
    const { node } = this;
    const parts = [this.#error(), this.#stats(), this.#buttons()];
    this.foot.replaceChildren(...parts.filter(Boolean));
    this.foot.classList.toggle("only-buttons", !node.error && node.role !== "assistant");
  }

  #showStats() {
    const stats = this.#stats();
    if (stats) this.foot.replaceChildren(stats);
  }

  #error() {
    if (!this.node.error) return null;
    const retry = h("button", { type: "button", class: "button small", onclick: () => this.actions.again(this.node) }, "Try again");
    return h("p", { class: "error", role: "alert" }, this.node.error, " ", retry);
  }

  #stats() {
    const { stats, finish } = this.node;
    if (!stats) return null;
    const speed = speedOf(stats);
    const texts = [
      `${stats.tokens} ${stats.tokens === 1 ? "token" : "tokens"}`,
      speed === null ? null : `${speed.toFixed(speed < 10 ? 1 : 0)} tokens/s`,
      stats.firstMs === null ? null : `first after ${seconds(stats.firstMs)}`,
      `prompt ${stats.prompt}${stats.cached ? `, ${stats.cached} cached` : ""}`,
      ENDS[finish] ?? null,
    ];
    return h("p", { class: "stats" }, texts.filter(Boolean).map((text) => h("span", {}, text)));
  }

  #buttons() {
    const { node, actions } = this;
    const buttons = [this.#versions()];
    const copy = iconButton("copy", "Copy message", () => copyFrom(copy, node.content));
    buttons.push(copy);
    if (node.role === "user") buttons.push(iconButton("edit", "Edit message", () => this.#edit()));
    if (node.role === "assistant") buttons.push(iconButton("again", "Answer again", () => actions.again(node)));
    return h("div", { class: "buttons" }, buttons);
  }

  #versions() {
    const at = this.siblings.indexOf(this.node);
    if (this.siblings.length < 2) return null;
    const step = (by) => () => this.actions.step(this.siblings[at + by]);
    return h(
      "span",
      { class: "versions", role: "group", "aria-label": "Versions" },
      iconButton("left", "Version before", step(-1), { disabled: at === 0 }),
      h("span", {}, `${at + 1}/${this.siblings.length}`),
      iconButton("right", "Next version", step(1), { disabled: at === this.siblings.length - 1 }),
    );
  }

  #edit() {
    const input = h("textarea", { class: "edit", "aria-label": "Edit message", rows: String(Math.min(12, this.node.content.split("\n").length + 1)) });
    input.value = this.node.content;
    const done = () => this.finish();
    const send = (event) => {
      event?.preventDefault();
      if (input.value.trim()) this.actions.edit(this.node, input.value);
    };
    const cancel = h("button", { type: "button", class: "button small quiet", onclick: done }, "Cancel");
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") done();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
    });
    this.text.replaceChildren(
      h("form", { class: "edit-form", onsubmit: send }, input, h("div", { class: "row" }, cancel, h("button", { class: "button small primary" }, "Send"))),
    );
    this.foot.replaceChildren();
    input.focus();
  }
}

const seconds = (ms) => (ms < 995 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
