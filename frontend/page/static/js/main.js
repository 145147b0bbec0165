/** What starts when the page is opened: views, model, key, colours. */

import { Chat } from "./chat/chat.js";
import { ModelPicker } from "./chat/models.js";
import { confirm } from "./confirm.js";
import { byId, icon } from "./dom.js";
import { startKeyDialog } from "./key_dialog.js";
import { Live } from "./live/live.js";
import { Status } from "./status.js";
import { ConversationStore } from "./store.js";
import { startTheme } from "./theme.js";

// With a slash they are the ids of no element, which the browser would scroll to.
const VIEWS = { "#/chat": "Chat", "#/live": "Live view" };

for (const place of document.querySelectorAll("[data-icon]")) place.prepend(icon(place.dataset.icon));
startTheme(byId("theme"));

const store = await ConversationStore.open();
const models = new ModelPicker(() => chat.modelChanged());
const chat = new Chat(store, models, confirm);
const status = new Status(() => refresh());
const live = new Live((engines) => status.showEngines(engines));

/** A key that is wanted is asked for by its dialog; without an engine the status says so, and tries again. */
const refresh = () => models.refresh().catch(() => {});

function showView() {
  const hash = location.hash in VIEWS ? location.hash : "#/chat";
  const view = hash.slice(2);
  document.body.dataset.view = view;
  document.title = `${VIEWS[hash]} · SplitServe`;
  for (const id of ["chat", "live"]) {
    byId(id).hidden = id !== view;
    if (id === view) byId(`to-${id}`).setAttribute("aria-current", "page");
    else byId(`to-${id}`).removeAttribute("aria-current");
  }
  live.setOpen(view === "live");
}

function startToggles() {
  const toggle = (button, name, initial) => {
    const set = (isOn) => {
      document.body.classList.toggle(name, isOn);
      byId(button).setAttribute("aria-expanded", String(isOn));
    };
    byId(button).addEventListener("click", () => set(!document.body.classList.contains(name)));
    set(initial);
    return set;
  };
  const setList = toggle("list-button", "shows-list", false);
  const setPanel = toggle("panel-button", "shows-panel", false);
  byId("panel-close").addEventListener("click", () => {
    setPanel(false);
    byId("panel-button").focus();
  });
  byId("list-close").addEventListener("click", () => setList(false));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) setList(false);
  });
}

byId("skip").addEventListener("click", (event) => {
  // Its address is no view.
  event.preventDefault();
  byId("main-content").focus();
});
startToggles();
startKeyDialog(() => {
  status.ask();
  refresh();
  live.restart();
});
addEventListener("hashchange", showView);
await chat.start();
showView();
status.ask();
document.body.dataset.started = "true";
