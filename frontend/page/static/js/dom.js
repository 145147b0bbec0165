/** How are elements made and found? Text is always text here: nothing is parsed as markup. */

const SVG = "http://www.w3.org/2000/svg";

/** Paths of the icons, drawn on 24 x 24 with a stroke. */
const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  search: "M11 5a6 6 0 1 1 0 12a6 6 0 0 1 0-12M15.5 15.5L20 20",
  send: "M12 19V6M6 11l6-6l6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM15 9V5H5v10h4",
  check: "M5 13l4.5 4.5L19 7",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  again: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  left: "M14 6l-6 6l6 6",
  right: "M10 6l6 6l-6 6",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M13 5.5v5M7 13.5v5",
  key: "M8 11a4 4 0 1 0 0 2h13M17 12v4M21 12v3",
  sun: "M12 8a4 4 0 1 0 0 8a4 4 0 0 0 0-8M12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M18.7 5.3l-1.4 1.4M6.7 17.3l-1.4 1.4",
  moon: "M20 14.5A8 8 0 1 1 9.5 4a6.5 6.5 0 0 0 10.5 10.5z",
  auto: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  close: "M6 6l12 12M18 6L6 18",
  pause: "M8 5v14M16 5v14",
  play: "M7 5l12 7l-12 7z",
  download: "M12 4v11M7 11l5 5l5-5M5 20h14",
  upload: "M12 16V5M7 9l5-5l5 5M5 20h14",
  book: "M5 5h6v14H5zM13 5h6v14h-6z",
  down: "M6 10l6 6l6-6",
};

/**
 * Make an element: h("button", {class: "x", onclick: f}, "text", child).
 * False, null and undefined attributes are left out; children may be nested lists.
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Make an icon that screen readers pass over. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.classList.add("icon");
  svg.append(path);
  return svg;
}

/** Make a button that shows an icon and is called by its label. */
export function iconButton(name, label, onclick, attributes = {}) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...attributes }, icon(name));
}

/** Find an element of the document by its id. */
export const byId = (id) => document.getElementById(id);

/** Say something to screen readers, once. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** Copy a text and show on the button that it is done. */
export async function copyFrom(button, text) {
  await navigator.clipboard.writeText(text);
  const shown = button.firstElementChild;
  shown.replaceWith(icon("check"));
  announce("Copied");
  setTimeout(() => button.firstElementChild.replaceWith(shown), 1200);
}
