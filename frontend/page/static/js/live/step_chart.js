/** The steps of the last minute: tokens above, times below, preemptions as marks. */

import { byId } from "../dom.js";
import { colourOf } from "../theme.js";
import { prepare, roundUp, short } from "./canvas.js";
import { BUCKET_MS, NUM_BUCKETS } from "./history.js";

const LEFT_PX = 54;
const BOTTOM_PX = 18;
const TOP_PX = 8;

/** Draws a StepHistory on two canvases, and describes the bucket under the pointer. */
export class StepChart {
  constructor() {
    this.tokens = byId("chart-tokens");
    this.times = byId("chart-times");
    this.readout = byId("chart-readout");
    this.drawn = null;
    for (const canvas of [this.tokens, this.times]) {
      canvas.addEventListener("pointermove", (event) => this.#describe(event));
      canvas.addEventListener("pointerleave", () => this.#summarise());
    }
  }

  /** Draw the minute that ends at a time. */
  show(history, nowMs) {
    this.drawn = { history, last: Math.floor(nowMs / BUCKET_MS), nowMs };
    this.#drawTokens();
    this.#drawTimes();
    this.#summarise();
  }

  #drawTokens() {
    const { history, last } = this.drawn;
    const perSecond = 1000 / BUCKET_MS;
    const sum = (number) => (history.value("prefill", number) + history.value("decode", number)) * perSecond;
    this.#draw(this.tokens, this.#largest(sum), short, (frame, number, x, width) => {
      const decode = history.value("decode", number) * perSecond;
      bar(frame, x, width, 0, decode, colourOf("decode"));
      bar(frame, x, width, decode, sum(number), colourOf("prefill"));
      if (history.value("preemptions", number)) mark(frame, x + width / 2);
    });
    this.tokens.setAttribute("aria-label", `Tokens per second over the last minute. ${this.#words(last)}`);
  }

  #drawTimes() {
    const { history } = this.drawn;
    const write = (ms) => `${short(ms)} ms`;
    this.#draw(this.times, this.#largest((number) => history.value("maxMs", number)), write, (frame, number, x, width) => {
      const steps = history.value("steps", number);
      if (!steps) return;
      bar(frame, x, width, 0, history.value("maxMs", number), colourOf("step-max"));
      bar(frame, x, width, 0, history.value("timeMs", number) / steps, colourOf("step-mean"));
    });
    this.times.setAttribute("aria-label", `Step times over the last minute. ${this.#words()}`);
  }

  #largest(value) {
    let largest = 0;
    for (let back = 0; back < NUM_BUCKETS; back += 1) largest = Math.max(largest, value(this.drawn.last - back));
    return largest;
  }

  #draw(canvas, largest, write, drawBucket) {
    const frame = frameOf(canvas, roundUp(largest), write);
    if (!frame) return;
    const width = frame.width / NUM_BUCKETS;
    for (let back = 0; back < NUM_BUCKETS; back += 1) {
      drawBucket(frame, this.drawn.last - back, frame.left + frame.width - (back + 1) * width, Math.max(width - 0.4, 0.6));
    }
  }

  #describe(event) {
    if (!this.drawn) return;
    const { left, width } = this.tokens.getBoundingClientRect();
    const share = (event.clientX - left - LEFT_PX) / (width - LEFT_PX);
    const back = Math.min(NUM_BUCKETS - 1, Math.max(0, Math.floor((1 - share) * NUM_BUCKETS)));
    const number = this.drawn.last - back;
    const { history } = this.drawn;
    const steps = history.value("steps", number);
    const ago = `${((back * BUCKET_MS) / 1000).toFixed(1)} s ago: `;
    this.readout.textContent = steps
      ? `${ago}${steps} steps of ${(history.value("timeMs", number) / steps).toFixed(1)} ms, ${history.value("prefill", number)} prefill and ${history.value("decode", number)} decode tokens`
      : `${ago}no step`;
  }

  #summarise() {
    if (this.drawn) this.readout.textContent = this.#words();
  }

  #words() {
    const { history, nowMs } = this.drawn;
    const total = (name) => history.sum(name, nowMs, NUM_BUCKETS * BUCKET_MS - BUCKET_MS);
    const steps = total("steps");
    if (!steps) return "No step in the last minute";
    const preemptions = total("preemptions");
    return `Last minute: ${short(steps)} steps of ${(total("timeMs") / steps).toFixed(1)} ms, ${short(total("prefill"))} prefill and ${short(total("decode"))} decode tokens, ${preemptions} ${preemptions === 1 ? "preemption" : "preemptions"}`;
  }
}

function frameOf(canvas, end, write) {
  const prepared = prepare(canvas);
  if (!prepared) return null;
  const { context, width, height } = prepared;
  const frame = { context, left: LEFT_PX, width: width - LEFT_PX, top: TOP_PX, height: height - TOP_PX - BOTTOM_PX, end };
  context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const share of [0, 0.5, 1]) {
    const y = Math.round(frame.top + frame.height * (1 - share)) + 0.5;
    context.fillStyle = colourOf("line");
    context.fillRect(frame.left, y - 0.5, frame.width, 1);
    context.fillStyle = colourOf("quiet");
    context.fillText(share ? write(end * share) : "0", frame.left - 8, y);
  }
  drawSeconds(frame, height);
  return frame;
}

function drawSeconds({ context, left, width }, height) {
  context.fillStyle = colourOf("quiet");
  for (const seconds of [60, 45, 30, 15, 0]) {
    context.textAlign = seconds === 60 ? "left" : seconds === 0 ? "right" : "center";
    context.fillText(seconds ? `${seconds} s` : "now", left + width * (1 - seconds / 60), height - 7);
  }
}

function bar({ context, top, height, end }, x, width, from, to, colour) {
  if (to <= from) return;
  context.fillStyle = colour;
  const y = top + height * (1 - to / end);
  context.fillRect(x, y, width, (height * (to - from)) / end);
}

function mark({ context, top }, x) {
  context.fillStyle = colourOf("preempted");
  context.beginPath();
  context.moveTo(x - 4, top - 6);
  context.lineTo(x + 4, top - 6);
  context.lineTo(x, top + 2);
  context.fill();
}
