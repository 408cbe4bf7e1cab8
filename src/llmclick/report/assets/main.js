"use strict";
/* Unpacks the data and fills the page. */

const root = document.documentElement;
const themeButton = document.getElementById("theme");
const darkPreferred = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : darkPreferred.matches;
}

function nameTheme() {
  themeButton.textContent = isDark() ? "Light" : "Dark";
}

async function fill() {
  const about = JSON.parse(document.getElementById("data-about").textContent);
  const [metrics, rows, completions] = await Promise.all([unpack("metrics"), unpack("heldout"), unpack("completions")]);
  const charts = document.getElementById("charts");
  drawCharts(charts, metrics, about);
  heldOut(document.getElementById("heldout-body"), rows);
  rewardedExamples(document.getElementById("rewarded-body"), completions);
  explorer(document.getElementById("completions-body"), completions);
  const recolour = () => { nameTheme(); drawCharts(charts, metrics, about); };
  themeButton.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; recolour(); });
  darkPreferred.addEventListener("change", recolour);
  const onlyChanged = document.getElementById("only-changed");
  if (onlyChanged) onlyChanged.addEventListener("change", () => document.getElementById("config-table").classList.toggle("only-changed", onlyChanged.checked));
  root.dataset.ready = "true";
}

nameTheme();
fill().catch((error) => {
  const message = "This browser could not draw the page (it needs DecompressionStream, in all major browsers since 2023): ";
  document.getElementById("charts").append(el("p", { class: "absent", text: message + error }));
  throw error;
});
