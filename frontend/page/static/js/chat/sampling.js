/** What can be set for answers, and how does it become fields of a request? An empty field leaves it to the server. */

const number = (name, label, limits, hint) => ({ name, label, kind: "number", ...limits, hint });

/** The fields of the panel; names are those of the API. */
export const FIELDS = [
  number("temperature", "Temperature", { min: 0, max: 2, step: 0.05 }, "0 takes the likeliest token"),
  number("top_p", "Top p", { min: 0.01, max: 1, step: 0.01 }),
  number("top_k", "Top k", { min: 0, max: 1000, step: 1 }, "0 keeps all tokens"),
  number("min_p", "Min p", { min: 0, max: 1, step: 0.01 }),
  number("max_tokens", "Longest answer", { min: 1, max: 1_000_000, step: 1 }, "in tokens"),
  number("seed", "Seed", { min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 }, "the same seed gives the same answer"),
  number("presence_penalty", "Presence penalty", { min: -2, max: 2, step: 0.1 }),
  number("frequency_penalty", "Frequency penalty", { min: -2, max: 2, step: 0.1 }),
  number("repetition_penalty", "Repetition penalty", { min: 0.05, max: 10, step: 0.05 }),
  { name: "stop", label: "Stop at", kind: "text", hint: "a text that ends the answer" },
  {
    name: "reasoning_effort",
    label: "Reasoning",
    kind: "choice",
    choices: ["", "none", "low", "medium", "high"],
    hint: "for models that think first",
  },
];

/** Return the fields of a request; throws Error with words for the user if the tools cannot be read. */
export function requestFields(values) {
  const fields = {};
  for (const { name, kind } of FIELDS) {
    const value = values[name];
    if (value !== undefined && value !== "") fields[name] = kind === "number" ? Number(value) : value;
  }
  const tools = toolsOf(values.tools ?? "");
  if (tools.length) fields.tools = tools;
  return fields;
}

/** Read the tools: a JSON array of the API's tools, or of their functions. */
export function toolsOf(text) {
  if (!text.trim()) return [];
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are not JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw new Error("The tools must be a JSON array.");
  return tools.map((tool) => (tool?.type === "function" ? tool : { type: "function", function: tool }));
}
