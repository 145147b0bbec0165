/**
 * How does a model's text become elements?
 *
 * Markup in the text stays text (markdown-it's html is off), what markdown makes is sanitised all the same, and the
 * page's policy lets no script, style or picture of other servers in: three lines, each enough by itself.
 */

import DOMPurify from "../vendor/dompurify.js";
import highlighter from "../vendor/highlight.js";
import MarkdownIt from "../vendor/markdown-it.js";
import bash from "../vendor/languages/bash.js";
import c from "../vendor/languages/c.js";
import cpp from "../vendor/languages/cpp.js";
import css from "../vendor/languages/css.js";
import diff from "../vendor/languages/diff.js";
import go from "../vendor/languages/go.js";
import java from "../vendor/languages/java.js";
import javascript from "../vendor/languages/javascript.js";
import json from "../vendor/languages/json.js";
import markdown from "../vendor/languages/markdown.js";
import python from "../vendor/languages/python.js";
import rust from "../vendor/languages/rust.js";
import sql from "../vendor/languages/sql.js";
import typescript from "../vendor/languages/typescript.js";
import xml from "../vendor/languages/xml.js";
import yaml from "../vendor/languages/yaml.js";
import { copyFrom, h, iconButton } from "./dom.js";

const LANGUAGES = { bash, c, cpp, css, diff, go, java, javascript, json, markdown, python, rust, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(LANGUAGES)) highlighter.registerLanguage(name, language);

// Colouring grows with the length, and a stream colours its last block again and again.
const MAX_COLOURED_CHARS = 20_000;
const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "img", "li", "ol", "p",
    "pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", "src", "alt", "title", "class", "start"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const parser = new MarkdownIt({ html: false, linkify: true, breaks: true });
// A style attribute would be refused by the page's policy; the sides of columns are classes.
for (const rule of ["th_open", "td_open"]) {
  parser.renderer.rules[rule] = (tokens, index, options, _env, renderer) => {
    const side = /text-align:(\w+)/.exec(tokens[index].attrGet("style") ?? "");
    tokens[index].attrs = side ? [["class", `to-${side[1]}`]] : null;
    return renderer.renderToken(tokens, index, options);
  };
}

// Above them are the page's own headings.
for (const rule of ["heading_open", "heading_close"]) {
  parser.renderer.rules[rule] = (tokens, index, options, _env, renderer) => {
    tokens[index].tag = `h${Math.min(6, Number(tokens[index].tag[1]) + 2)}`;
    return renderer.renderToken(tokens, index, options);
  };
}

/** Return a fragment that shows a text. */
export function render(text) {
  const fragment = DOMPurify.sanitize(parser.render(text), ALLOWED);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const image of fragment.querySelectorAll("img")) image.replaceWith(pictureOf(image));
  for (const table of fragment.querySelectorAll("table")) scrollable(table, "Table");
  for (const code of fragment.querySelectorAll("pre > code")) frame(code);
  return fragment;
}

/** A picture from elsewhere is a link to it: the policy loads none, and its server would learn of the visit. */
function pictureOf(image) {
  if (image.src.startsWith("data:image/")) return image;
  const source = image.getAttribute("src") ?? "";
  return h("a", { href: source, target: "_blank", rel: "noopener noreferrer" }, image.alt || source);
}

function scrollable(element, label) {
  const box = h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": label });
  element.replaceWith(box);
  box.append(element);
}

function frame(code) {
  const language = /language-([\w+#-]+)/.exec(code.className)?.[1] ?? "";
  colour(code, language);
  const pre = code.parentElement;
  pre.tabIndex = 0;
  const button = iconButton("copy", "Copy code", () => copyFrom(button, code.textContent));
  const block = h("div", { class: "code-block" }, h("div", { class: "code-head" }, h("span", {}, language || "text"), button));
  pre.replaceWith(block);
  block.append(pre);
}

function colour(code, language) {
  if (!highlighter.getLanguage(language) || code.textContent.length > MAX_COLOURED_CHARS) return;
  // The highlighter escapes the code; only its own spans are markup.
  code.innerHTML = highlighter.highlight(code.textContent, { language, ignoreIllegals: true }).value;
  code.classList.add("hljs");
}

/** Shows a text that grows: paragraphs that are finished are rendered once, only the last one again and again. */
export class GrowingText {
  /** Fills an element, which is empty. */
  constructor(element) {
    this.element = element;
    this.settled = 0;
    this.tail = [];
  }

  /** Show more of the text; what came before is unchanged. */
  show(text) {
    const border = lastBorder(text, this.settled);
    for (const node of this.tail) node.remove();
    if (border > this.settled) {
      this.element.append(render(text.slice(this.settled, border)));
      this.settled = border;
    }
    const fragment = render(text.slice(this.settled));
    this.tail = [...fragment.childNodes];
    this.element.append(fragment);
  }
}

/** Show a whole text in place of what an element holds: lists across paragraphs are one only then. */
export function fill(element, text) {
  element.replaceChildren(render(text));
}

/** Return where the last finished paragraph ends: at an empty line outside of code, lists and quotes. */
export function lastBorder(text, from) {
  let border = from;
  let fence = "";
  let start = from;
  for (const line of text.slice(from).split("\n").slice(0, -1)) {
    const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1];
    if (mark && !fence) fence = mark;
    else if (mark && mark[0] === fence[0] && mark.length >= fence.length) fence = "";
    start += line.length + 1;
    const next = text.slice(start, start + 1);
    if (!fence && line.trim() === "" && next && !/[\s\-*+>\d]/.test(next)) border = start;
  }
  return border;
}
