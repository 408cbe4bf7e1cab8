"use strict";
/* Elements and text. Whatever comes from a model, a row or a config becomes a text node, with what cannot be seen spelt out. */

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const UNSEEN = /([\p{C}\p{Zl}\p{Zp}\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000\u034f\u115f\u1160\u2800\u3164\uffa0]|^ +| +$)/u;
const NAMES = { "\n": "↵", "\t": "⇥", "\r": "CR", "\u001b": "ESC", "\u0000": "NUL" };

function codeName(character) {
  return NAMES[character] || "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
}

/* Text with invisible characters shown. `flat` keeps it on one line (for lists). */
function shown(text, flat) {
  const out = document.createDocumentFragment();
  text.split(UNSEEN).forEach((piece, index) => {
    if (!piece) return;
    if (index % 2 === 0) {
      out.append(piece);
    } else if (piece[0] === " ") {
      out.append(el("span", { class: "unseen", title: "space", text: "·".repeat(piece.length) }));
    } else {
      out.append(el("span", { class: "unseen", title: codeName(piece), text: codeName(piece) }));
      if (piece === "\n" && !flat) out.append("\n");
      if (piece === "\t" && !flat) out.append("\t");
    }
  });
  return out;
}

function textBlock(text, label) {
  const block = el("pre", { class: "text", dir: "auto", tabindex: "0", role: "region", "aria-label": label || "text" });
  if (text === "") block.append(el("span", { class: "unseen", text: "(empty)" }));
  else block.append(shown(text, false));
  return block;
}

function number(value, digits) {
  if (value === null || value === undefined) return "–";
  return value.toFixed(digits === undefined ? 2 : digits);
}

function signed(value, digits) {
  if (value === null || value === undefined) return "–";
  return (value > 0 ? "+" : "") + value.toFixed(digits === undefined ? 2 : digits);
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 ? value.toFixed(2) + " s" : value < 120 ? value.toFixed(0) + " s" : (value / 60).toFixed(1) + " min";
}

function percent(value) {
  return value === null || value === undefined ? "–" : (100 * value).toFixed(0) + " %";
}

/* "pass", "some" or "none": how a reward is coloured. */
function grade(reward, passed) {
  if (reward === null || reward === undefined) return "none";
  return passed ? "pass" : reward > 0 ? "some" : "none";
}

/* The end of the user's words in a rendered prompt says more than its template. */
function lastWords(prompt) {
  const lines = prompt.replace(/<\|[^|<>]*\|>/g, "\n").split("\n").map((line) => line.trim()).filter((line) => line && !/^(assistant|user|system|model)$/.test(line));
  return (lines[lines.length - 1] || prompt).slice(-200);
}

async function unpack(id) {
  const node = document.getElementById("data-" + id);
  const bytes = Uint8Array.from(atob(node.textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const value = JSON.parse(await new Response(stream).text());
  node.remove();
  return value;
}
