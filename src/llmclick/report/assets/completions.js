"use strict";
/* What is rewarded, and the explorer: filter, sort, search, the group of a completion. */

function rewardedExamples(host, data) {
  const count = data.texts.length;
  if (!count) {
    host.append(el("p", { class: "absent", text: "No completions yet." }));
    return;
  }
  const all = [...Array(count).keys()];
  const judged = all.filter((index) => data.advantage[index] !== null && Math.abs(data.advantage[index]) > 1e-9);
  if (judged.length) {
    const rows = [["above their group", (index) => data.advantage[index] > 0], ["below their group", (index) => data.advantage[index] < 0]];
    const mean = (indices, values) => (indices.length ? indices.reduce((sum, index) => sum + (values[index] || 0), 0) / indices.length : null);
    const cut = (indices) => (indices.length ? indices.filter((index) => data.stop[index] === "length").length / indices.length : null);
    host.append(el("div", { class: "scroll" }, el("table", { class: "narrow" },
      el("thead", {}, el("tr", {}, ...["Rewarded", "Number", "Reward", "Tokens", "Cut off"].map((name, index) => el("th", { scope: "col", class: index ? "number" : null, text: name })))),
      el("tbody", {}, ...rows.map(([label, test]) => {
        const indices = judged.filter(test);
        return el("tr", {}, el("th", { scope: "row", text: label }), ...[indices.length.toLocaleString("en"), number(mean(indices, data.reward)), number(mean(indices, data.tokens), 1), percent(cut(indices))].map((text) => el("td", { class: "number", text })));
      })))));
  }
  const last = data.step[count - 1];
  const first = data.step[0];
  const columns = el("div", { class: "sides examples" });
  for (const [label, step] of first === last ? [[`Step ${first}`, first]] : [[`Step ${first}, the first`, first], [`Step ${last}, the last`, last]]) {
    const indices = all.filter((index) => data.step[index] === step);
    const sorted = [...indices].sort((a, b) => data.reward[b] - data.reward[a]);
    const column = el("div", {}, el("h3", { text: label }));
    const used = new Set();
    const pick = (list, title) => {
      const index = list.find((one) => !used.has(data.texts[one]));
      if (index === undefined) return;
      used.add(data.texts[index]);
      const prompt = data.prompts[data.prompt[index]];
      column.append(el("div", { class: "side " + grade(data.reward[index], data.passed[index]) }, el("h4", {}, title, " ", rewardMark(data.reward[index], data.passed[index])), el("p", { class: "note clip" }, shown(lastWords(prompt[2]), true)), textBlock(data.texts[index], title)));
    };
    pick(sorted, "highest reward");
    pick([...sorted].reverse(), "lowest reward");
    columns.append(column);
  }
  host.append(columns);
}

