// The sample browser: a list of groups that is drawn only where it is seen, and the answers of one group side by side.
import { askJson, short, make } from "/data.js";

const kRow = 30, kPage = 200, kMaxTokens = 3000;
const $ = (id) => document.getElementById(id);

let runs = [], pages = new Map(), total = 0, epoch = -1, selected = 0, asked = 0, open = null;

const filter = () => {
  const step = $("sample-step").value;
  return `show=${$("sample-show").value}&order=${$("sample-order").value}` + (step ? `&step=${step}` : "");
};
const runId = () => Number($("sample-run").value || 0);

// ---- the list

async function page(number) {
  if (pages.has(number)) return;
  pages.set(number, null); // on its way
  const mine = asked;
  const answer = await askJson(`/api/runs/${runId()}/groups?${filter()}&first=${number * kPage}&count=${kPage}`);
  if (mine !== asked) return;
  pages.set(number, answer.groups);
  if (answer.total !== total || answer.epoch !== epoch) {
    total = answer.total;
    epoch = answer.epoch;
  }
  drawList();
}

const groupAt = (place) => pages.get(Math.floor(place / kPage))?.[place % kPage];

// Filled: the largest reward of the group; empty: the smallest; half: between; question mark: unknown.
function dots(rewards) {
  const known = rewards.filter((reward) => reward !== null);
  const low = Math.min(...known), high = Math.max(...known);
  return rewards
    .slice(0, 16)
    .map((reward) => (reward === null ? "?" : low === high ? (reward > 0 ? "\u25cf" : "\u25cb") : reward === high ? "\u25cf" : reward === low ? "\u25cb" : "\u25d0"))
    .join("");
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function rowOf(place, group) {
  const known = group.rewards.filter((reward) => reward !== null);
  const row = make("div", { className: "row", role: "option", id: "row-" + place },
    make("span", { className: "place" }, `step ${group.step} \u00b7 ${group.group}`),
    make("span", { className: "mean" }, known.length ? short(mean(known)) : "unknown"),
    make("span", { className: "dots" }, dots(group.rewards)),
    make("span", { className: "len" }, `${Math.round(mean(group.lengths))} tok${group.truncated.includes(1) ? " \u2702" : ""}`));
  row.setAttribute("aria-selected", String(place === selected));
  row.style.top = place * kRow + "px";
  row.addEventListener("click", () => select(place));
  return row;
}

function drawList() {
  const list = $("list"), space = $("list-space");
  space.style.height = total * kRow + "px";
  const first = Math.max(0, Math.floor(list.scrollTop / kRow) - 5);
  const end = Math.min(total, first + Math.ceil(list.clientHeight / kRow) + 10);
  const rows = [];
  for (let place = first; place < end; ++place) {
    const group = groupAt(place);
    if (group) rows.push(rowOf(place, group));
    else page(Math.floor(place / kPage));
  }
  space.replaceChildren(...rows);
  list.setAttribute("aria-activedescendant", "row-" + selected);
  if (total === 0) $("group").replaceChildren(make("p", { className: "empty" }, runs[runId()]?.kind && runs[runId()].kind !== "rl" ? "Supervised runs have no samples." : "No samples."));
}

export async function select(place) {
  if (place < 0 || place >= total) return;
  selected = place;
  const list = $("list");
  if (place * kRow < list.scrollTop) list.scrollTop = place * kRow;
  if ((place + 1) * kRow > list.scrollTop + list.clientHeight) list.scrollTop = (place + 1) * kRow - list.clientHeight;
  await page(Math.floor(place / kPage));
  drawList();
  const group = groupAt(place);
  if (group) await openGroup(group);
}
export const selectNext = (by) => select(selected + by);

export async function restart() {
  ++asked;
  pages = new Map();
  selected = 0;
  $("list").scrollTop = 0;
  await page(0);
  await select(0);
}

// New groups: the list grows without moving what is being looked at, unless the top is.
export async function grown(state) {
  const mine = state.runs.find((run) => run.id === runId());
  if (!mine || $("view-samples").hidden) return;
  const atTop = selected === 0 && $("list").scrollTop === 0;
  const before = total;
  ++asked;
  pages = new Map();
  await page(0);
  if (atTop) return select(0);
  if ($("sample-order").value === "newest") {
    selected = Math.max(0, selected + total - before);
    $("list").scrollTop += (total - before) * kRow;
  }
  drawList();
}

// ---- a group

async function openGroup(group) {
  const answer = await askJson(`/api/runs/${runId()}/samples?step=${group.step}&group=${group.group}`);
  open = { group, samples: answer.samples };
  drawGroup();
}

// What colours a token: its class, from the token's numbers.
const share = (value) => "s" + Math.max(0, Math.min(9, Math.round(value * 9)));
const colourings = {
  logprob: { of: (sample, t) => sample.sampled_logprobs?.[t], name: (value) => "low " + share(-value / 5), legend: [["low s0", "0"], ["low s3", "-1.7"], ["low s6", "-3.3"], ["low s9", "-5"]] },
  ratio: { of: (sample, t) => ratio(sample, t), name: (value) => (value < 1 ? "low " : "high ") + share(Math.abs(Math.log2(value)) / 0.5), legend: [["low s9", "0.71"], ["low s4", "0.86"], ["s0", "1"], ["high s4", "1.17"], ["high s9", "1.41"]] },
  entropy: { of: (sample, t) => sample.entropy?.[t], name: (value) => "plenty " + share(value / 3), legend: [["plenty s0", "0"], ["plenty s3", "1"], ["plenty s6", "2"], ["plenty s9", "3"]] },
  kl: { of: (sample, t) => difference(sample.policy_logprobs?.[t], sample.ref_logprobs?.[t]), name: (value) => (value < 0 ? "low " : "high ") + share(Math.abs(value)), legend: [["low s9", "-1"], ["s0", "0"], ["high s9", "1"]] },
  version: { of: (sample, t) => sample.versions?.[t] ?? sample.version, name: (value) => "v" + (((value % 6) + 6) % 6), legend: versionLegend },
  none: { of: () => undefined, name: () => "", legend: [] },
};
const difference = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : undefined);
function ratio(sample, t) {
  const log = difference(sample.train_logprobs?.[t] ?? sample.policy_logprobs?.[t], sample.sampled_logprobs?.[t]);
  return log === undefined ? undefined : Math.exp(log);
}

