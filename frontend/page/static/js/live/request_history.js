/** When did each request queue, prefill and decode? Told from what was seen of it, once a second. */

const KEPT_MS = 15_000;
const MAX_REQUESTS = 400;

/** Requests that are open, and those that ended a moment ago. Times are milliseconds of the page's clock. */
export class RequestHistory {
  constructor() {
    this.requests = new Map();
    this.lastMs = 0;
  }

  /** Take in what is open now. */
  add(open, nowMs) {
    const seen = new Set();
    for (const info of open) {
      const key = `${info.engine} ${info.request_id}`;
      seen.add(key);
      this.requests.set(key, this.#seen(this.requests.get(key), info, nowMs));
    }
    for (const [key, request] of this.requests) {
      // It ended at some time since it was last seen.
      if (!seen.has(key)) request.endMs ??= (request.seenMs + nowMs) / 2;
      if (request.endMs !== null && nowMs - request.endMs > KEPT_MS) this.requests.delete(key);
    }
    const surplus = this.requests.size - MAX_REQUESTS;
    for (const key of [...this.requests.keys()].slice(0, Math.max(0, surplus))) this.requests.delete(key);
    this.lastMs = nowMs;
  }

  /** Return those that are shown, at most so many: open ones before those that ended, then the latest first. */
  shown(count, engine) {
    const isOpen = (request) => (request.endMs === null ? 0 : 1);
    return [...this.requests.values()]
      .filter((request) => request.info.engine === engine)
      .sort((one, other) => isOpen(one) - isOpen(other) || other.arrivalMs - one.arrivalMs)
      .slice(0, count);
  }

  #seen(known, info, nowMs) {
    const arrivalMs = nowMs - info.age_s * 1000;
    const request = known ?? { arrivalMs, queuedMs: null, firstTokenMs: null, endMs: null };
    const wasPrefilling = known && known.info.output_tokens === 0 && known.info.state === "running";
    if (info.state !== "waiting") request.queuedMs ??= request.arrivalMs + info.queue_time_s * 1000;
    if (info.output_tokens > 0 && request.firstTokenMs === null) {
      // Seen between two looks; one whose prefill was never seen took less than that.
      request.firstTokenMs = wasPrefilling ? (known.seenMs + nowMs) / 2 : request.queuedMs;
    }
    return Object.assign(request, { info, seenMs: nowMs, endMs: null });
  }
}
