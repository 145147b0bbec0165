/** Is there an engine that answers? The mark in the bar, asked for now and then. */

import { ApiError, call } from "./api.js";
import { byId, announce } from "./dom.js";

const INTERVAL_MS = 5000;
const WORDS = { ok: "Ready", loading: "Loading", recovering: "Recovering", asleep: "Asleep", draining: "Draining", unavailable: "No engine" };
const TONES = { ok: "good", loading: "busy", recovering: "busy", asleep: "busy", draining: "busy" };

/** Shows the state; `onReady` is called when it becomes ready. */
export class Status {
  constructor(onReady) {
    this.onReady = onReady;
    this.state = "";
    this.timer = 0;
    this.numAsked = 0;
    document.addEventListener("visibilitychange", () => this.ask());
  }

  /** Ask now, and again after a while. */
  async ask() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    const number = ++this.numAsked;
    const state = await stateOf();
    // One that was asked later, with another key it may be, knows better.
    if (number !== this.numAsked) return;
    this.show(state);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), INTERVAL_MS);
  }

  /** Show what the live view has seen: one ready engine is enough. */
  showEngines(engines) {
    if (!engines) this.show("away");
    else if (engines.some((engine) => engine.state === "ready" && !engine.stalled)) this.show("ok");
    else this.show(["asleep", "loading", "recovering", "draining"].find((state) => engines.some((engine) => engine.state === state)) ?? "unavailable");
  }

  /** Show a state of /health, "key" or "away". */
  show(state) {
    if (state === this.state) return;
    const before = this.state;
    this.state = state;
    const words = { key: "Key needed", away: "Server away" }[state] ?? WORDS[state] ?? state;
    const element = byId("status");
    element.textContent = words;
    element.className = `state-chip ${TONES[state] ?? "bad"}`;
    if (before) announce(words);
    if (state === "ok") this.onReady();
  }
}

async function stateOf() {
  try {
    return (await (await call("/health")).json()).status;
  } catch (error) {
    // A body that broke off, or that of a proxy.
    if (!(error instanceof ApiError)) return "away";
    if (error.status === 401) return "key";
    return error.status === 503 ? (error.body.status ?? "unavailable") : "away";
  }
}
