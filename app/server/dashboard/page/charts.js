// Charts on canvases: a line per run and series, bands, stacks, a reading under the pointer.
import { chartsFor } from "/catalogue.js";
import { short, bytes, make } from "/data.js";

// Okabe and Ito's colours; runs beyond them repeat with other dashes.
export const kColours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A7A00"];
const kDashes = [[], [6, 3], [2, 2], [9, 3, 2, 3]];
export const colourOf = (run) => kColours[run.id % kColours.length];
const dashOf = (run) => kDashes[Math.floor(run.id / kColours.length) % kDashes.length];
const kLeft = 52, kRight = 14, kTop = 8, kBottom = 20;

function smoothed(values, share) {
  if (share === 0) return values;
  let mean = values[0];
  return values.map((value) => (mean = share * mean + (1 - share) * value));
}

const textOf = (chart, value) => (chart.unit === "bytes" ? bytes(value) : chart.unit === "ms" ? short(value) + " ms" : short(value));

// 1, 2 or 5 times a power of ten, about `count` of them between low and high.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const first = Math.ceil(low / step), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => (first + i) * step);
}

// What tells series of one chart apart: their words without those that all end with.
function labelsOf(series) {
  const words = series.map((name) => name.split("/").pop().split("_"));
  const common = () => words.every((name) => name.length > 0 && name[name.length - 1] === words[0][words[0].length - 1]);
  if (series.length < 2) return series;
  while (common()) for (const name of words) name.pop();
  const labels = words.map((name) => name.join("_")), stem = labels[0] + "_";
  const extended = labels.some((label) => label.startsWith(stem)); // x and x_max: "" and "max"
  return labels.map((label, i) => (!extended ? label : i === 0 ? "" : label.replace(stem, "")));
}

const kMostReadings = 12;

class Chart {
  constructor(chart) {
    this.chart = chart;
    this.labels = labelsOf(chart.series);
    this.reading = make("span", { className: "reading" });
    this.note = make("p", { className: "note" });
    this.canvas = make("canvas", { role: "img" });
    this.figure = make("figure", {}, make("figcaption", {}, chart.title, this.reading), this.canvas, this.note);
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.at = null;
  }

  // Lines to draw: {run, name, place, steps, values, low, high, raw, colour, dash, alpha}. Runs differ in colour; the series
  // of a chart do where there is one run, else in dashes and strength. Of several runs nothing is stacked.
  collect(runs, smoothing) {
    const lines = [], several = this.chart.series.length > 1 && runs.length === 1;
    this.stacked = this.chart.stacked && runs.length === 1;
    for (const run of runs) {
      let below = null;
      this.chart.series.forEach((name, place) => {
        const series = run.series.get(name);
        if (!series) return;
        let values = smoothed(series.values, smoothing);
        let low = null, high = null;
        if (this.stacked) {
          low = values.map((_, i) => below?.[i] ?? 0);
          values = values.map((value, i) => value + low[i]);
          high = below = values;
        } else if (place === 0 && this.chart.band.length > 0 && runs.length <= 3) {
          const [first, second] = this.chart.band.map((band) => run.series.get(band)?.values ?? []);
          if (first.length === series.values.length) {
            low = second ? first : series.values.map((value, i) => value - first[i]);
            high = second ?? series.values.map((value, i) => value + first[i]);
          }
        }
        const colour = several ? kColours[place % kColours.length] : colourOf(run);
        const dash = several || place > 0 ? kDashes[place % kDashes.length] : dashOf(run);
        lines.push({ run, name, place, steps: series.steps, values, low, high, raw: series.values, colour, dash, alpha: !several && place > 0 ? 0.6 : 1 });
      });
    }
    return lines;
  }

  // Which of the runs have no number here, or no more, and why.
  explain(runs) {
    const without = this.chart.absent ? runs.filter((run) => run.unknown.has(this.chart.first)) : [];
    const numbers = (run) => run.series.get(this.chart.first)?.steps;
    this.canvas.hidden = without.length === runs.length && !runs.some(numbers);
    this.note.hidden = without.length === 0;
    const texts = without.map((run) => (runs.length > 1 ? run.name + ": not" : "Not") + " measured" + (numbers(run) ? " after step " + numbers(run).at(-1) : "") + ".");
    this.note.textContent = [...texts, this.chart.absent].join(" ");
  }

  draw(runs, smoothing) {
    this.explain(runs);
    const box = this.canvas.getBoundingClientRect();
    if (box.width === 0) return;
    const scale = devicePixelRatio || 1;
    this.canvas.width = box.width * scale;
    this.canvas.height = box.height * scale;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    this.lines = this.collect(runs, smoothing);
    let left = Infinity, right = -Infinity, low = Infinity, high = -Infinity;
    for (const line of this.lines) {
      left = Math.min(left, line.steps[0]);
      right = Math.max(right, line.steps[line.steps.length - 1]);
      for (const values of [line.values, line.low ?? [], line.high ?? []])
        for (const value of values)
          if (Number.isFinite(value)) (low = Math.min(low, value)), (high = Math.max(high, value));
    }
    if (!(left <= right) || !(low <= high)) return;
    if (left === right) (left -= 1), (right += 1);
    const size = Math.max(Math.abs(low), Math.abs(high)), flat = high - low <= size * 1e-9; // equal but for roundings
    const pad = flat ? size * 0.1 || 1 : (high - low) * 0.06;
    if (!(low >= 0 && low - pad < 0)) low -= pad;
    else low = Math.max(0, low - pad);
    high += pad;
    const x = (step) => kLeft + ((step - left) / (right - left)) * (box.width - kLeft - kRight);
    const y = (value) => kTop + ((high - value) / (high - low)) * (box.height - kTop - kBottom);
    this.x = x;

    context.font = "11px system-ui, sans-serif";
    context.fillStyle = style.getPropertyValue("--soft");
    context.strokeStyle = style.getPropertyValue("--grid");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of ticks(low, high, 5)) {
      context.beginPath();
      context.moveTo(kLeft, y(value));
      context.lineTo(box.width - kRight, y(value));
      context.stroke();
      context.fillText(this.chart.unit === "bytes" ? bytes(value) : short(Number(value.toPrecision(6))), kLeft - 5, y(value));
    }
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    for (const step of ticks(left, right, 6)) if (Number.isInteger(step)) context.fillText(String(step), x(step), box.height - 5);