// The versions that drew the open group, oldest first.
function versionLegend(samples) {
  const versions = new Set(samples.flatMap((sample) => sample.versions ?? (sample.version === undefined ? [] : [sample.version])));
  return [...versions].sort((a, b) => a - b).map((version) => [colourings.version.name(version), version < 0 ? "base" : "version " + version]);
}

function tokenSpans(sample, from, to, colouring) {
  const spans = document.createDocumentFragment();
  for (let t = from; t < to; ++t) {
    const value = colouring.of(sample, t);
    const span = make("span", { className: "token " + (typeof value === "number" ? colouring.name(value) : "") }, sample.pieces[t]);
    span.token = t;
    spans.append(span);
  }
  return spans;
}

function textOf(sample, colouring) {
  const text = make("pre", { tabIndex: 0 });
  text.setAttribute("aria-label", "answer " + sample.index);
  if (!sample.pieces) {
    text.append(sample.response);
    return text;
  }
  const shown = Math.min(kMaxTokens, sample.pieces.length);
  text.append(tokenSpans(sample, 0, shown, colouring));
  if (shown < sample.pieces.length) {
    const more = make("button", {}, `${sample.pieces.length - shown} more tokens`);
    more.addEventListener("click", () => more.replaceWith(tokenSpans(sample, shown, sample.pieces.length, colouring)));
    text.append(more);
  }
  text.sample = sample;
  return text;
}

