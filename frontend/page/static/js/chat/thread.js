/** The messages of a conversation on the page: which are shown, and where the reader is. */

import { byId, h } from "../dom.js";
import { shownPath, siblingsOf } from "./conversation.js";
import { MessageView } from "./message_view.js";

const NEAR_END_PX = 80;

/** Shows a conversation; `actions` are those of MessageView. */
export class Thread {
  constructor(actions) {
    this.actions = actions;
    this.scroller = byId("thread-scroll");
    this.list = byId("thread");
    this.views = new Map();
    this.follows = true;
    this.scroller.addEventListener("scroll", () => {
      this.follows = this.#distance() < NEAR_END_PX;
      this.#showJump();
    });
    this.jump = byId("jump-to-end");
    this.jump.addEventListener("click", () => this.toEnd());
  }

  /** Show a conversation, or what invites to begin one. */
  show(conversation, empty) {
    const path = shownPath(conversation);
    const views = path.map((node, index) => {
      const isLast = index === path.length - 1;
      const actions = isLast ? this.actions : { ...this.actions, answerCall: null };
      return new MessageView(node, siblingsOf(conversation, node), actions).finish();
    });
    this.views = new Map(views.map((view) => [view.node.id, view]));
    this.list.replaceChildren(...(views.length ? views.map((view) => view.element) : [empty()]));
    this.toEnd();
  }

  /** Show what has come of a message. */
  grow(node) {
    this.views.get(node.id)?.grow(() => {
      if (this.follows) this.toEnd();
      this.#showJump();
    });
  }

  /** Show a message that waits for its first token. */
  await(node) {
    const view = this.views.get(node.id);
    view.element.classList.add("growing");
    view.text.replaceChildren(h("span", { class: "waiting-dots" }, h("i"), h("i"), h("i")));
    view.foot.replaceChildren();
  }

  /** Scroll to the end and stay there. */
  toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.follows = true;
  }

  #distance() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight;
  }

  #showJump() {
    this.jump.hidden = this.follows || this.#distance() < NEAR_END_PX;
  }
}
