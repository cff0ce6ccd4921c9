// The page: which view is shown, which runs, keys; charts.js and samples.js draw.
import { loadRuns, follow, short, bytes, make } from "/data.js";
import { showCharts, colourOf } from "/charts.js";
import * as samples from "/samples.js";

const $ = (id) => document.getElementById(id);
const kViews = ["charts", "samples", "settings"];
let runs = [], view = "charts", samplesShown = false;
const hidden = new Set();

const shownRuns = () => runs.filter((run) => !hidden.has(run.id));

function show(name) {
  view = name;
  for (const other of kViews) {
    $("view-" + other).hidden = other !== name;
    $("tab-" + other).setAttribute("aria-selected", String(other === name));
  }
  history.replaceState(null, "", "#" + name);
  if (name === "samples" && !samplesShown) (samplesShown = true), samples.restart().catch(say);
  draw();
}

const say = (text) => ($("status").textContent = String(text.message ?? text));

function draw() {
  if (view === "charts") {
    drawCards();
    showCharts(shownRuns(), Number($("smoothing").value), $("chart-filter").value);
  }
  if (view === "settings") drawSettings();
}

function timeText(seconds) {
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 60) return Math.round(seconds) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min";
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

// What the last steps took, for the time that is left.
function left(run) {
  const parts = ["rollout_ms", "reward_ms", "train_ms", "publish_ms"].map((name) => run.series.get(name)?.values.slice(-10) ?? []);
  const count = Math.max(...parts.map((part) => part.length));
  const sum = parts.flat().reduce((a, b) => a + b, 0);
  const rest = run.iterations - run.step();
  return count > 0 && rest > 0 ? timeText(((sum / count) * rest) / 1000) + " left" : "";
}

function drawCards() {
  const run = shownRuns()[0];
  const cards = [];
  const add = (name, value) => value !== undefined && value !== "" && cards.push(make("div", { className: "card" }, make("span", {}, name), make("b", {}, value)));
  if (run) {
    add(run.name, run.iterations ? `${run.step()} / ${run.iterations}` : String(run.step()));
    add("time", left(run));
    add("reward", short(run.last("reward")));
    add("loss", short(run.last("loss")));
    add("entropy", short(run.last("entropy")));
    add("response", run.last("response_len") === undefined ? "" : Math.round(run.last("response_len")) + " tokens");
    add("log-prob difference", run.unknown.has("logprob_diff_max") ? "not measured" : short(run.last("logprob_diff_max")));
    add("speed", run.last("tokens_per_s") === undefined ? "" : short(Math.round(run.last("tokens_per_s"))) + " tok/s");
    add("memory", bytes(run.last("memory_bytes")));
  }
  $("cards").replaceChildren(...cards);
}

function drawSettings() {
  const text = (value) => (value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value));
  const shown = shownRuns(), only = $("only-different").checked;
  const keys = [...new Set(shown.flatMap((run) => Object.keys(run.arguments ?? {})))];
  const head = make("tr", {}, make("th", {}, "setting"), ...shown.map((run) => make("th", {}, run.name)));
  const rows = [make("tr", {}, make("td", {}, "directory"), ...shown.map((run) => make("td", {}, run.path)))];
  for (const key of keys) {
    const values = shown.map((run) => text(run.arguments?.[key]));
    const differs = values.some((value) => value !== values[0]);
    if (only && !differs) continue;
    rows.push(make("tr", { className: differs ? "differs" : "" }, make("td", {}, key), ...values.map((value) => make("td", {}, value))));
  }
  $("settings").replaceChildren(head, ...rows);
}

function drawRuns() {
  $("runs").replaceChildren(...runs.map((run) => {
    const box = make("input", { type: "checkbox", checked: !hidden.has(run.id) });
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(run.id);
      else hidden.add(run.id);
      draw();
    });
    const swatch = make("span", { className: "swatch" });
    swatch.style.background = colourOf(run);
    return make("label", { title: run.path }, box, swatch, run.name);
  }));
}

async function onState(state) {
  let changed = false;
  for (const now of state.runs) {
    const run = runs[now.id];
    if (now.epoch !== run.readEpoch || (run.kind === null && now.metrics > 0)) {
      const fresh = (await loadRuns())[now.id];
      for (const key of ["kind", "iterations", "arguments"]) run[key] = fresh[key];
    }
    changed = (await run.refresh()) || changed;
  }
  if (changed) draw();
  await samples.grown(state);
}

const kThemes = ["", "dark", "light"];
function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("theme", name);
  draw();
}
const nextTheme = () => setTheme(kThemes[(kThemes.indexOf(document.documentElement.dataset.theme ?? "") + 1) % 3]);

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /INPUT|SELECT|TEXTAREA/.test(event.target.tagName) && event.target.type !== "checkbox" && event.target.type !== "range";
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const act = {
    1: () => show("charts"), 2: () => show("samples"), 3: () => show("settings"),
    j: () => view === "samples" && samples.selectNext(1), k: () => view === "samples" && samples.selectNext(-1),
    c: () => view === "samples" && samples.nextColouring(), t: nextTheme,
    "?": () => $("help").showModal(),
    "/": () => $(view === "samples" ? "sample-step" : "chart-filter").focus(),
  }[event.key];
  if (!act) return;
  act();
  event.preventDefault();
}

async function begin() {
  setTheme(localStorage.getItem("theme") ?? "");
  for (const name of kViews) $("tab-" + name).addEventListener("click", () => show(name));
  $("smoothing").addEventListener("input", draw);
  $("chart-filter").addEventListener("input", draw);
  $("only-different").addEventListener("change", draw);
  $("theme").addEventListener("click", nextTheme);
  $("help-button").addEventListener("click", () => $("help").showModal());
  addEventListener("keydown", onKey);
  runs = await loadRuns();
  samples.begin(runs);
  drawRuns();
  await Promise.all(runs.map((run) => run.refresh()));
  const wanted = location.hash.slice(1);
  show(kViews.includes(wanted) ? wanted : "charts");
  document.body.dataset.ready = "yes";
  await follow(onState, say);
}

begin().catch((error) => {
  say(error);
  document.body.dataset.ready = "no";
});
