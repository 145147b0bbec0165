/** Light or dark? As the system says, unless the user has chosen. */

import { icon } from "./dom.js";
import { recall, remember } from "./preferences.js";

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const ICON_OF = { auto: "auto", light: "sun", dark: "moon" };
const LABELS = { auto: "as the system", light: "light", dark: "dark" };

/** Told when the colours have changed, for what is drawn. */
export const themeChanges = new EventTarget();

/** Make a button go through the choices, and apply the one that was kept. */
export function startTheme(button) {
  const apply = (choice) => {
    document.documentElement.dataset.theme = choice;
    const label = `Colours: ${LABELS[choice]}. Change to ${LABELS[NEXT[choice]]}`;
    button.setAttribute("aria-label", label);
    button.title = label;
    button.replaceChildren(icon(ICON_OF[choice]));
    themeChanges.dispatchEvent(new Event("change"));
  };
  apply(recall("theme", "auto"));
  button.addEventListener("click", () => {
    const choice = NEXT[recall("theme", "auto")] ?? "light";
    remember("theme", choice);
    apply(choice);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => themeChanges.dispatchEvent(new Event("change")));
}

/** Return the value of a colour of the theme, for canvases. */
export const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
