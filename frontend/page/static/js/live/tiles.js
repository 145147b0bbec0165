/** The figures at the top. */

import { byId } from "../dom.js";
import { short } from "./canvas.js";

const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const WAITS = { rows: "for rows", blocks: "for blocks", tokens: "for the step", fair_share: "for their turn", prefix: "for a prefix", grammar: "for a grammar" };

/** Show the figures of an engine with its history. */
export function showTiles(engine, history, nowMs) {
  const { rows, blocks, totals } = engine;
  put("running", rows ? String(rows.running) : "–", rows?.max_running ? `of ${rows.max_running} rows` : "");
  put("waiting", rows ? String(rows.waiting) : "–", waitsOf(rows));
  const used = blocks?.total ? blocks.in_use / blocks.total : 0;
  put("kv", blocks ? percent(used) : "–", blocks ? `${short(blocks.in_use)} of ${short(blocks.total)} blocks` : "");
  put("decode", short(history.rate("generation_tokens")), totals ? `${short(totals.generation_tokens)} since start` : "");
  put("prefill", short(history.rate("prompt_tokens")), totals ? `${short(totals.prompt_tokens)} since start` : "");
  showHits(history, totals);
  const steps = history.sum("steps", nowMs, 5000);
  put("step", steps ? `${(history.sum("timeMs", nowMs, 5000) / steps).toFixed(1)} ms` : "–", totals ? `${short(totals.steps)} steps` : "");
  put("preemptions", totals ? short(totals.preemptions) : "–", "since start");
}

function showHits(history, totals) {
  const looked = history.rate("prefix_cache_queries", 60);
  const share = looked ? history.rate("prefix_cache_hits", 60) / looked : null;
  const ever = totals?.prefix_cache_queries ? totals.prefix_cache_hits / totals.prefix_cache_queries : null;
  put("hits", share === null ? "–" : percent(share), ever === null ? "last minute" : `${percent(ever)} since start`);
}

function waitsOf(rows) {
  const [reason] = Object.entries(rows?.waiting_for ?? {}).sort((one, other) => other[1] - one[1]);
  return reason ? `${reason[1]} ${WAITS[reason[0]] ?? reason[0]}` : "nobody waits";
}

function put(name, value, note) {
  byId(`tile-${name}`).textContent = value;
  byId(`tile-${name}-note`).textContent = note;
}
