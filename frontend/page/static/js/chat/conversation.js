/**
 * What is a conversation? A tree of messages: an edit or a new answer is a sibling of the old one, and `chosen` says
 * which child of each message is shown.
 *
 *     {id, title, created, updated, system, nodes: {id: node}, chosen: {parent id or "": child id}}
 *     node: {id, parent, role, content, reasoning, toolCalls, toolCallId, stats, finish, error}
 */

const MAX_TITLE_CHARS = 60;
const FORMAT = "splitserve-conversation";

const newId = () => crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(16)).join("");

/** Return an empty conversation. */
export function newConversation(system = "") {
  const now = Date.now();
  return { format: FORMAT, id: newId(), title: "", created: now, updated: now, system, nodes: {}, chosen: {} };
}

/** Add a message behind another, "" for the first; it becomes the one that is shown. */
export function addNode(conversation, parent, fields) {
  const node = { id: newId(), parent, role: "user", content: "", ...fields };
  conversation.nodes[node.id] = node;
  conversation.chosen[parent] = node.id;
  conversation.updated = Date.now();
  if (!conversation.title && node.role === "user") conversation.title = titleOf(node.content);
  return node;
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > MAX_TITLE_CHARS ? `${line.slice(0, MAX_TITLE_CHARS - 1)}…` : line;
}

/** Return the messages that are shown, in their order. */
export function shownPath(conversation) {
  const path = [];
  for (let id = conversation.chosen[""]; id; id = conversation.chosen[id]) path.push(conversation.nodes[id]);
  return path;
}

/** Return the alternatives of a message, itself among them, the oldest first. */
export const siblingsOf = (conversation, node) =>
  Object.values(conversation.nodes).filter((other) => other.parent === node.parent);

/** Show an alternative. */
export function choose(conversation, node) {
  conversation.chosen[node.parent] = node.id;
}

/** Return the messages up to and with a node as the API takes them; answers without anything are left out. */
export function messagesUpTo(conversation, last) {
  const path = [];
  for (let node = last; node; node = conversation.nodes[node.parent]) path.unshift(node);
  const messages = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  for (const node of path) {
    const message = messageOf(node);
    if (message) messages.push(message);
  }
  return messages;
}

function messageOf(node) {
  if (node.role === "tool") return { role: "tool", tool_call_id: node.toolCallId, content: node.content };
  if (node.role === "user") return { role: "user", content: node.content };
  if (node.toolCalls?.length) return { role: "assistant", content: node.content || null, tool_calls: node.toolCalls };
  return node.content ? { role: "assistant", content: node.content } : null;
}

/** Tell whether a value that was read from a file is a conversation. */
export function isConversation(value) {
  if (value?.format !== FORMAT || typeof value.id !== "string" || !value.id) return false;
  const texts = [value.title, value.system].every((text) => typeof text === "string");
  const parts = [value.nodes, value.chosen].every((part) => part && typeof part === "object");
  return texts && parts && Object.entries(value.nodes).every(([id, node]) => isNode(value, id, node)) && isTree(value);
}

function isNode(conversation, id, node) {
  const known = node?.parent === "" || Object.hasOwn(conversation.nodes, node?.parent);
  return known && node.id === id && ["user", "assistant", "tool"].includes(node.role) && typeof node.content === "string";
}

/** A file may name its messages in a circle. */
function isTree(conversation) {
  const count = Object.keys(conversation.nodes).length;
  const ends = (id, next) => {
    for (let steps = 0; id; steps += 1) {
      if (steps > count || !Object.hasOwn(conversation.nodes, id)) return false;
      id = next(id);
    }
    return true;
  };
  return (
    ends(conversation.chosen[""], (id) => conversation.chosen[id]) &&
    Object.keys(conversation.nodes).every((id) => ends(id, (each) => conversation.nodes[each].parent))
  );
}

/** Return a conversation as markdown. */
export function asMarkdown(conversation) {
  const names = { user: "You", assistant: "Assistant", tool: "Tool" };
  const system = conversation.system.trim() ? [`*System: ${conversation.system}*`] : [];
  const turns = shownPath(conversation).map((node) => `**${names[node.role]}**\n\n${node.content}`);
  return [`# ${conversation.title || "Conversation"}`, ...system, ...turns].join("\n\n") + "\n";
}
