/** How is the user asked before something cannot be undone? */

import { byId } from "./dom.js";

/** Ask; resolves to whether the user agreed. Without a verb it only tells. */
export function confirm(title, text, verb) {
  const dialog = byId("confirm-dialog");
  byId("confirm-title").textContent = title;
  byId("confirm-text").textContent = text;
  const yes = byId("confirm-yes");
  yes.hidden = !verb;
  yes.textContent = verb;
  byId("confirm-no").textContent = verb ? "Cancel" : "Close";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
