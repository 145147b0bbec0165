/** How does the user give an API key? A dialog that opens by itself when the server wants one. */

import { keyNeeded } from "./api.js";
import { byId } from "./dom.js";
import { apiKey, setApiKey } from "./preferences.js";

/** Make the dialog work; `onKey` is called after every change of the key. */
export function startKeyDialog(onKey) {
  const dialog = byId("key-dialog");
  const input = byId("api-key");
  const hint = byId("key-hint");
  // Who does not want to give a key is not asked again and again.
  let isDismissed = false;
  const open = (isWanted) => {
    if (dialog.open || (isWanted && isDismissed)) return;
    isDismissed = true;
    input.value = apiKey();
    hint.textContent = isWanted
      ? apiKey() ? "The server does not accept this key." : "This server wants an API key."
      : "It is sent to this server alone.";
    dialog.showModal();
    input.select();
  };
  keyNeeded.addEventListener("needed", () => open(true));
  byId("key-button").addEventListener("click", () => open(false));
  byId("key-cancel").addEventListener("click", () => dialog.close());
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    isDismissed = false;
    setApiKey(input.value.trim(), byId("key-keep").checked);
    dialog.close();
    onKey();
  });
}
