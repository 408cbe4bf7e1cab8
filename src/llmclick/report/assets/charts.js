"use strict";
/* The curves, drawn by uPlot. */

const cursorSync = "steps";
let drawnCharts = [];

function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function movingMean(values, window) {
  return values.map((_, index) => {
    const part = values.slice(Math.max(0, index - window + 1), index + 1).filter((value) => value !== null);
    return part.length ? part.reduce((sum, value) => sum + value, 0) / part.length : null;
  });
}

/* What the page draws: each chart has a title and series {label, values, color, scale, width, points, format}. */
function chartSpecs(metrics, about) {
  const columns = metrics.columns;
  const steps = columns.step || [];
  const empty = steps.map(() => null);
  const column = (name) => columns[name] || empty;
  const window = Math.min(25, Math.max(3, Math.round(steps.length / 10)));
  const rewards = column("reward");
  const named = Object.keys(columns).filter((name) => name.startsWith("reward/"));
  const palette = ["c4", "c5", "c3", "c6"];

  const evaluations = (metrics.evaluations || []).filter((one) => one.reward !== null && one.reward !== undefined);
  const places = [...new Set([...steps, ...evaluations.map((one) => one.step)])].sort((a, b) => a - b);
  const spread = (values) => {
    const byStep = new Map(steps.map((step, index) => [step, values[index]]));
    return places.map((step) => (byStep.has(step) ? byStep.get(step) : null));
  };
  const byEval = new Map(evaluations.map((one) => [one.step, one.reward]));

  const groups = ["all_right", "mixed", "all_wrong"].map((kind) => column("groups." + kind));
  const total = steps.map((_, index) => groups.reduce((sum, kind) => sum + (kind[index] || 0), 0));
  const share = (kind) => kind.map((value, index) => (value === null || !total[index] ? null : value / total[index]));
  const phases = ["sample", "score", "train", "sync"].filter((name) => column("seconds." + name).some((value) => value !== null));
  const kl = column("kl");
  const noKl = kl.every((value) => value === null);

  return [
    {
      id: "reward", title: "Reward", x: places, gaps: false,
      series: [
        { label: "each step", values: spread(rewards), color: "c1", width: 1, faint: true },
        { label: `moving mean of ${window}`, values: spread(movingMean(rewards, window)), color: "c1", width: 2.5 },
        ...(evaluations.length ? [{ label: "held-out, greedy", values: places.map((step) => (byEval.has(step) ? byEval.get(step) : null)), color: "c2", width: 2, points: true }] : []),
        ...(named.length > 1 ? named.map((name, index) => ({ label: name.slice(7), values: spread(column(name)), color: palette[index % palette.length], width: 1.25 })) : []),
      ],
    },
    {
      id: "pass", title: "Pass rate", note: "completions whose rewards all reach pass_at", x: steps, range: [0, 1], format: percent,
      series: [
        { label: "each step", values: column("pass_rate"), color: "c1", width: 1, faint: true },
        { label: `moving mean of ${window}`, values: movingMean(column("pass_rate"), window), color: "c1", width: 2.5 },
      ],
    },
    {
      id: "groups", title: "Groups", note: "only mixed groups carry a signal", x: steps, range: [0, 1], format: percent, stacked: true,
      series: [
        { label: "all right", values: share(groups[0]), color: "good" },
        { label: "mixed", values: share(groups[1]), color: "c1" },
        { label: "all wrong", values: share(groups[2]), color: "muted" },
      ],
    },
    {
      id: "length", title: "Length and truncation", x: steps, zero: true,
      series: [
        { label: "mean tokens", values: column("length"), color: "c1", width: 2, format: (value) => number(value, 1) },
        { label: "truncated", values: column("truncated"), color: "c2", width: 2, scale: "right", format: percent },
      ],
      right: { range: [0, 1], format: percent },
    },
    {
      id: "kl", title: "Entropy and KL", note: noKl ? "nats per token; KL is measured with method.beta > 0" : "nats per token", x: steps, zero: true,
      series: [
        { label: "entropy", values: column("entropy"), color: "c1", width: 2, format: (value) => number(value, 3) },
        ...(noKl ? [] : [{ label: "KL to the base model", values: kl, color: "c2", width: 2, scale: "right", format: (value) => number(value, 4) }]),
      ],
      right: noKl ? null : { format: (value) => String(value) },
    },
    {
      id: "seconds", title: "Seconds by phase", x: steps, stacked: true, zero: true, format: seconds,
      series: phases.map((name, index) => ({ label: { sample: "sampling", score: "scoring", train: "gradient", sync: "syncing" }[name], values: column("seconds." + name), color: ["c1", "c4", "c2", "c6"][index] })),
    },
  ];
}

