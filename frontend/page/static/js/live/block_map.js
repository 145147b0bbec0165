/** The KV pool, drawn block by block. */

import { byId } from "../dom.js";
import { colourOf } from "../theme.js";
import { prepare } from "./canvas.js";

const COLOURS = ["block-free", "block-cached", "block-used", "block-shared"];
const MAX_CELL_PX = 28;
const GAP_PX = 1;

/** Draw the blocks of an engine, and say the same in words. */
export function showBlocks(blocks) {
  const canvas = byId("block-map");
  const states = blocks ? Uint8Array.from(atob(blocks.map), (char) => char.charCodeAt(0)) : new Uint8Array();
  draw(canvas, states);
  const { in_use: used = 0, cached = 0, free = 0, total = 0 } = blocks ?? {};
  canvas.setAttribute("aria-label", `Map of ${total} KV blocks: ${used} in use, ${cached} cached, ${free} free`);
  for (const [name, value] of [["used", used], ["cached", cached], ["free", free]]) {
    byId(`blocks-${name}`).textContent = value.toLocaleString("en");
  }
  showHost(blocks);
  const per = blocks?.blocks_per_cell ?? 1;
  byId("blocks-note").textContent = blocks
    ? `${total.toLocaleString("en")} blocks of ${blocks.block_size} tokens${per > 1 ? `; a cell is one block in ${per}` : ""}`
    : "";
}

function showHost(blocks) {
  const hasHost = Boolean(blocks?.host_total);
  byId("host-tier").hidden = !hasHost;
  if (!hasHost) return;
  byId("host-used").textContent = blocks.host_used.toLocaleString("en");
  byId("host-total").textContent = blocks.host_total.toLocaleString("en");
  const meter = byId("host-meter");
  meter.style.setProperty("--share", String(blocks.host_used / blocks.host_total));
}

function draw(canvas, states) {
  const prepared = prepare(canvas);
  if (!prepared || !states.length) return;
  const { context, width, height } = prepared;
  const perRow = cellsPerRow(states.length, width, height);
  const cell = width / perRow;
  const colours = COLOURS.map(colourOf);
  const gap = cell > 14 ? 2 * GAP_PX : cell > 4 ? GAP_PX : 0;
  states.forEach((state, i) => {
    context.fillStyle = colours[state] ?? colours[0];
    context.fillRect((i % perRow) * cell, Math.floor(i / perRow) * cell, cell - gap, cell - gap);
  });
}

/** Cells are squares that fill the width, and as large as the height lets them be. */
function cellsPerRow(count, width, height) {
  let perRow = Math.ceil(Math.max(width / MAX_CELL_PX, Math.sqrt((count * width) / height)));
  while ((Math.ceil(count / perRow) * width) / perRow > height) perRow += 1;
  return perRow;
}
