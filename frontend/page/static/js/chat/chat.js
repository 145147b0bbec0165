/** The chat: which conversation is open, what is asked, and what becomes of the answer. */

import { announce, byId } from "../dom.js";
import { recall, remember } from "../preferences.js";
import { streamAnswer } from "./answer.js";
import { Composer } from "./composer.js";
import { addNode, choose, messagesUpTo, newConversation, shownPath } from "./conversation.js";
import { invitation } from "./examples.js";
import { Panel } from "./panel.js";
import { requestFields } from "./sampling.js";
import { Sidebar } from "./sidebar.js";
import { Thread } from "./thread.js";
import { loadJson, saveJson, saveMarkdown } from "./transfer.js";

/** Owns the parts of the view. */
export class Chat {
  /** Args: store keeps conversations, models says which is asked, confirm asks the user. */
  constructor(store, models, confirm) {
    this.store = store;
    this.models = models;
    this.confirm = confirm;
    this.conversation = newConversation(recall("system", ""));
    this.stopper = null;
    this.thread = new Thread({
      edit: (node, text) => this.#ask(node.parent, text),
      again: (node) => this.#answer(node.parent),
      step: (node) => this.#step(node),
      answerCall: (node, call, text) => this.#answerCall(node, call, text),
    });
    this.sidebar = new Sidebar({ open: (id) => this.open(id), remove: (id, title) => this.#remove(id, title) });
    this.composer = new Composer({ send: (text) => this.#send(text), stop: () => this.stop() });
    this.panel = new Panel((text) => this.#setSystem(text));
    byId("new-chat").addEventListener("click", () => this.begin());
    byId("save-markdown").addEventListener("click", () => saveMarkdown(this.conversation));
    byId("save-all").addEventListener("click", async () => saveJson(await this.store.all()));
    byId("load").addEventListener("click", () => this.#load());
    byId("remove-all").addEventListener("click", () => this.#removeAll());
  }

  /** Show the list, and the conversation that was open. */
  async start() {
    const open = await this.store.get(recall("conversation", ""));
    if (open) this.conversation = open;
    await this.#list();
    this.show();
  }

  /** Show the conversation that is open. */
  show() {
    this.panel.showSystem(this.conversation.system);
    this.thread.show(this.conversation, () => invitation(this.models.model, (text) => this.#send(text)));
    byId("save-markdown").disabled = !shownPath(this.conversation).length;
  }

  /** Invite to talk to another model, unless there is a conversation. */
  modelChanged() {
    if (!shownPath(this.conversation).length) this.show();
  }

  /** Begin a new conversation. */
  async begin() {
    this.stop();
    this.conversation = newConversation(recall("system", ""));
    remember("conversation", "");
    document.body.classList.remove("shows-list");
    await this.#list();
    this.show();
    this.composer.fill("");
  }

  /** Open a conversation of the list. */
  async open(id) {
    this.stop();
    const found = await this.store.get(id);
    if (!found) return;
    this.conversation = found;
    remember("conversation", id);
    document.body.classList.remove("shows-list");
    await this.#list();
    this.show();
  }

  /** Stop the answer that is being written, if there is one. */
  stop() {
    this.stopper?.abort();
  }

  async #send(text) {
    const last = shownPath(this.conversation).at(-1);
    await this.#ask(last?.id ?? "", text);
  }

  async #ask(parent, text) {
    this.stop();
    const node = addNode(this.conversation, parent, { role: "user", content: text });
    await this.#answer(node.id);
  }

  async #answerCall(node, call, text) {
    const result = addNode(this.conversation, shownPath(this.conversation).at(-1).id, {
      role: "tool",
      content: text,
      toolCallId: call.id,
    });
    const answered = shownPath(this.conversation).filter((each) => each.role === "tool").map((each) => each.toolCallId);
    // The model goes on once all its calls have their results.
    if (node.toolCalls.every((each) => answered.includes(each.id))) await this.#answer(result.id);
    else {
      await this.#keep();
      this.show();
    }
  }

  /** Ask for an answer behind a message; it is a new version if there is one already. */
  async #answer(parent) {
    this.stop();
    const conversation = this.conversation;
    const messages = messagesUpTo(conversation, conversation.nodes[parent]);
    const node = addNode(conversation, parent, { role: "assistant" });
    this.show();
    this.thread.await(node);
    const stopper = (this.stopper = new AbortController());
    this.composer.setBusy(true);
    announce("The answer is being written");
    try {
      const request = { model: this.models.model || undefined, messages, ...requestFields(this.panel.values) };
      // It survives a reload from here on, even if the answer does not.
      await this.#keep(conversation);
      await streamAnswer(node, request, stopper.signal, () => this.thread.grow(node));
      announce("The answer is complete");
    } catch (error) {
      if (error.name === "AbortError") node.finish = "stopped";
      else node.error = error.message;
      announce(node.error ?? "Stopped");
    }
    if (this.stopper === stopper) {
      this.stopper = null;
      this.composer.setBusy(false);
    }
    await this.#keep(conversation);
    if (this.conversation === conversation) this.#showEnd();
  }

  /** Show all in its last form, and leave the reader where he is. */
  #showEnd() {
    const { follows, scroller } = this.thread;
    const top = scroller.scrollTop;
    this.show();
    if (!follows) scroller.scrollTop = top;
  }

  async #step(node) {
    this.stop();
    choose(this.conversation, node);
    await this.#keep();
    this.show();
  }

  async #setSystem(text) {
    this.conversation.system = text;
    remember("system", text);
    if (shownPath(this.conversation).length) await this.store.put(this.conversation);
  }

  async #keep(conversation = this.conversation) {
    await this.store.put(conversation);
    if (this.conversation === conversation) remember("conversation", conversation.id);
    await this.#list();
  }

  async #list() {
    this.sidebar.show(await this.store.list(), this.conversation.id);
  }

  async #remove(id, title) {
    if (!(await this.confirm(`Delete “${title}”?`, "It is in this browser only and cannot be brought back.", "Delete"))) return;
    await this.store.remove(id);
    if (id === this.conversation.id) await this.begin();
    else await this.#list();
  }

  async #removeAll() {
    const question = "Delete all conversations?";
    if (!(await this.confirm(question, "They are in this browser only. Export them first to keep a copy.", "Delete all"))) return;
    await this.store.clear();
    await this.begin();
  }

  async #load() {
    try {
      const found = await loadJson();
      if (!found.length) return;
      await this.store.put(...found);
      announce(`${found.length} conversations were read`);
      await this.#list();
    } catch (error) {
      await this.confirm("Nothing was read", error.message, "");
    }
  }
}
