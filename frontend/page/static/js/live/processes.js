/** Which engines and frontends are there, and how are they? */

import { byId, h } from "../dom.js";

const GOOD = ["ready"];
const BAD = ["lost", "refused"];

/** Show the cards; `selected` is the engine that the rest of the view shows, `select` changes it. */
export function showProcesses({ engines, frontends }, selected, select) {
  byId("engines").replaceChildren(...engines.map((engine) => engineCard(engine, engines.length > 1 && engine.engine === selected, engines.length > 1 ? select : null)));
  byId("frontends").replaceChildren(...frontends.map(frontendCard));
}

function engineCard(engine, isSelected, select) {
  const title = nameOf(engine.engine);
  const name = select
    ? h("button", { type: "button", class: "link", "aria-pressed": String(isSelected), onclick: () => select(engine.engine) }, title)
    : h("strong", {}, title);
  const details = [
    engine.stalled,
    engine.loading_stage ? `${engine.loading_stage}, ${Math.round((engine.loading_fraction ?? 0) * 100)} %` : null,
    engine.models.join(", "),
    engine.totals?.worker_restarts ? `workers restarted ${engine.totals.worker_restarts} times` : null,
  ];
  return card(name, engine.stalled ? "stalled" : engine.state, toneOf(engine), details, isSelected);
}

function frontendCard(frontend) {
  const details = [
    frontend.requests === undefined ? null : `${frontend.requests} requests, ${frontend.connections} connections`,
    frontend.sequences === undefined ? null : `${frontend.sequences} sequences on engines`,
  ];
  return card(h("strong", {}, /^\d+$/.test(frontend.name) ? `Frontend ${frontend.name}` : frontend.name), frontend.up ? "up" : "no answer", frontend.up ? "good" : "bad", details, false);
}

function card(name, state, tone, details, isSelected) {
  const texts = details.filter(Boolean).map((text) => h("p", {}, text));
  return h("li", { class: `process${isSelected ? " selected" : ""}` }, h("div", { class: "head" }, name, h("span", { class: `state-chip ${tone}` }, state)), texts);
}

/** Return how a state is coloured. */
export function toneOf({ state, stalled }) {
  if (stalled || BAD.includes(state)) return "bad";
  return GOOD.includes(state) ? "good" : "busy";
}

/** Return the name of an engine; one that has never answered has only its place in the list. */
export const nameOf = (engine) => (engine.startsWith("#") ? `Engine ${engine}` : engine);
