"use strict";
/* Held-out rows: the base model's answer beside the trained model's. */

const HELD_OUT_KINDS = [
  ["all", "all", () => true],
  ["fails", "still fail", (row) => row.trained && row.trained.reward !== null && !row.trained.passed],
  ["better", "got better", (row) => change(row) > 1e-9],
  ["worse", "got worse", (row) => change(row) < -1e-9],
  ["same", "unchanged", (row) => Math.abs(change(row)) <= 1e-9],
];

function change(row) {
  if (!row.base || !row.trained || row.base.reward === null || row.trained.reward === null) return NaN;
  return row.trained.reward - row.base.reward;
}

function heldOut(host, rows) {
  if (!rows.length) {
    host.append(el("p", { class: "absent", text: "Not there yet: validate/rows.jsonl appears when the validate stage has run." }));
    return;
  }
  // What still fails comes first, the worst change on top.
  const order = (row) => (row.trained ? row.trained.reward : 0);
  rows.sort((a, b) => order(a) - order(b) || (change(a) || 0) - (change(b) || 0));
  const list = el("div", { class: "pairs", id: "pairs" });
  const buttons = el("div", { class: "choices", role: "group", "aria-label": "Which held-out rows" });
  const search = el("input", { type: "search", id: "heldout-search", placeholder: "text in prompt or answers", "aria-label": "Search held-out rows", oninput: () => show() });
  const status = el("p", { class: "note", role: "status", id: "heldout-status" });
  const more = el("button", { type: "button", class: "more", onclick: () => { limit += 50; show(); } });
  let kind = "all";
  let limit = 12;
  for (const [name, label, test] of HELD_OUT_KINDS) {
    const count = rows.filter(test).length;
    buttons.append(el("button", { type: "button", "data-kind": name, "aria-pressed": String(name === kind), disabled: count === 0, text: `${label} ${count}`, onclick: () => { kind = name; limit = 12; show(); } }));
  }
  function show() {
    const test = HELD_OUT_KINDS.find((one) => one[0] === kind)[2];
    const wanted = search.value.toLowerCase();
    const found = rows.filter((row) => test(row) && (!wanted || [row.prompt, row.base && row.base.text, row.trained && row.trained.text].some((text) => text && text.toLowerCase().includes(wanted))));
    for (const button of buttons.children) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
    list.replaceChildren(...found.slice(0, limit).map(pair));
    status.textContent = `${found.length} of ${rows.length} rows, lowest reward after training first`;
    more.hidden = found.length <= limit;
    more.textContent = `Show ${Math.min(50, found.length - limit)} more of ${found.length - limit}`;
  }
  host.append(el("div", { class: "tools" }, buttons, search), status, list, more);
  show();
}

function pair(row) {
  const difference = change(row);
  return el("article", { class: "pair" },
    el("div", { class: "where" }, el("span", {}, shown(row.where || row.id, true)), Number.isNaN(difference) ? null : el("span", { class: difference > 0 ? "up" : difference < 0 ? "down" : "note", text: signed(difference) })),
    el("details", {}, el("summary", {}, shown(lastWords(row.prompt), true)), textBlock(row.prompt, "prompt")),
    el("div", { class: "sides" }, side("Base", row.base), side("Trained", row.trained)));
}

function side(label, answer) {
  if (!answer) return el("div", {}, el("h4", { text: label }), el("p", { class: "absent", text: "not recorded" }));
  return el("div", { class: "side " + grade(answer.reward, answer.passed) },
    el("h4", {}, label, " ", rewardMark(answer.reward, answer.passed), answer.stop === "length" ? el("span", { class: "note", text: " cut off" }) : null),
    textBlock(answer.text, label + " answer"), rewardParts(answer.rewards));
}

function rewardMark(reward, passed) {
  return el("span", { class: "mark " + grade(reward, passed), text: number(reward) });
}

function rewardParts(rewards) {
  const names = Object.keys(rewards || {});
  if (names.length < 2) return null;
  return el("p", { class: "note parts" }, ...names.map((name) => el("span", {}, shown(name, true), " " + number(rewards[name]))));
}
