/** The live view: figures come from the feed, go into histories, and are shown once per round. */

import { announce, byId, icon } from "../dom.js";
import { themeChanges } from "../theme.js";
import { showBlocks } from "./block_map.js";
import { Feed } from "./feed.js";
import { StepHistory } from "./history.js";
import { nameOf, showProcesses } from "./processes.js";
import { RequestHistory } from "./request_history.js";
import { StepChart } from "./step_chart.js";
import { showTenants } from "./tenants.js";
import { showTiles } from "./tiles.js";
import { Waterfall } from "./waterfall.js";

/** Owns the parts of the view; `onState` is told how the engines are. */
export class Live {
  constructor(onState) {
    this.onState = onState;
    this.histories = new Map();
    this.requests = new RequestHistory();
    this.chart = new StepChart();
    this.waterfall = new Waterfall();
    this.selected = "";
    this.snapshot = null;
    this.isOpen = false;
    this.isPaused = false;
    this.said = "";
    this.feed = new Feed(
      (snapshot) => this.#take(snapshot),
      (error) => this.#fail(error),
    );
    this.pause = byId("pause");
    this.pause.addEventListener("click", () => this.#setPaused(!this.isPaused));
    this.#setPaused(false);
    themeChanges.addEventListener("change", () => this.#draw());
    addEventListener("resize", () => this.#draw());
  }

  /** Begin to watch, or stop. */
  setOpen(isOpen) {
    this.isOpen = isOpen;
    this.#run();
    if (isOpen) this.#draw();
  }

  /** Ask at once, such as with a new key. */
  restart() {
    this.feed.stop();
    this.#run();
  }

  #run() {
    if (this.isOpen && !this.isPaused) this.feed.start();
    else this.feed.stop();
  }

  #setPaused(isPaused) {
    this.isPaused = isPaused;
    this.pause.replaceChildren(icon(isPaused ? "play" : "pause"), isPaused ? "Resume" : "Pause");
    this.#run();
  }

  #take(snapshot) {
    this.snapshot = snapshot;
    const names = snapshot.engines.map((engine) => engine.engine);
    for (const name of this.histories.keys()) if (!names.includes(name)) this.histories.delete(name);
    for (const engine of snapshot.engines) {
      if (!this.histories.has(engine.engine)) this.histories.set(engine.engine, new StepHistory());
      this.histories.get(engine.engine).add(engine, snapshot.at);
    }
    this.requests.add(snapshot.requests, snapshot.at);
    if (!names.includes(this.selected)) this.selected = names[0] ?? "";
    this.#say();
    this.#showFailure("");
    this.onState(snapshot.engines);
    this.#draw();
  }

  /** Tell screen readers of states that changed, not of every figure. */
  #say() {
    const states = this.snapshot.engines.map((engine) => `${nameOf(engine.engine)} is ${engine.stalled ? "stalled" : engine.state}`).join(", ");
    if (this.said && states !== this.said) announce(states);
    this.said = states;
  }

  #fail(error) {
    this.#showFailure(error.status === 401 ? "The server wants an API key." : error.message);
    this.onState(null);
  }

  #showFailure(message) {
    const element = byId("live-error");
    element.textContent = message ? `${message} What is shown may be old; trying again.` : "";
    element.hidden = !message;
  }

  #draw() {
    if (!this.snapshot || !this.isOpen) return;
    const { engines, at } = this.snapshot;
    showProcesses(this.snapshot, this.selected, (name) => {
      this.selected = name;
      this.#draw();
    });
    const engine = engines.find((each) => each.engine === this.selected);
    if (!engine) return;
    const history = this.histories.get(engine.engine);
    byId("live-engine").textContent = engines.length > 1 ? nameOf(engine.engine) : "";
    showTiles(engine, history, at);
    showBlocks(engine.blocks);
    this.chart.show(history, at);
    this.waterfall.show(this.requests, engine.engine, at);
    showTenants(engine.tenants);
  }
}