    for (const line of this.lines) this.drawLine(context, line, x, y);
    if (this.at !== null) {
      context.strokeStyle = style.getPropertyValue("--soft");
      context.beginPath();
      context.moveTo(x(this.at), kTop);
      context.lineTo(x(this.at), box.height - kBottom);
      context.stroke();
    }
    this.read();
  }

  drawLine(context, line, x, y) {
    const { colour, dash, alpha } = line;
    if (line.low) {
      context.beginPath();
      line.steps.forEach((step, i) => context.lineTo(x(step), y(line.high[i])));
      for (let i = line.steps.length - 1; i >= 0; --i) context.lineTo(x(line.steps[i]), y(line.low[i]));
      context.closePath();
      context.globalAlpha = this.stacked ? 0.45 : 0.15;
      context.fillStyle = colour;
      context.fill();
      context.globalAlpha = 1;
    }
    context.strokeStyle = colour;
    context.lineWidth = 1.6;
    context.setLineDash(dash);
    context.globalAlpha = alpha;
    context.beginPath();
    // Of many points the smallest and largest under a pixel are enough.
    const perPixel = line.steps.length / Math.max(1, context.canvas.width);
    if (perPixel > 4) {
      const bin = Math.ceil(perPixel);
      for (let i = 0; i < line.steps.length; i += bin) {
        const part = line.values.slice(i, i + bin);
        context.lineTo(x(line.steps[i]), y(Math.min(...part)));
        context.lineTo(x(line.steps[i]), y(Math.max(...part)));
      }
    } else {
      line.steps.forEach((step, i) => context.lineTo(x(step), y(line.values[i])));
    }
    context.stroke();
    context.setLineDash([]);
    if (line.steps.length < 3)
      line.steps.forEach((step, i) => {
        context.fillStyle = colour;
        context.fillRect(x(step) - 2.5, y(line.values[i]) - 2.5, 5, 5);
      });
    context.globalAlpha = 1;
  }

  point(offset) {
    if (!this.x || !this.lines?.length) return;
    this.at = null;
    let best = Infinity;
    if (offset !== null)
      for (const step of this.lines[0].steps) {
        const distance = Math.abs(this.x(step) - offset);
        if (distance < best) (best = distance), (this.at = step);
      }
    redraw();
  }

  // The values at the pointer, or the last ones, behind the line that each belongs to; also what a screen reader says.
  read() {
    const seen = this.lines.slice(0, kMostReadings), runs = new Set(this.lines.map((line) => line.run));
    const texts = seen.map((line) => {
      let place = line.steps.length - 1;
      if (this.at !== null) while (place > 0 && line.steps[place] > this.at) --place;
      return ((this.chart.series.length > 1 ? this.labels[line.place] + " " : "") + textOf(this.chart, line.raw[place])).trim();
    });
    const readings = seen.map((line, i) => {
      if (this.lines.length === 1) return make("span", {}, texts[i]);
      const mark = make("i", { className: line.dash.length > 0 ? "dashed" : "" });
      mark.style.borderTopColor = line.colour;
      mark.style.opacity = line.alpha;
      return make("span", { title: line.run.name }, mark, texts[i]);
    });
    if (this.lines.length > seen.length) readings.push(make("span", {}, `and ${this.lines.length - seen.length} more`));
    if (this.at !== null) readings.unshift(make("span", {}, `step ${this.at}:`));
    this.reading.classList.toggle("wide", this.lines.length > 2);
    this.reading.replaceChildren(...readings);
    const spoken = texts.map((text, i) => (runs.size > 1 ? seen[i].run.name + " " : "") + text).join(", ");
    this.canvas.setAttribute("aria-label", `${this.chart.title}: ${spoken}`);
  }
}

let charts = [], shownKey = "", current = { runs: [], smoothing: 0 };
let asked = false;
// Once a frame, however often it is asked for.
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    for (const chart of charts) chart.draw(current.runs, current.smoothing);
  });
}
addEventListener("resize", redraw);

export function showCharts(runs, smoothing, filter) {
  current = { runs, smoothing };
  const names = new Set(runs.flatMap((run) => [...run.series.keys()]));
  const unknown = new Set(runs.flatMap((run) => [...run.unknown]));
  const wanted = chartsFor(names, unknown).filter((chart) => (chart.title + " " + chart.series.join(" ")).toLowerCase().includes(filter.toLowerCase()));
  const key = JSON.stringify(wanted);
  if (key !== shownKey) {
    shownKey = key;
    charts = wanted.map((chart) => new Chart(chart));
    const box = document.getElementById("charts");
    box.replaceChildren();
    let section = "";
    for (const chart of charts) {
      if (chart.chart.section !== section) box.append(make("h2", {}, (section = chart.chart.section)));
      box.append(chart.figure);
    }
    if (charts.length === 0) box.append(make("p", { className: "empty" }, names.size === 0 ? "No metrics yet." : "No chart has this name."));
  }
  redraw();
}