function answerOf(sample, colouring) {
  const head = make("header", {}, make("b", {}, sample.reward === null ? "reward unknown" : "reward " + short(sample.reward)));
  for (const [name, value] of Object.entries(sample.rewards ?? {})) head.append(make("span", {}, `${name} ${value === null ? "unknown" : short(value)}`));
  if (sample.advantage !== undefined) head.append(make("span", {}, "advantage " + short(sample.advantage)));
  else if (sample.advantages) head.append(make("span", {}, "advantages " + short(Math.min(...sample.advantages)) + " to " + short(Math.max(...sample.advantages))));
  head.append(make("span", { className: "soft" }, `#${sample.index}, ${sample.tokens.length} tokens`));
  if (sample.version !== undefined) head.append(make("span", { className: "soft" }, sample.version < 0 ? "base" : "version " + sample.version));
  else if (sample.versions) head.append(make("span", { className: "soft" }, `versions ${Math.min(...sample.versions)} to ${Math.max(...sample.versions)}`));
  if (sample.truncated) head.append(make("span", { className: "marked" }, "truncated"));
  return make("article", { className: "answer" }, head, textOf(sample, colouring));
}

function drawGroup() {
  if (!open) return;
  const colouring = colourings[$("sample-colour").value];
  const first = open.samples[0];
  const label = first.label ? make("p", { className: "soft" }, "label: ", make("b", {}, first.label)) : "";
  const box = $("group");
  box.replaceChildren(
    make("h2", {}, `Step ${open.group.step}, prompt ${open.group.group}`),
    make("pre", { className: "prompt", tabIndex: 0 }, first.prompt ?? ""),
    label,
    make("div", { className: "answers" }, ...open.samples.map((sample) => answerOf(sample, colouring))));
  box.scrollTop = 0;
  const legend = typeof colouring.legend === "function" ? colouring.legend(open.samples) : colouring.legend;
  $("legend").replaceChildren(...legend.map(([name, text]) => make("i", { className: name }, text)));
}

function tell(text, span) {
  const sample = text.sample, t = span.token;
  const parts = [`token ${t}  id ${sample.tokens[t]}  ${JSON.stringify(sample.pieces[t])}`];
  const add = (name, value) => typeof value === "number" && parts.push(`${name} ${short(value)}`);
  add("log-prob", sample.sampled_logprobs?.[t]);
  add("policy", sample.policy_logprobs?.[t]);
  add("reference", sample.ref_logprobs?.[t]);
  add("step", sample.train_logprobs?.[t]);
  add("ratio", ratio(sample, t));
  add("entropy", sample.entropy?.[t]);
  add("advantage", sample.advantages?.[t] ?? sample.advantage);
  add("version", sample.versions?.[t] ?? sample.version);
  $("token-info").textContent = parts.join("   ");
}

function step(text, by) {
  const spans = [...text.querySelectorAll(".token")];
  const was = spans.findIndex((span) => span.classList.contains("here"));
  const next = spans[Math.max(0, Math.min(spans.length - 1, was + by))];
  if (!next) return;
  spans[was]?.classList.remove("here");
  next.classList.add("here");
  next.scrollIntoView({ block: "nearest" });
  tell(text, next);
}

export function nextColouring() {
  const choice = $("sample-colour");
  choice.selectedIndex = (choice.selectedIndex + 1) % choice.length;
  drawGroup();
}

export function begin(all) {
  runs = all;
  $("sample-run").replaceChildren(...all.map((run) => make("option", { value: String(run.id) }, run.name)));
  for (const id of ["sample-run", "sample-show", "sample-order", "sample-step"]) $(id).addEventListener("change", restart);
  $("sample-colour").addEventListener("change", drawGroup);
  $("list").addEventListener("scroll", () => requestAnimationFrame(drawList));
  $("list").addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[event.key];
    if (by) select(Math.max(0, Math.min(total - 1, selected + by))), event.preventDefault();
  });
  $("group").addEventListener("mouseover", (event) => {
    const span = event.target.closest(".token");
    if (span) tell(span.parentElement, span);
  });
  $("group").addEventListener("keydown", (event) => {
    const text = event.target.closest("pre");
    if (!text?.sample || (event.key !== "ArrowLeft" && event.key !== "ArrowRight")) return;
    step(text, event.key === "ArrowLeft" ? -1 : 1);
    event.preventDefault();
  });
}
