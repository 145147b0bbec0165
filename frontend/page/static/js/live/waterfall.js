/** The open requests as bars over time: queue, prefill, decode, and why they wait. */

import { byId, h } from "../dom.js";

const MAX_ROWS = 40;
const MIN_SPAN_MS = 4000;
const MAX_SPAN_MS = 60_000;
const REASONS = {
  rows: "all rows are taken",
  blocks: "KV blocks are short",
  tokens: "the step is full",
  fair_share: "another tenant's turn",
  prefix: "its prefix is being computed",
  grammar: "its grammar is being compiled",
};

/** Shows a RequestHistory in a table whose rows are used again. */
export class Waterfall {
  constructor() {
    this.body = byId("waterfall-rows");
    this.empty = byId("waterfall-empty");
    this.table = byId("waterfall-table");
    this.rows = [];
  }

  /** Show the requests of an engine up to a time. */
  show(history, engine, nowMs) {
    const shown = history.shown(MAX_ROWS, engine);
    const oldest = Math.min(nowMs, ...shown.map((request) => request.arrivalMs));
    const spanMs = Math.min(MAX_SPAN_MS, Math.max(MIN_SPAN_MS, nowMs - oldest));
    byId("waterfall-span").textContent = `${Math.ceil(spanMs / 1000)} s ago to now`;
    while (this.rows.length < shown.length) this.rows.push(new Row());
    const used = this.rows.slice(0, shown.length);
    used.forEach((row, i) => row.show(shown[i], nowMs - spanMs, nowMs));
    if (this.body.childElementCount !== used.length) this.body.replaceChildren(...used.map((row) => row.element));
    this.empty.hidden = shown.length > 0;
    this.table.hidden = shown.length === 0;
  }
}

class Row {
  constructor() {
    this.name = h("th", { scope: "row" });
    this.state = h("span", { class: "chip" });
    this.why = h("span", { class: "why" });
    this.tokens = h("td", { class: "number" });
    this.parts = ["queue", "prefill", "decode"].map((kind) => h("i", { class: kind }));
    this.bar = h("div", { class: "track", role: "img" }, this.parts);
    this.element = h("tr", {}, this.name, h("td", { class: "state" }, this.state, this.why), this.tokens, h("td", { class: "time" }, this.bar));
  }

  show(request, fromMs, nowMs) {
    const { info } = request;
    const state = request.endMs === null ? info.state : "ended";
    this.name.textContent = info.request_id.replace(/^(chatcmpl|cmpl|resp|msg)[-_]/, "").slice(0, 10);
    this.name.title = info.request_id;
    this.state.textContent = state;
    this.state.className = `chip ${state}`;
    this.why.textContent = state === "ended" ? "" : (REASONS[info.waits_for] ?? "");
    this.tokens.textContent = `${info.prompt_tokens} + ${info.output_tokens}`;
    this.#showBar(request, fromMs, nowMs);
  }

  #showBar(request, fromMs, nowMs) {
    const endMs = request.endMs ?? nowMs;
    const queuedMs = request.queuedMs ?? endMs;
    const decodeMs = request.firstTokenMs ?? endMs;
    const borders = [request.arrivalMs, queuedMs, Math.max(queuedMs, decodeMs), endMs];
    const share = (ms) => Math.min(1, Math.max(0, (ms - fromMs) / (nowMs - fromMs)));
    this.parts.forEach((part, i) => {
      part.style.left = `${share(borders[i]) * 100}%`;
      part.style.width = `${Math.max(0, share(borders[i + 1]) - share(borders[i])) * 100}%`;
    });
    const took = (from, to) => `${(Math.max(0, to - from) / 1000).toFixed(1)} s`;
    const words = `queue ${took(borders[0], borders[1])}, prefill ${took(borders[1], borders[2])}, decode ${took(borders[2], borders[3])}`;
    this.bar.setAttribute("aria-label", words);
    this.bar.title = words;
  }
}
