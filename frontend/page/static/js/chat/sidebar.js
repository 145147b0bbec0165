/** The list of conversations: by day, with a search, and a menu of what can be done with all. */

import { byId, h, iconButton } from "../dom.js";

const DAY_MS = 86_400_000;

/** Shows heads of conversations. `actions` are {open, remove}, called with an id. */
export class Sidebar {
  constructor(actions) {
    this.actions = actions;
    this.list = byId("conversations");
    this.heads = [];
    this.current = "";
    this.search = byId("search");
    this.search.addEventListener("input", () => this.#draw());
  }

  /** Show these, and which one is open. */
  show(heads, current) {
    this.heads = heads;
    this.current = current;
    this.#draw();
  }

  #draw() {
    const wanted = this.search.value.trim().toLowerCase();
    const found = this.heads.filter((head) => head.title.toLowerCase().includes(wanted));
    const groups = new Map();
    for (const head of found) {
      const day = dayOf(head.updated);
      groups.set(day, [...(groups.get(day) ?? []), head]);
    }
    const shown = [...groups].flatMap(([day, heads]) => [
      h("h2", { class: "day" }, day),
      h("ul", {}, heads.map((head) => this.#entry(head))),
    ]);
    const none = wanted ? "No conversation has this in its title." : "Conversations are kept in this browser.";
    this.list.replaceChildren(...(shown.length ? shown : [h("p", { class: "none" }, none)]));
    byId("num-conversations").textContent = this.heads.length ? String(this.heads.length) : "";
  }

  #entry(head) {
    const title = head.title || "New conversation";
    const isCurrent = head.id === this.current;
    return h(
      "li",
      { class: isCurrent ? "current" : "" },
      h("button", { type: "button", class: "open", "aria-current": isCurrent ? "true" : null, onclick: () => this.actions.open(head.id) }, title),
      iconButton("trash", `Delete ${title}`, () => this.actions.remove(head.id, title)),
    );
  }
}

function dayOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY_MS) return "Yesterday";
  if (time >= midnight - 6 * DAY_MS) return "This week";
  return new Date(time).toLocaleDateString(undefined, { month: "long", year: "numeric" });
}
