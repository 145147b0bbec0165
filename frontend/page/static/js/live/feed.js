/** Where do the figures come from? The server's public endpoints, asked once a second while somebody looks. */

import { call, getJson } from "../api.js";

const INTERVAL_MS = 1000;
// Metrics cost the server more than the others, and change slowly.
const ROUNDS_PER_SCRAPE = 5;

/** Calls `onSnapshot` with {engines, requests, frontends, at} or `onFailure` with an error, until it is stopped. */
export class Feed {
  constructor(onSnapshot, onFailure) {
    this.onSnapshot = onSnapshot;
    this.onFailure = onFailure;
    this.timer = 0;
    this.turn = 0;
    this.round = 0;
    this.frontends = [];
    this.isRunning = false;
    document.addEventListener("visibilitychange", () => this.#wake());
  }

  /** Ask from now on; nothing is asked while the page is hidden. */
  start() {
    if (this.isRunning) return;
    this.isRunning = true;
    this.turn += 1;
    this.#wake();
  }

  /** Ask no more. */
  stop() {
    this.isRunning = false;
    clearTimeout(this.timer);
    this.timer = 0;
  }

  #wake() {
    if (!this.isRunning || document.hidden || this.timer) return;
    this.timer = -1;
    this.#ask(this.turn);
  }

  /** One round, and the next after a while; rounds of an earlier start are forgotten. */
  async #ask(turn) {
    const isCurrent = () => this.isRunning && this.turn === turn;
    try {
      const [{ engines }, requests] = await Promise.all([getJson("/debug/engines"), openRequests()]);
      if (this.round++ % ROUNDS_PER_SCRAPE === 0) this.frontends = readFrontends(await (await call("/metrics")).text());
      if (isCurrent()) this.onSnapshot({ engines, requests, frontends: this.frontends, at: performance.now() });
    } catch (error) {
      this.round = 0;
      if (isCurrent()) this.onFailure(error);
    }
    if (isCurrent()) this.timer = document.hidden ? 0 : setTimeout(() => this.#ask(turn), INTERVAL_MS);
  }
}

/** While no engine is ready there are none to ask for. */
async function openRequests() {
  try {
    return (await getJson("/debug/requests")).requests;
  } catch (error) {
    if (error.status === 503) return [];
    throw error;
  }
}

const SERIES = {
  "splitserve:frontend_up": "up",
  "splitserve:frontend_open_connections": "connections",
  "splitserve:frontend_open_requests": "requests",
  "splitserve:frontend_open_sequences": "sequences",
  "splitserve:frontend_engines_ready": "engines",
};

/** Return the frontends that Prometheus' text format names: [{name, up, connections, requests, ...}]. */
export function readFrontends(text) {
  const found = new Map();
  for (const [, series, name, value] of text.matchAll(/^(splitserve:frontend_\w+)\{frontend="((?:[^"\\]|\\.)*)"\} (\S+)$/gm)) {
    if (!(series in SERIES)) continue;
    // One that was started by itself has no series that says it is up: it has answered.
    const frontend = found.get(name) ?? { name, up: 1 };
    frontend[SERIES[series]] = Number(value);
    found.set(name, frontend);
  }
  return [...found.values()].sort((one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }));
}
