"""How smooth the page of a run with 100,000 samples is: bench/dashboard_frames.py LOCKSTEP --machine JSON

A run directory is written (no model runs), `lockstep dashboard` shows it, and a headless Chromium goes through its sample browser: the list
scrolled evenly, by jumps over its whole length and by the keys, and narrowed down by each filter. A frame time is what lies between two frames that the
browser draws (16.7 ms where nothing is late); the time of a filter or a jump ends when the new rows are there. Needs playwright, pyarrow, Chromium.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile

from record import ROOT, write_record

STEPS, GROUPS, SAMPLES = 250, 100, 4
CHROMIUM = next((path for path in map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")) if path), None)


def write_run(directory, text, steps=STEPS, groups=GROUPS, samples=SAMPLES):
    """A run directory with many samples, all of whose texts are `text`."""
    import pyarrow

    (directory / "samples").mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps({"kind": "rl", "iterations": steps, "arguments": {"--lr": text, "--rm-api-key": "***"}}) + "\n")
    (directory / "metrics.jsonl").write_text("".join(json.dumps({"step": step, "reward": step / steps, text: 1.0}) + "\n" for step in range(1, steps + 1)))
    codec, offset = pyarrow.Codec("zstd"), 0
    with open(directory / "samples" / "000001.jsonl.zst", "wb") as piece, open(directory / "samples" / "index.jsonl", "w") as index:
        for step in range(1, steps + 1):
            for group in range(groups):
                rewards = [float((step + group + i) % 2) if group % 3 else 0.0 for i in range(samples)]
                lines = "".join(json.dumps({
                    "step": step, "group": group, "index": i, "prompt": text, "label": text, "response": text, "reward": rewards[i],
                    "rewards": {text: rewards[i]}, "truncated": False, "prompt_tokens": [1], "tokens": [5, 6], "pieces": [text, " end"],
                    "version": 1, "advantage": 0.5, "sampled_logprobs": [-0.5, -3.0], "policy_logprobs": [-0.5, -3.0]}) + "\n" for i in range(samples))
                frame = codec.compress(lines.encode(), asbytes=True)
                piece.write(frame)
                index.write(json.dumps({"step": step, "group": group, "piece": 1, "offset": offset, "bytes": len(frame), "rewards": rewards,
                                        "lengths": [2] * samples, "truncated": [int(group % 10 == 0)] * samples}) + "\n")
                offset += len(frame)


# Frame times while MOVE happens once a frame. (The page lets no text become code, so it is put in here.)
FRAMES = """async () => {
    const list = document.getElementById('list'), act = (i) => { MOVE }, times = [];
    const frame = () => new Promise(requestAnimationFrame);
    let last = await frame();
    for (let i = 0; i < 300; ++i) {
        act(i);
        const now = await frame();
        times.push(now - last);
        last = now;
    }
    return times; }"""
# Milliseconds from ACT until the rows are WANTED, and frame times meanwhile.
UNTIL_ROWS = """async () => {
    const began = performance.now(), times = [], there = (rows) => WANTED;
    let last = await new Promise(requestAnimationFrame);
    ACT;
    do {
        const now = await new Promise(requestAnimationFrame);
        times.push(now - last);
        last = now;
    } while (!there([...document.querySelectorAll('.row')]) && performance.now() - began < 60000);
    return {ms: performance.now() - began, frames: times}; }"""


def summary(times):
    times = sorted(times)
    return {"frames": len(times), "median_ms": round(statistics.median(times), 2), "p95_ms": round(times[int(len(times) * 0.95)], 2), "max_ms": round(times[-1], 2)}


def measure(page):
    """Of an open page whose sample browser is shown."""
    scroll = {"even": "list.scrollTop = i * 90", "jumps": "list.scrollTop = (i * 0.6180339887 % 1) * list.scrollHeight",
              "keys": "if (i % 3 === 0) dispatchEvent(new KeyboardEvent('keydown', {key: 'j', bubbles: true}))"}
    measured = {"scroll_" + name: summary(page.evaluate(FRAMES.replace("MOVE", move))) for name, move in scroll.items()}
    chosen = "const box = document.getElementById('sample-{}'); box.value = '{}'; box.dispatchEvent(new Event('change'))"
    filters = {"mixed": ("show", "mixed", "rows.length > 10 && rows.every((row) => /\\u25cf.*\\u25cb|\\u25cb.*\\u25cf/.test(row.innerText))"),
               "truncated": ("show", "truncated", "rows.length > 10 && rows.every((row) => row.innerText.includes('\\u2702'))"),
               "all": ("show", "all", "rows.length > 10 && rows.some((row) => !row.innerText.includes('\\u2702'))"),
               "oldest": ("order", "oldest", "rows.length > 10 && rows[0].innerText.startsWith('step 1 ')"),
               "step": ("step", "125", "rows.length > 10 && rows.every((row) => row.innerText.startsWith('step 125 '))")}
    for name, (control, value, wanted) in filters.items():
        taken = page.evaluate(UNTIL_ROWS.replace("ACT", chosen.format(control, value)).replace("WANTED", wanted))
        measured["filter_" + name] = {"until_shown_ms": round(taken["ms"], 1), "longest_frame_ms": round(max(taken["frames"]), 1)}
    return measured


def measured_once(lockstep, run):
    from playwright.sync_api import sync_playwright

    with subprocess.Popen([lockstep, "dashboard", run, "--port", "0"], stdout=subprocess.PIPE, text=True) as server, sync_playwright() as machinery:
        browser = machinery.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(server.stdout.readline().split()[-1] + "#samples")
        page.wait_for_selector(".answer", timeout=60_000)
        taken = measure(page)
        version = browser.version
        browser.close()
        server.terminate()
    return taken, version


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=pathlib.Path)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--machine", required=True, help="JSON of a `lockstep bench` record's machine: {cpu, isa, threads}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        write_run(run, "What is 12 + 30? The answer is 42.")
        taken = [measured_once(options.lockstep, run) for _ in range(options.times)]
    runs = [measured for measured, _ in taken]
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    medians = {part: {key: statistics.median(run[part][key] for run in runs) for key in runs[0][part]} for part in runs[0]}
    results = {"what": f"sample browser of {STEPS * GROUPS * SAMPLES} samples in {STEPS * GROUPS} groups, medians of {options.times} times",
               "browser": f"headless Chromium {taken[0][1]}, drawn by the processor", "load_average": round(os.getloadavg()[0], 2),
               "medians": medians, "runs": runs}
    print(json.dumps(medians, indent=1))
    print(write_record("dashboard-frames", f"bench/dashboard_frames.py LOCKSTEP --times {options.times}", json.loads(options.machine),
                       {"commit": commit.stdout.strip(), "results": results}))


if __name__ == "__main__":
    main()
