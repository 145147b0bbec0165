/** How do conversations leave the browser and come back? Files of JSON, or of markdown to read. */

import { h } from "../dom.js";
import { asMarkdown, isConversation } from "./conversation.js";

/** Offer a file to be saved. */
function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Save conversations so that they can be read back. */
export function saveJson(conversations) {
  save("splitserve-conversations.json", "application/json", JSON.stringify(conversations, null, 1));
}

/** Save one conversation to be read. */
export function saveMarkdown(conversation) {
  const name = (conversation.title || "conversation").replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40);
  save(`${name}.md`, "text/markdown", asMarkdown(conversation));
}

/** Ask for a file and return the conversations in it; throws Error with words for the user. */
export async function loadJson() {
  const file = await chooseFile();
  if (!file) return [];
  let found;
  try {
    found = JSON.parse(await file.text());
  } catch {
    throw new Error(`${file.name} is not JSON.`);
  }
  const conversations = (Array.isArray(found) ? found : [found]).filter(isConversation);
  if (!conversations.length) throw new Error(`${file.name} holds no conversations of this page.`);
  return conversations;
}

function chooseFile() {
  return new Promise((resolve) => {
    const input = h("input", { type: "file", accept: "application/json,.json" });
    input.addEventListener("change", () => resolve(input.files[0]));
    input.addEventListener("cancel", () => resolve(null));
    input.click();
  });
}
