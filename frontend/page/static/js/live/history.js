/** What happened in the last minute? Steps in buckets of a quarter second, in memory of a fixed size. */

export const BUCKET_MS = 250;
export const NUM_BUCKETS = 240;
const COLUMNS = ["steps", "rows", "prefill", "decode", "timeMs", "maxMs", "preemptions"];
const NUM_TOTALS = 61;

/** The last minute of one engine. */
export class StepHistory {
  constructor() {
    this.columns = Object.fromEntries(COLUMNS.map((name) => [name, new Float64Array(NUM_BUCKETS)]));
    this.held = new Float64Array(NUM_BUCKETS).fill(-1);
    this.totals = [];
    this.lastStep = -1;
    this.epoch = "";
  }

  /** Take in what an engine showed at a time in milliseconds; steps that were seen before are left out. */
  add(engine, nowMs) {
    if (engine.epoch !== this.epoch) {
      this.epoch = engine.epoch;
      this.lastStep = -1;
      this.totals = [];
    }
    if (engine.totals) this.totals = [...this.totals, { ...engine.totals, at: nowMs }].slice(-NUM_TOTALS);
    const { steps } = engine;
    for (let i = 0; steps && i < steps.ago_us.length; i += 1) {
      if (steps.first_step + i <= this.lastStep) continue;
      this.#addStep(steps, i, nowMs - steps.ago_us[i] / 1000);
    }
    if (steps?.ago_us.length) this.lastStep = steps.first_step + steps.ago_us.length - 1;
  }

  #addStep(steps, i, endMs) {
    const at = this.#bucket(Math.floor(endMs / BUCKET_MS));
    const { columns } = this;
    const ms = steps.time_us[i] / 1000;
    columns.steps[at] += 1;
    columns.rows[at] += steps.rows[i];
    columns.prefill[at] += steps.prefill_tokens[i];
    columns.decode[at] += steps.decode_tokens[i];
    columns.preemptions[at] += steps.preemptions[i];
    columns.timeMs[at] += ms;
    columns.maxMs[at] = Math.max(columns.maxMs[at], ms);
  }

  #bucket(number) {
    const at = ((number % NUM_BUCKETS) + NUM_BUCKETS) % NUM_BUCKETS;
    if (this.held[at] !== number) {
      this.held[at] = number;
      for (const name of COLUMNS) this.columns[name][at] = 0;
    }
    return at;
  }

  /** Return the value of a column in a bucket, 0 if nothing happened then. */
  value(name, number) {
    const at = ((number % NUM_BUCKETS) + NUM_BUCKETS) % NUM_BUCKETS;
    return this.held[at] === number ? this.columns[name][at] : 0;
  }

  /** Return the sum of a column over the last milliseconds. */
  sum(name, nowMs, spanMs) {
    const last = Math.floor(nowMs / BUCKET_MS);
    let sum = 0;
    for (let number = last - Math.round(spanMs / BUCKET_MS); number <= last; number += 1) sum += this.value(name, number);
    return sum;
  }

  /** Return how much a counter has grown per second over the last samples, 0 before there are two. */
  rate(name, samples = 5) {
    const last = this.totals.at(-1);
    const first = this.totals.at(-1 - samples) ?? this.totals[0];
    if (!last || last === first) return 0;
    return (1000 * (last[name] - first[name])) / (last.at - first.at);
  }
}