function drawCharts(host, metrics, about) {
  for (const chart of drawnCharts) chart.destroy();
  drawnCharts = [];
  host.replaceChildren();
  for (const spec of chartSpecs(metrics, about)) {
    const points = Math.max(0, ...spec.series.map((one) => one.values.filter((value) => value !== null).length));
    const figure = el("figure", { class: "chart", "data-chart": spec.id, "data-points": points });
    figure.append(el("figcaption", {}, el("strong", { text: spec.title }), spec.note ? el("span", { class: "note", text: " " + spec.note }) : null));
    host.append(figure);
    if (!points) figure.append(el("p", { class: "absent", text: "Nothing recorded yet." }));
    else drawnCharts.push(drawChart(figure, spec));
  }
}

function drawChart(figure, spec) {
  const axisColor = cssColor("note");
  const gridColor = cssColor("grid");
  const shownValues = spec.series.map((one) => one.values);
  let lines = shownValues;
  if (spec.stacked) {
    const sums = spec.x.map(() => 0);
    lines = shownValues.map((values) => values.map((value, index) => (value === null ? null : (sums[index] += value))));
  }
  const few = spec.x.length < 60;
  const axis = (extra) => ({ stroke: axisColor, grid: { stroke: gridColor, width: 1 }, ticks: { show: false }, font: "12px system-ui", gap: 4,
    size: (u, labels) => Math.max(40, 14 + 7 * Math.max(0, ...(labels || []).map((label) => String(label ?? "").length))), ...extra });
  const range = (fixed, zero) => (u, low, high) => {
    if (fixed) return [fixed[0], fixed[1] * 1.04];
    if (low === null) return [0, 1];
    const pad = (high - low || Math.abs(high) || 1) * 0.08;
    return [zero || (low >= 0 && low < 0.3 * high) ? Math.min(0, low - (low < 0 ? pad : 0)) : low - pad, high + pad];
  };
  const legend = (format, index) => (u, value, seriesIndex, dataIndex) => {
    // Without a cursor the legend tells the last value that there is.
    const known = shownValues[index];
    const place = dataIndex === null || dataIndex === undefined ? known.findLastIndex((one) => one !== null) : dataIndex;
    return known[place] === null || known[place] === undefined ? "–" : (format || ((one) => number(one, 3)))(known[place]);
  };
  const axes = [axis({ size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000] }), axis({ values: spec.format ? (u, splits) => splits.map((value) => (spec.range && value > spec.range[1] ? "" : spec.format(value))) : undefined })];
  const scales = { x: { time: false, range: (u, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) }, y: { range: range(spec.range, spec.zero || spec.stacked) } };
  if (spec.right) {
    scales.right = { range: range(spec.right.range, true) };
    axes.push(axis({ side: 1, scale: "right", grid: { show: false }, values: (u, splits) => splits.map((value) => (spec.right.range && value > spec.right.range[1] ? "" : spec.right.format(value))) }));
  }
  const options = {
    width: figure.clientWidth - 2, height: 210, padding: [10, spec.right ? 0 : 10, 0, 0],
    cursor: { sync: { key: cursorSync }, focus: { prox: -1 }, points: { size: 7 } },
    legend: { live: true, markers: { width: 0, fill: (u, index) => cssColor(spec.series[index - 1].color) + (spec.series[index - 1].faint ? "66" : "") } },
    scales, axes,
    series: [
      { label: "step", value: (u, value) => (value === null || value === undefined ? `${spec.x[spec.x.length - 1]}, the last` : String(value)) },
      ...spec.series.map((one, index) => ({
        label: one.label, scale: one.scale || "y", width: spec.stacked ? 1 : one.width, stroke: cssColor(one.color), alpha: one.faint ? 0.45 : 1,
        fill: spec.stacked ? cssColor(one.color) + "cc" : undefined, spanGaps: true,
        points: { show: Boolean(one.points) || (few && !one.faint && !spec.stacked && spec.x.length < 3), size: 6, fill: cssColor(one.color) },
        value: legend(one.format || spec.format, index),
      })),
    ],
  };
  if (spec.stacked) options.bands = spec.series.slice(1).map((_, index) => ({ series: [index + 2, index + 1] }));
  const chart = new uPlot(options, [spec.x, ...lines], figure);
  const first = spec.series.find((one) => one.values.some((value) => value !== null));
  const known = first.values.filter((value) => value !== null);
  const format = first.format || spec.format || ((value) => number(value, 3));
  chart.root.tabIndex = 0;
  chart.root.setAttribute("role", "img");
  chart.root.setAttribute("aria-label", `${spec.title}, ${known.length} points: ${first.label} from ${format(known[0])} to ${format(known[known.length - 1])}`);
  chart.root.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const now = chart.cursor.idx === null || chart.cursor.idx === undefined ? (move < 0 ? spec.x.length : -1) : chart.cursor.idx;
    const index = Math.max(0, Math.min(spec.x.length - 1, now + move));
    chart.setCursor({ left: chart.valToPos(spec.x[index], "x"), top: 20 });
  });
  new ResizeObserver(() => {
    if (chart.root.isConnected && Math.abs(chart.width - figure.clientWidth + 2) > 1) chart.setSize({ width: figure.clientWidth - 2, height: 210 });
  }).observe(figure);
  return chart;
}
