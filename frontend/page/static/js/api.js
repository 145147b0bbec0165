/** How does the page speak to its server? Requests with the key, errors as the API words them, streams of events. */

import { apiKey } from "./preferences.js";

// This file is /page/js/api.js below wherever a proxy publishes the server.
const ROOT = new URL("../..", import.meta.url);

/** A failure that the server has worded, or status 0 if it was not reached; `body` is what it answered. */
export class ApiError extends Error {
  constructor(status, code, message, body = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.body = body;
  }
}

/** Told when the server wants a key, or another one than the one in use. */
export const keyNeeded = new EventTarget();

/** Return the address of a path of the server. */
export const urlOf = (path) => new URL(path.replace(/^\//, ""), ROOT);

/** Send a request; throws ApiError, or AbortError if `signal` says so. */
export async function call(path, { body, signal } = {}) {
  const headers = {};
  const key = apiKey();
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(urlOf(path), {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server cannot be reached.");
  }
  if (response.ok) return response;
  // What is said of a key that has been replaced meanwhile, nobody has to hear.
  if (response.status === 401 && key === apiKey()) keyNeeded.dispatchEvent(new Event("needed"));
  throw await errorOf(response);
}

async function errorOf(response) {
  const body = await response.json().catch(() => ({}));
  const { message = `The server answered ${response.status}.`, code = null } = body.error ?? {};
  return new ApiError(response.status, code, message, body);
}

/** Return the JSON of an answer. */
export const getJson = async (path, options) => (await call(path, options)).json();

/** Yield the JSON of each server-sent event of a stream, until [DONE]. */
export async function* events(response) {
  for await (const line of lines(response.body)) {
    if (!line.startsWith("data: ")) continue;
    const data = line.slice(6);
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(500, event.error.code, event.error.message);
    yield event;
  }
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const parts = (rest + piece.value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {});
  }
}
