/** What is shown before the first message? What the model is, and questions to begin with. */

import { h } from "../dom.js";

const DEMO = ["What is the capital of France?", "What is 7 plus 5?", "Tell me a short story", "Count from 1 to 20"];
const OTHERS = [
  "Explain how a hash map works, with a short example in Python",
  "Write a haiku about waiting for a bus",
  "Compare TCP and UDP in a table",
  "What should I ask you to see what you can do?",
];

/** Return the invitation; `ask` is called with the question that is chosen. */
export function invitation(model, ask) {
  const isDemo = model === "splitserve-demo";
  const about = isDemo
    ? "This is the small demo model: it knows capitals, sums, plain facts and short stories, and little else."
    : model
      ? `You are talking to ${model}.`
      : "No model is ready yet.";
  const questions = (isDemo ? DEMO : OTHERS).map((text) =>
    h("li", {}, h("button", { type: "button", class: "example", onclick: () => ask(text) }, text)),
  );
  return h("div", { class: "invitation" }, h("h2", {}, "What is on your mind?"), h("p", {}, about), h("ul", {}, questions));
}
