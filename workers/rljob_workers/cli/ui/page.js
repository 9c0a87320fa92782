// The whole page: three places by the address behind #. Data come from /api; texts go in as text, never as HTML.
"use strict";

const COLORS = ["#2f78d7", "#e08a1e", "#2a9d6f", "#b0489b", "#7a6bd1", "#c0504d", "#4f9ba8", "#8a8f2a"];
const REFRESH_MS = 3000;
// A token of this log-probability or less has the darkest colour.
const SURPRISING_NATS = 5;
const SVG = "http://www.w3.org/2000/svg";
const main = document.getElementById("main");
let timer = 0;
let shown = 0;

function element(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map(
    (child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return made;
}

async function get(path) {
  const answer = await fetch(path, { credentials: "same-origin" });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.problem || answer.statusText);
  return body;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(digits);
}

function share(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`;
}

function color(index) {
  return COLORS[((index % COLORS.length) + COLORS.length) % COLORS.length];
}

// A curve for each series over steps, with the values at the pointer in the legend.
function chart({ title, unit, series }) {
  const width = 420, height = 170, left = 54, right = 8, top = 8, bottom = 22;
  const names = Object.keys(series);
  const points = names.flatMap((name) => series[name]);
  const xs = points.map((point) => point[0]), ys = points.map((point) => point[1]);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = unit === "share" ? [0, Math.max(1, ...ys)] : [Math.min(0, ...ys), Math.max(...ys)];
  if (y0 === y1) y1 = y0 + 1;
  const x = (value) => left + (width - left - right) * (x1 === x0 ? 0.5 : (value - x0) / (x1 - x0));
  const y = (value) => height - bottom - (height - top - bottom) * ((value - y0) / (y1 - y0));
  const format = (value) => (unit === "share" ? share(value) : number(value));
  const svg = element("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  for (const value of [y0, (y0 + y1) / 2, y1]) {
    svg.append(element("svg:line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    svg.append(element("svg:text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
  svg.append(element("svg:text", { x: left, y: height - 6 }, x0));
  svg.append(element("svg:text", { x: width - right, y: height - 6, "text-anchor": "end" }, `step ${x1}`));
  names.forEach((name, index) => {
    const line = series[name].map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    svg.append(element("svg:polyline", { class: "curve", points: line, stroke: color(index) }));
    if (series[name].length < 40) {
      for (const [step, value] of series[name]) {
        svg.append(element("svg:circle", { cx: x(step), cy: y(value), r: 2, fill: color(index) }));
      }
    }
  });
  const legend = element("div", { class: "legend dim" });
  function tell(at) {
    legend.replaceChildren(...names.map((name, index) => {
      const near = series[name].reduce((best, point) =>
        (best === null || Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best), null);
      const mark = element("i");
      mark.style.background = color(index);
      return element("span", {}, mark, `${name} ${format(near[1])} at ${near[0]}`);
    }));
  }
  svg.addEventListener("mousemove", (event) => {
    const box = svg.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * width;
    tell(x0 + ((place - left) / (width - left - right)) * (x1 - x0));
  });
  svg.addEventListener("mouseleave", () => tell(x1));
  tell(x1);
  const heading = unit && unit !== "share" ? `${title} (${unit})` : title;
  return element("section", { class: "card" }, element("h2", {}, heading), svg, legend);
}

function runsTable(runs) {
  const head = ["run", "state", "step", "reward", "held-out", "changed"];
  const rows = runs.map((run) => element("tr", {},
    element("td", {}, element("a", { href: `#/run/${encodeURIComponent(run.name)}` }, run.name)),
    element("td", { class: run.state }, run.problem || run.state),
    element("td", { class: "number" }, `${number(run.step)} of ${number(run.max_steps)}`),
    element("td", { class: "number" }, number(run.reward)),
    element("td", { class: "number" }, share(run.held_out)),
    element("td", { class: "number dim" }, run.changed_at.replace("T", " ").replace("Z", " UTC"))));
  return element("table", {},
    element("thead", {}, element("tr", {}, ...head.map((name, index) =>
      element("th", { class: index > 1 ? "number" : null }, name)))),
    element("tbody", {}, ...rows));
}

async function showRuns() {
  const { runs, folder } = await get("/api/runs");
  const empty = element("p", { class: "dim" }, `No run yet below ${folder}. Start one: rljob run job.yaml`);
  return { place: folder, nodes: [element("h1", {}, "Runs"), runs.length ? runsTable(runs) : empty], again: true };
}

async function showRun(name) {
  const run = await get(`/api/runs/${encodeURIComponent(name)}`);
  const counts = Object.entries(run.trajectories).map(([what, count]) => `${what} ${number(count)}`).join(", ");
  const link = run.dumps.length
    ? element("a", { href: `#/run/${encodeURIComponent(name)}/trajectories` }, "Trajectories")
    : element("span", { class: "dim" }, "No dumps of trajectories (spec.observability.trajectoryDump)");
  const facts = element("section", { class: "card" },
    element("pre", { class: "why" }, run.why.join("\n")),
    counts ? element("p", { class: "dim" }, `trajectories: ${counts}`) : null,
    run.checkpoints.length ? element("p", { class: "dim" }, `newest checkpoint: step ${run.checkpoints.at(-1)}`) : null,
    link);
  const heading = element("h1", {}, run.name, " ", element("span", { class: run.state }, run.state),
    ` step ${number(run.step)} of ${number(run.max_steps)}`);
  const charts = run.charts.length
    ? element("div", { class: "charts" }, ...run.charts.map(chart))
    : element("p", { class: "dim" }, "No step yet.");
  return { place: name, nodes: [heading, facts, element("h2", {}, "Curves"), charts], again: run.state === "running" };
}

