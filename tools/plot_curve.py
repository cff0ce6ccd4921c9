#!/usr/bin/env python3
"""Draws one figure of runs' metrics.jsonl: a value per rollout, smoothed, one line per run.

    plot_curve.py RUN_DIR... --out FILE.png [--key reward] [--title TEXT] [--window 5]
"""
import argparse
import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", required=True)
    parser.add_argument("--key", default="reward")
    parser.add_argument("--title", default="")
    parser.add_argument("--window", type=int, default=5)
    options = parser.parse_args()
    figure, axes = plt.subplots(figsize=(7, 3.5), dpi=120)
    for run in options.runs:
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        values = [row[options.key] for row in rows if options.key in row]
        smooth = [sum(values[max(0, i - options.window + 1) : i + 1]) / min(i + 1, options.window) for i in range(len(values))]
        (line,) = axes.plot(range(1, len(smooth) + 1), smooth, label=run.name)
        axes.plot(range(1, len(values) + 1), values, color=line.get_color(), alpha=0.25, linewidth=0.8)
    axes.set_xlabel("rollout")
    axes.set_ylabel(options.key)
    axes.set_title(options.title, fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(options.out)


if __name__ == "__main__":
    main()
