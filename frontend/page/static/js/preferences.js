/** What does this browser remember of its user's choices? Small values; conversations are in store.js. */

const PREFIX = "splitserve.";
const listeners = new Map();

/** Return a value that was kept, or the fallback; storage may be switched off. */
export function recall(name, fallback) {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? fallback : JSON.parse(text);
  } catch {
    return fallback;
  }
}

/** Keep a value, and tell those who watch it. */
export function remember(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Without storage the choice lasts as long as the page.
  }
  for (const listener of listeners.get(name) ?? []) listener(value);
}

/** Call a function at every change of a value. */
export function watch(name, listener) {
  listeners.set(name, [...(listeners.get(name) ?? []), listener]);
}

let heldKey = null;

/** Return the API key, "" for none. */
export function apiKey() {
  if (heldKey === null) {
    try {
      heldKey = sessionStorage.getItem(`${PREFIX}key`) ?? localStorage.getItem(`${PREFIX}key`) ?? "";
    } catch {
      heldKey = "";
    }
  }
  return heldKey;
}

/** Take a new key: until the tab is closed, or for good if it is to be kept on this device. */
export function setApiKey(key, keep) {
  heldKey = key;
  try {
    sessionStorage.removeItem(`${PREFIX}key`);
    localStorage.removeItem(`${PREFIX}key`);
    if (key) (keep ? localStorage : sessionStorage).setItem(`${PREFIX}key`, key);
  } catch {
    // It is held in memory.
  }
}