const FILTERS = [
  ["kind", "kind", ["training", "evaluation"]],
  ["reward", "reward: 1, >0.5, 0.2..0.8", null],
  ["reason", "reason of the verdict", null],
  ["version", "weight version", null],
  ["prompt", "prompt id", null],
  ["truncated", "cut by length", ["", "true"]],
];

function filterForm(name, query) {
  const form = element("form", {}, ...FILTERS.map(([key, label, choices]) => {
    const input = choices
      ? element("select", { name: key }, ...choices.map((choice) =>
        element("option", { value: choice, selected: query.get(key) === choice }, choice || "all")))
      : element("input", { name: key, value: query.get(key) || "", autocomplete: "off" });
    return element("label", {}, label, input);
  }), element("button", {}, "Show"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const chosen = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    location.hash = `#/run/${encodeURIComponent(name)}/trajectories?${chosen}`;
  });
  return form;
}

// Which weight version sampled which part of the tokens, by length.
function versionStrip(runs) {
  const strip = element("div", { class: "strip", title: runs.map(([version, count]) =>
    `version ${version}: ${count} tokens`).join(", ") });
  for (const [version, count] of runs) {
    const piece = element("i");
    piece.style.flex = String(count);
    piece.style.background = color(version);
    strip.append(piece);
  }
  return strip;
}

// Tokens by themselves: the darker the less probable each was when it was sampled, underlined by weight version.
function separateTokens(tokens) {
  return tokens.map(([text, logprob, version]) => {
    if (logprob === null) return element("span", {}, text);
    const title = `${share(Math.exp(logprob))} (log-probability ${number(logprob)}), version ${version}`;
    const token = element("span", { class: "token", title }, text);
    const unlikely = Math.min(1, -logprob / SURPRISING_NATS);
    token.style.background = `color-mix(in srgb, var(--unlikely) ${Math.round(100 * unlikely)}%, transparent)`;
    token.style.borderBottomColor = color(version);
    return token;
  });
}

function trajectory(row) {
  const versions = row.head_version === row.tail_version
    ? `version ${row.head_version}` : `versions ${row.head_version} to ${row.tail_version}`;
  const fate = row.drop_reason ? `dropped: ${row.drop_reason}`
    : [row.state, row.step === null ? "" : `in step ${row.step}`, row.age ? `at age ${row.age}` : ""].join(" ").trim();
  const facts = [`reward ${number(row.reward)}`, row.reason, versions, fate,
    row.advantage === null ? "" : `advantage ${number(row.advantage)}`,
    row.truncated ? "cut by length" : row.stop_reason].filter(Boolean).join(" · ");
  const names = { prompt: "prompt", gen: "sampled" };
  const parts = row.parts.map((part) => element("div", {},
    element("div", { class: "dim" }, `${names[part.role] || "context"}, ${part.tokens} tokens`),
    element("div", { class: `part ${part.role}` }, ...(part.by_token.length ? separateTokens(part.by_token) : [part.text])),
    part.characters_left_out
      ? element("div", { class: "dim" }, `${number(part.characters_left_out)} more characters`) : null));
  const turns = (row.turns || []).map((turn, index) => element("div", { class: "dim" },
    `turn ${index + 1}: reward ${number(turn.raw_reward)}, ${turn.reason}, ${turn.answer_len} tokens, ` +
    `versions ${turn.version_start} to ${turn.version_end}`));
  return element("section", { class: "card trajectory" },
    element("div", {}, element("b", {}, row.query_id), ` group ${row.group_id}, sample ${row.sample_idx}`),
    element("div", { class: "dim" }, facts), versionStrip(row.version_rle), ...parts, ...turns);
}

async function showTrajectories(name, query) {
  const form = filterForm(name, query);
  const base = `#/run/${encodeURIComponent(name)}`;
  const back = element("p", {}, element("a", { href: base }, "Back to the run"));
  const heading = element("h1", {}, `Trajectories of ${name}`);
  try {
    const found = await get(`/api/runs/${encodeURIComponent(name)}/trajectories?${query}`);
    const next = new URLSearchParams(query);
    next.set("offset", found.next);
    const more = found.next === null ? null
      : element("p", {}, element("a", { href: `${base}/trajectories?${next}` }, "Older ones"));
    const none = found.rows.length ? null : element("p", { class: "dim" }, "No trajectory matches.");
    const unread = found.unreadable
      ? element("p", { class: "dim" }, `${found.unreadable} lines could not be read and are left out`) : null;
    return { place: name, nodes: [heading, back, form, none, unread, ...found.rows.map(trajectory), more] };
  } catch (error) {
    return { place: name, nodes: [heading, back, form, element("p", { class: "problem" }, error.message)] };
  }
}

function place() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  const parts = path.split("/").map(decodeURIComponent);
  if (parts[1] === "run" && parts[3] === "trajectories") {
    return () => showTrajectories(parts[2], new URLSearchParams(query));
  }
  return parts[1] === "run" ? () => showRun(parts[2]) : showRuns;
}

async function show() {
  clearTimeout(timer);
  const mine = ++shown;
  let view;
  try {
    view = await place()();
  } catch (error) {
    view = { place: "", nodes: [element("p", { class: "problem" }, error.message)], again: true };
  }
  // Another place was gone to while this one was loading.
  if (mine !== shown) return;
  document.getElementById("place").textContent = view.place;
  main.replaceChildren(...view.nodes.filter(Boolean));
  if (view.again) timer = setTimeout(show, REFRESH_MS);
}

window.addEventListener("hashchange", show);
show();
