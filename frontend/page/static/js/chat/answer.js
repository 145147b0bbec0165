/** How does an answer arrive? Chunks of a stream become one message, with its counts and times. */

import { call, events } from "../api.js";

/**
 * Stream an answer into a node, calling `onChange` after every chunk.
 * Throws ApiError or AbortError; what has come stays in the node.
 */
export async function streamAnswer(node, request, signal, onChange) {
  const began = performance.now();
  const body = { ...request, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  const response = await call("/v1/chat/completions", { body, signal });
  for await (const chunk of events(response)) {
    if (chunk.choices?.[0]) take(node, chunk.choices[0]);
    if (chunk.usage) count(node, chunk.usage, began);
    node.model = chunk.model;
    onChange();
  }
}

function take(node, { delta = {}, finish_reason: finish }) {
  if (delta.content) node.content += delta.content;
  if (delta.reasoning) node.reasoning = (node.reasoning ?? "") + delta.reasoning;
  for (const part of delta.tool_calls ?? []) takeCall(node, part);
  if (finish) node.finish = finish;
}

function takeCall(node, part) {
  node.toolCalls ??= [];
  const call = (node.toolCalls[part.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
  if (part.id) call.id = part.id;
  call.function.name += part.function?.name ?? "";
  call.function.arguments += part.function?.arguments ?? "";
}

/** The speed is that of the tokens after the first, whose wait is shown by itself. */
function count(node, usage, began) {
  const stats = (node.stats ??= { firstMs: null, ms: 0, prompt: 0, cached: 0, tokens: 0 });
  stats.ms = performance.now() - began;
  stats.prompt = usage.prompt_tokens;
  stats.cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  stats.tokens = usage.completion_tokens ?? 0;
  if (stats.firstMs === null && stats.tokens > 0) {
    stats.firstMs = stats.ms;
    stats.firstTokens = stats.tokens;
  }
}

/** Return tokens per second after the first, null if there are too few. */
export function speedOf(stats) {
  const tokens = stats.tokens - (stats.firstTokens ?? 1);
  const seconds = (stats.ms - stats.firstMs) / 1000;
  return tokens > 0 && seconds > 0 ? tokens / seconds : null;
}
