// What the server knows of the runs, kept up to date by its events. Text of runs is data: nothing here makes markup.

// The token comes behind the address's #, which no server sees and no log keeps; it stays for this tab.
const fragment = new URLSearchParams(location.hash.slice(1));
if (fragment.get("token")) {
  sessionStorage.setItem("token", fragment.get("token"));
  fragment.delete("token");
  history.replaceState(null, "", fragment.size ? "#" + fragment : location.pathname);
}
const token = sessionStorage.getItem("token");

function ask(path, options = {}) {
  const headers = token ? { Authorization: "Bearer " + token } : {};
  return fetch(path, { ...options, headers, cache: "no-store" });
}

export async function askJson(path, signal) {
  const answer = await ask(path, { signal });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? "the server answered " + answer.status);
  return body;
}

export class Run {
  constructor(summary) {
    Object.assign(this, summary);
    this.series = new Map(); // name -> {steps: [], values: []}
    this.unknown = new Set(); // names whose last value was null; a chart may say why
    this.read = 0;
    this.readEpoch = summary.epoch;
  }

  // Keys of a line: numbers become series, those of an evaluation under eval/SET/.
  add(line) {
    const prefix = typeof line.eval === "string" ? "eval/" + line.eval + "/" : "";
    for (const [key, value] of Object.entries(line)) {
      const name = prefix + key;
      if (value === null) this.unknown.add(name);
      if (typeof value !== "number" || key === "step") continue;
      this.unknown.delete(name);
      let series = this.series.get(name);
      if (!series) this.series.set(name, (series = { steps: [], values: [] }));
      series.steps.push(line.step);
      series.values.push(value);
    }
  }

  async refresh() {
    let changed = false;
    for (;;) {
      const part = await askJson(`/api/runs/${this.id}/metrics?from=${this.read}`);
      if (part.epoch !== this.readEpoch) {
        this.series.clear();
        this.unknown.clear();
        this.read = 0;
        this.readEpoch = part.epoch;
        changed = true;
        if (part.from !== 0) continue;
      }
      for (const line of part.lines) this.add(line);
      this.read += part.lines.length;
      changed ||= part.lines.length > 0;
      if (this.read >= part.total || part.lines.length === 0) return changed;
    }
  }

  last(name) {
    const series = this.series.get(name);
    return series ? series.values[series.values.length - 1] : undefined;
  }
  step() {
    let step = 0;
    for (const series of this.series.values()) step = Math.max(step, series.steps[series.steps.length - 1]);
    return step;
  }
}

export async function loadRuns() {
  const answer = await askJson("/api/runs");
  return answer.runs.map((summary) => new Run(summary));
}

// Calls onState({runs: [...]}) for each event and onStatus(text) when the connection comes and goes; for ever. Server-sent
// events by fetch, because EventSource cannot carry a token.
export async function follow(onState, onStatus) {
  for (;;) {
    try {
      const answer = await ask("/api/events");
      if (!answer.ok) throw new Error((await answer.json()).error);
      onStatus("live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        text += value;
        for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
          const event = text.slice(0, end);
          text = text.slice(end + 2);
          if (event.startsWith("data: ")) await onState(JSON.parse(event.slice(6)));
        }
      }
      onStatus("the server is gone");
    } catch (error) {
      onStatus(String(error.message ?? error));
    }
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

export function short(value) {
  if (value === undefined || value === null || Number.isNaN(value)) return "";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e4 && size < 1e6) return Math.round(value).toLocaleString("en-US");
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return Number.isInteger(value) ? String(value) : value.toPrecision(4).replace(/\.?0+$/, "");
}

export function bytes(value) {
  if (value === undefined) return "";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < units.length - 1) (value /= 1000), ++unit;
  return value.toPrecision(3) + " " + units[unit];
}

// An element with properties and children; strings are text.
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties))
    if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  element.append(...children);
  return element;
}
