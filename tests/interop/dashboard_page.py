"""What tests of the dashboard share: runs to show, a page in a headless Chromium, and what its charts hold."""

import decimal
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))
from dashboard_frames import CHROMIUM

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="apt install chromium-headless-shell")


class Dashboard:
    def __init__(self, lockstep, *arguments):
        self.process = subprocess.Popen([lockstep.binary, "dashboard", *map(str, arguments), "--port", "0"], stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.terminate()
        assert self.process.wait(timeout=30) == 0


ADAPTER = ("--hf-checkpoint", ROOT / "models/arith", "--lora-rank", 8, "--target-modules", "all-linear")


def train(lockstep, save, rate, *more, rollouts=8, reward="number"):
    lockstep("train", *ADAPTER, "--prompt-data", ROOT / "models/arith/train.jsonl", "--input-key", "prompt",
             "--label-key", "label", "--rm-type", reward, "--rollout-batch-size", 8, "--n-samples-per-prompt", 8, "--rollout-max-response-len", 16,
             "--lr", rate, "--save", save, "--num-rollout", rollouts, "--use-kl-loss",
             "--eval-prompt-data", "held", str(ROOT / "models/arith/test.jsonl") + "@[0:32]", "--eval-interval", 4, *more)


@pytest.fixture(scope="module")
def runs(lockstep, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    train(lockstep, folder / "fast", "2e-3")
    train(lockstep, folder / "slow", "2e-4")
    return folder


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as machinery:
        browser = machinery.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.problems = []
    page.on("console", lambda message: page.problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    yield page
    assert page.problems == []
    context.close()


def open_page(page, address, view="charts"):
    page.goto(address + ("&" if "#" in address else "#") + view if view != "charts" else address)
    page.wait_for_selector("body[data-ready]", timeout=60_000)
    assert page.locator("body").get_attribute("data-ready") == "yes", page.locator("#status").inner_text()


def leave(page):
    """Before its server ends, which the page would report."""
    page.goto("about:blank")


def picture(page, tmp_path, name):
    """Screenshots are looked at by people: pytest --basetemp says where they are."""
    page.screenshot(path=tmp_path / f"{name}.png")


RUN_COLOURS = ["#0072B2", "#D55E00"]  # of the first and the second run, and of the first and the second series of one


def figure(page, title):
    """The chart with this title."""
    found = page.locator("figure", has=page.locator(f"figcaption >> text={json.dumps(title)}"))
    assert found.count() == 1, (title, page.locator("figcaption").all_inner_texts())
    return found


def pixels(chart, colour):
    """How many pixels of a chart have about this colour: edges are smoothed, and lines lie on others."""
    return chart.locator("canvas").evaluate("""(canvas, colour) => {
        const wanted = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', {willReadFrequently: true});
        copy.drawImage(canvas, 0, 0);
        const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
        let count = 0;
        for (let at = 0; at < data.length; at += 4)
            count += data[at + 3] > 100 && wanted.every((value, i) => Math.abs(data[at + i] - value) < 60);
        return count; }""", colour)


def readings(chart):
    return chart.locator(".reading > span").all_inner_texts()


def numbers(run, key):
    """The values of a metric in a run's file."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line[key] for line in lines if "eval" not in line]


def shown(value):
    """A number of the file as the page writes it, to four digits; halves go up as in JavaScript."""
    digits = decimal.Context(prec=4, rounding=decimal.ROUND_HALF_UP).create_decimal(value)
    return f"{float(digits):.4g}" if abs(value) >= 1e-3 else "0" if value == 0 else f"{value:.2e}".replace("e-0", "e-")