function explorer(host, data) {
  const count = data.texts.length;
  if (!count) {
    host.append(el("p", { class: "absent", text: "No completions yet: completions/ fills as the run goes." }));
    return;
  }
  const narrow = matchMedia("(max-width: 760px)");
  let lowered = null;
  let found = [];
  let chosen = -1;

  const field = (id, label, attributes, tag, ...children) => el("label", { for: id }, el("span", { text: label }), el(tag || "input", { id, ...attributes }, ...children));
  const options = (pairs) => pairs.map(([value, text]) => el("option", { value, text }));
  const form = el("form", { class: "tools filter", "aria-label": "Filter completions", onsubmit: (event) => event.preventDefault() },
    field("f-text", "Text", { type: "search", placeholder: "in completion or prompt   ( / )" }),
    field("f-from", "Step from", { type: "number", min: data.held[0], max: data.held[data.held.length - 1], placeholder: String(data.held[0]) }),
    field("f-to", "to", { type: "number", min: data.held[0], max: data.held[data.held.length - 1], placeholder: String(data.held[data.held.length - 1]) }),
    field("f-low", "Reward from", { type: "number", step: "any", placeholder: "any" }),
    field("f-high", "to", { type: "number", step: "any", placeholder: "any" }),
    field("f-stop", "Ended by", {}, "select", ...options([["", "any"], ["stop", "stop token"], ["length", "budget (cut off)"]])),
    field("f-sort", "Sort by", {}, "select", ...options([["step", "step"], ["-step", "step, last first"], ["-reward", "reward, highest first"], ["reward", "reward, lowest first"], ["-advantage", "advantage, highest first"], ["advantage", "advantage, lowest first"], ["-tokens", "tokens, longest first"], ["tokens", "tokens, shortest first"]])),
    el("button", { type: "reset", text: "Clear" }));
  const status = el("p", { class: "note", role: "status", id: "found" });
  const spacer = el("div", { class: "spacer" });
  const list = el("div", { class: "list", id: "list", tabindex: "0", role: "listbox", "aria-label": "Completions; arrow keys choose" }, spacer);
  const detail = el("div", { class: "detail", id: "detail", "aria-live": "polite" });
  const head = el("div", { class: "head", "aria-hidden": "true" }, ...["step", "reward", "adv.", "tokens", "completion"].map((text) => el("span", { text })));
  host.append(form, status, el("div", { class: "explorer" }, el("div", { class: "listing" }, head, list), detail));

  const value = (id) => form.querySelector("#" + id).value;
  const bound = (id, otherwise) => (value(id) === "" || Number.isNaN(Number(value(id))) ? otherwise : Number(value(id)));
  const rowHeight = () => (narrow.matches ? 60 : 34);

  function filter() {
    const wanted = value("f-text").toLowerCase();
    if (wanted && !lowered) lowered = { texts: data.texts.map((text) => text.toLowerCase()), prompts: data.prompts.map((prompt) => prompt[2].toLowerCase()) };
    const [from, to] = [bound("f-from", -Infinity), bound("f-to", Infinity)];
    const [low, high] = [bound("f-low", -Infinity), bound("f-high", Infinity)];
    const stop = value("f-stop");
    found = [];
    for (let index = 0; index < count; index += 1) {
      if (data.step[index] < from || data.step[index] > to) continue;
      const reward = data.reward[index];
      if ((low > -Infinity || high < Infinity) && (reward === null || reward < low - 1e-9 || reward > high + 1e-9)) continue;
      if (stop && data.stop[index] !== stop) continue;
      if (wanted && !lowered.texts[index].includes(wanted) && !lowered.prompts[data.prompt[index]].includes(wanted)) continue;
      found.push(index);
    }
    const sort = value("f-sort");
    const name = sort.replace("-", "");
    const sign = sort.startsWith("-") ? -1 : 1;
    if (sort !== "step") found.sort((a, b) => sign * ((data[name][a] || 0) - (data[name][b] || 0)) || a - b);
    status.textContent = `${found.length.toLocaleString("en")} of ${count.toLocaleString("en")} completions`;
    list.scrollTop = 0;
    choose(found.length ? 0 : -1, false);
  }

  function draw() {
    const height = rowHeight();
    spacer.style.height = found.length * height + "px";
    const start = Math.max(0, Math.floor(list.scrollTop / height) - 5);
    const end = Math.min(found.length, start + Math.ceil(list.clientHeight / height) + 10);
    const nodes = [];
    for (let place = start; place < end; place += 1) nodes.push(row(place, height));
    spacer.replaceChildren(...nodes);
    if (chosen >= 0) list.setAttribute("aria-activedescendant", "row-" + chosen);
    else list.removeAttribute("aria-activedescendant");
  }

  function row(place, height) {
    const index = found[place];
    const node = el("div", { class: "row", role: "option", id: "row-" + place, "aria-selected": String(place === chosen), "aria-posinset": place + 1, "aria-setsize": found.length, onclick: () => choose(place, true) },
      el("span", { text: String(data.step[index]) }), rewardMark(data.reward[index], data.passed[index]),
      el("span", { text: signed(data.advantage[index]) }), el("span", { text: number(data.tokens[index], 0) }),
      el("span", { class: "snippet", dir: "auto" }, shown(data.texts[index].slice(0, 160), true)));
    node.style.top = place * height + "px";
    node.style.height = height + "px";
    return node;
  }

  function choose(place, byUser) {
    chosen = place;
    if (place >= 0) {
      const [top, height] = [place * rowHeight(), rowHeight()];
      if (top < list.scrollTop) list.scrollTop = top;
      else if (top + height > list.scrollTop + list.clientHeight) list.scrollTop = top + height - list.clientHeight;
    }
    draw();
    show(place >= 0 ? found[place] : -1, byUser);
  }

  function show(index, byUser) {
    if (index < 0) {
      detail.replaceChildren(el("p", { class: "absent", text: "Nothing matches. Clear the filter to see every completion." }));
      return;
    }
    const prompt = data.prompts[data.prompt[index]];
    const group = [];
    for (let other = 0; other < count; other += 1) if (data.step[other] === data.step[index] && data.prompts[data.prompt[other]][0] === prompt[0]) group.push(other);
    group.sort((a, b) => data.reward[b] - data.reward[a] || a - b);
    const rewards = Object.fromEntries(Object.entries(data.rewards).map(([name, values]) => [name, values[index]]));
    const items = group.map((other) => el("li", {}, el("button", { type: "button", class: "member", "aria-current": other === index ? "true" : null, onclick: () => show(other, false) },
      rewardMark(data.reward[other], data.passed[other]), el("span", { text: signed(data.advantage[other]) }), el("span", { class: "snippet", dir: "auto" }, shown(data.texts[other].slice(0, 160), true)))));
    const silent = group.every((other) => data.reward[other] === data.reward[group[0]]);
    detail.replaceChildren(
      el("h3", {}, `Step ${data.step[index]}, sample ${number(data.sample[index], 0)} `, rewardMark(data.reward[index], data.passed[index]), " ", el("span", { class: "note", text: `advantage ${signed(data.advantage[index], 3)} · ${number(data.tokens[index], 0)} tokens · ${data.stop[index] === "length" ? "cut off by the budget" : "ended by itself"}` })),
      textBlock(data.texts[index], "completion"),
      rewardParts(rewards) || "",
      el("details", {}, el("summary", {}, "Prompt ", el("span", { class: "note" }, shown(prompt[1] || prompt[0], true))), textBlock(prompt[2], "prompt")),
      el("h4", { text: `Its group: ${group.length} completions of this prompt` + (silent ? ", all with one reward: no signal" : "") }),
      el("ol", { class: "group" }, ...items));
    detail.scrollTop = 0;
    if (byUser && narrow.matches) detail.scrollIntoView({ block: "nearest" });
  }

  let timer = 0;
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(filter, 80); });
  form.addEventListener("reset", () => setTimeout(filter, 0));
  list.addEventListener("scroll", draw, { passive: true });
  narrow.addEventListener("change", draw);
  new ResizeObserver(draw).observe(list);
  list.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(list.clientHeight / rowHeight()) - 1);
    const move = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined || !found.length) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(found.length - 1, chosen + move)), false);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) return;
    event.preventDefault();
    form.querySelector("#f-text").focus();
  });
  filter();
}
