"""The dashboard in a headless Chromium: what it shows, that samples stay text, keys, and that many samples stay smooth."""

import decimal
import json
import pathlib
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))
from dashboard_frames import CHROMIUM, measure, write_run

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt install chromium-headless-shell")

SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"


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


def supervise(lockstep, command, save, row):
    """A run of `lockstep sft` or `lockstep dpo` on rows made of sums and their results."""
    sums = map(json.loads, (ROOT / "models/arith/train.jsonl").read_text().splitlines()[:256])
    data = save.parent / f"{save.name}.jsonl"
    data.write_text("".join(json.dumps({"prompt": sum["prompt"], **row(int(sum["label"]))}) + "\n" for sum in sums))
    lockstep(command, *ADAPTER, "--prompt-data", data, "--lr", "1e-3", "--save", save, "--global-batch-size", 32, "--num-epoch", 2,
             "--eval-prompt-data", "held", f"{data}@[0:32]", "--eval-interval", 4)


@pytest.fixture(scope="module")
def runs(lockstep, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    train(lockstep, folder / "fast", "2e-3")
    train(lockstep, folder / "slow", "2e-4")
    return folder


@pytest.fixture(scope="module")
def supervised(lockstep, tmp_path_factory):
    folder = tmp_path_factory.mktemp("supervised")
    supervise(lockstep, "sft", folder / "sft", lambda result: {"completion": f"#### {result}"})
    supervise(lockstep, "dpo", folder / "dpo", lambda result: {"chosen": f"#### {result}", "rejected": f"#### {result + 1}"})
    return folder


@pytest.fixture(scope="module")
def stale(lockstep, tmp_path_factory):
    """Runs whose samples are of older versions: one rollout ahead, the same with a check, and in slices of several versions."""
    folder = tmp_path_factory.mktemp("stale")
    train(lockstep, folder / "ahead", "2e-3", "--max-staleness", 1, reward="number:0.75,length:0.25")
    train(lockstep, folder / "checked", "2e-3", "--max-staleness", 1, "--true-on-policy-mode")
    train(lockstep, folder / "slices", "2e-3", "--partial-rollout", "--partial-rollout-tokens", 3, "--over-sampling-batch-size", 16)
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
    found = page.locator("figure", has=page.locator("figcaption", has_text=title)).filter(has=page.locator(f"figcaption >> text={json.dumps(title)}"))
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


def test_charts_of_two_runs(lockstep, runs, page, tmp_path):
    with Dashboard(lockstep, runs / "fast", runs / "slow") as dashboard:
        open_page(page, dashboard.address)
        titles = page.locator("figure").all_inner_texts()
        for title in ("Reward", "Evaluation: accuracy on held", "Response length", "Truncated responses", "Groups with equal rewards",
                      "Entropy", "KL to the reference", "Clipped tokens", "Gradient norm", "Time of a step by phase", "Tokens per second",
                      "Staleness: mean, largest"):
            assert any(text.startswith(title) for text in titles), (title, titles)
        last = json.loads((runs / "fast" / "metrics.jsonl").read_text().splitlines()[-2])
        assert page.locator("#cards").inner_text().startswith("fast")
        # What was drawn is not empty: the pixels of the reward's chart differ.
        assert page.evaluate("""() => { const c = document.querySelector('canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
                                        return new Set(d).size; }""") > 10
        picture(page, tmp_path, "charts-light")
        page.keyboard.press("t")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        picture(page, tmp_path, "charts-dark")
        page.locator("#runs input").nth(1).uncheck()
        page.fill("#chart-filter", "entropy")
        assert page.locator("figure").count() >= 1
        assert last["step"] == 8
        page.keyboard.press("Escape")
        page.keyboard.press("3")
        assert "--lr" in page.locator("#settings").inner_text()


def test_the_sample_browser(lockstep, runs, page, tmp_path):
    with Dashboard(lockstep, runs / "fast") as dashboard:
        open_page(page, dashboard.address, "samples")
        page.wait_for_selector(".answer")
        assert page.locator(".answer").count() == 8
        assert page.locator(".row[aria-selected=true]").inner_text().startswith("step 8")
        before = page.locator("#group h2").inner_text()
        page.keyboard.press("j")
        page.wait_for_function("text => document.querySelector('#group h2').innerText !== text", arg=before)
        for colour in ("ratio", "entropy", "kl", "version", "none", "logprob"):
            page.keyboard.press("c")
            assert page.locator("#sample-colour").input_value() == colour
        page.locator(".answer .token").first.hover()
        told = page.locator("#token-info").inner_text()
        for word in ("token 0", "log-prob", "reference", "ratio", "entropy", "version"):
            assert word in told, told
        page.locator(".answer pre").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert "token 1" in page.locator("#token-info").inner_text()
        picture(page, tmp_path, "samples-light")
        page.select_option("#sample-show", "mixed")
        page.wait_for_timeout(300)
        assert all(len(set(row.replace("?", ""))) >= 2 for row in page.locator(".row .dots").all_inner_texts())
        page.keyboard.press("Escape")
        page.keyboard.press("t")
        picture(page, tmp_path, "samples-dark")


def test_both_runs_are_compared_in_a_chart(lockstep, runs, page, tmp_path):
    with Dashboard(lockstep, runs / "fast", runs / "slow") as dashboard:
        open_page(page, dashboard.address)
        assert page.locator("#runs label").all_inner_texts() == ["fast", "slow"]
        swatches = page.locator("#runs .swatch").evaluate_all("all => all.map((box) => getComputedStyle(box).backgroundColor)")
        assert swatches == ["rgb(0, 114, 178)", "rgb(213, 94, 0)"]
        entropy = figure(page, "Entropy")
        assert all(pixels(entropy, colour) > 50 for colour in RUN_COLOURS)
        assert readings(entropy) == [shown(numbers(runs / run, "entropy")[-1]) for run in ("fast", "slow")]
        marks = entropy.locator(".reading i").evaluate_all("all => all.map((mark) => getComputedStyle(mark).borderTopColor)")
        assert marks == swatches  # the same colours as beside the runs' names
        assert entropy.locator(".reading > span").evaluate_all("all => all.map((span) => span.title)") == ["fast", "slow"]
        # Parts of a step: a line per run and phase, all of them named.
        phases = readings(figure(page, "Time of a step by phase"))
        assert [text.split()[0] for text in phases] == ["rollout", "reward", "train", "publish"] * 2
        spoken = figure(page, "Staleness: mean, largest").locator("canvas").get_attribute("aria-label")
        assert spoken == "Staleness: mean, largest: fast 0, fast max 0, slow 0, slow max 0"
        picture(page, tmp_path, "two-runs")
        page.locator("#runs input").nth(0).uncheck()
        page.wait_for_function("() => document.querySelectorAll('figure:first-of-type .reading > span').length === 1")
        assert pixels(entropy, RUN_COLOURS[0]) == 0 and pixels(entropy, RUN_COLOURS[1]) > 50
        assert page.locator("#cards").inner_text().startswith("slow")


def test_a_supervised_run_and_preferences(lockstep, supervised, page, tmp_path):
    with Dashboard(lockstep, supervised / "sft") as dashboard:
        open_page(page, dashboard.address)
        losses = numbers(supervised / "sft", "loss")
        assert readings(figure(page, "Loss")) == [shown(losses[-1])]
        for title in ("Evaluation: loss on held", "Evaluation: perplexity on held", "Evaluation: token accuracy on held", "Gradient norm",
                      "Learning rate", "Tokens per second", "Tokens of a step", "Memory: process, GPU", "Time of a step by phase"):
            assert pixels(figure(page, title), RUN_COLOURS[0]) > 20, title
        assert page.locator("figcaption", has_text="eval/").count() <= 1  # only what no chart names: its number of tokens
        assert page.locator("#cards").inner_text().split("\n")[:4] == ["sft", f"{len(losses)} / {len(losses)}", "loss", shown(losses[-1])]
        picture(page, tmp_path, "sft")
        page.keyboard.press("2")
        page.wait_for_function("() => document.querySelector('#group').innerText === 'Supervised runs have no samples.'")
        page.keyboard.press("3")
        assert "--num-epoch" in page.locator("#settings").inner_text()
        leave(page)
    with Dashboard(lockstep, supervised / "dpo", supervised / "sft") as dashboard:
        open_page(page, dashboard.address)
        for title, name in (("Rewards of the pair", "rewards"), ("Log-probs of the pair", "logps")):
            pair = figure(page, title)
            assert readings(pair) == [f"{part} {shown(numbers(supervised / 'dpo', f'{name}/{part}')[-1])}" for part in ("chosen", "rejected")]
            assert pixels(pair, RUN_COLOURS[0]) > 50 and pixels(pair, RUN_COLOURS[1]) == 0, "the second run has no pairs"
        for title in ("Margin of the pair", "Pairs in the right order", "Evaluation: margin of the pair on held",
                      "Evaluation: pairs in the right order on held", "Evaluation: rewards of the pair on held"):
            assert pixels(figure(page, title), RUN_COLOURS[0]) > 20, title
        assert all(pixels(figure(page, "Loss"), colour) > 50 for colour in RUN_COLOURS)
        picture(page, tmp_path, "dpo")
        page.locator("#runs input").nth(1).uncheck()
        page.wait_for_timeout(200)
        assert all(pixels(figure(page, "Rewards of the pair"), colour) > 50 for colour in RUN_COLOURS), "two series of one run"


def test_differences_memory_and_each_reward(lockstep, runs, stale, page, tmp_path):
    with Dashboard(lockstep, stale / "checked") as dashboard:
        open_page(page, dashboard.address)
        difference = figure(page, "Log-prob difference: mean, largest")
        assert readings(difference) == ["0", "max 0"]
        assert pixels(difference, RUN_COLOURS[0]) + pixels(difference, RUN_COLOURS[1]) > 50
        assert not difference.locator(".note").is_visible()
        leave(page)
    with Dashboard(lockstep, stale / "ahead") as dashboard:
        open_page(page, dashboard.address)
        # The runs write null where another forward pass would be needed, and the page says how to ask for it.
        assert numbers(stale / "ahead", "logprob_diff") == [0] + [None] * 7  # only the first rollout is of the version that is trained
        assert "log-prob difference\nnot measured" in page.locator("#cards").inner_text()
        difference = figure(page, "Log-prob difference: mean, largest")
        told = difference.locator(".note").inner_text()
        assert told.startswith("Not measured after step 1. ") and "--true-on-policy-mode" in told, told
        memory = figure(page, "Memory: process, GPU")
        assert readings(memory)[0].removeprefix("memory ") == f"{numbers(stale / 'ahead', 'memory_bytes')[-1] / 1e6:.3g} MB"
        assert pixels(memory, RUN_COLOURS[0]) > 50
        for name in ("number", "length"):
            part = figure(page, f"Reward of {name}")
            assert readings(part) == [shown(numbers(stale / "ahead", f"reward/{name}")[-1])]
            assert pixels(part, RUN_COLOURS[0]) > 50
        picture(page, tmp_path, "ahead")
        leave(page)
    with Dashboard(lockstep, runs / "fast", stale / "ahead") as dashboard:
        open_page(page, dashboard.address)
        difference = figure(page, "Log-prob difference: mean, largest")
        assert difference.locator(".note").inner_text().startswith("ahead: not measured after step 1. ")
        leave(page)
    # A run that was never measured has no empty chart.
    lines = map(json.loads, (stale / "ahead" / "metrics.jsonl").read_text().splitlines())
    never = tmp_path / "never"
    never.mkdir()
    (never / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines if line["step"] > 1))
    with Dashboard(lockstep, never) as dashboard:
        open_page(page, dashboard.address)
        difference = figure(page, "Log-prob difference: mean, largest")
        assert difference.locator(".note").inner_text().startswith("Not measured. ") and not difference.locator("canvas").is_visible()


def colours_of(page, index=0):
    """Classes and background of each token of an answer."""
    return page.locator(".answer pre").nth(index).locator(".token").evaluate_all(
        "all => all.map((span) => ({classes: [...span.classList].slice(1), back: getComputedStyle(span).backgroundColor}))")


def opacity(token):
    """Of its background, whatever the colour."""
    back = token["back"].removeprefix("rgba(").removeprefix("rgb(").rstrip(")").split(",")
    return float(back[3]) if len(back) == 4 else 1.0


def test_tokens_are_coloured_by_their_numbers(lockstep, stale, page, tmp_path):
    with Dashboard(lockstep, stale / "slices") as dashboard:
        open_page(page, dashboard.address, "samples")
        page.wait_for_selector(".answer")
        address = dashboard.address.split("#")[0]
        groups = json.load(urllib.request.urlopen(f"{address}api/runs/0/groups?show=all&order=newest&first=0&count=64"))["groups"]
        # The first group of which a sample was drawn by two versions.
        for place, group in enumerate(groups):
            samples = json.load(urllib.request.urlopen(f"{address}api/runs/0/samples?step={group['step']}&group={group['group']}"))["samples"]
            mixed = next((i for i, sample in enumerate(samples) if "versions" in sample), None)
            if mixed is not None:
                break
        assert mixed is not None, "no sample of two versions"
        for _ in range(place):
            page.keyboard.press("j")
        page.wait_for_function("text => document.querySelector('#group h2').innerText === text", arg=f"Step {group['step']}, prompt {group['group']}")
        sample = samples[mixed]
        sampled, trained, entropy = sample["sampled_logprobs"], sample["train_logprobs"], sample["entropy"]

        def coloured(by):
            page.select_option("#sample-colour", by)
            tokens = colours_of(page, mixed)
            assert len(tokens) == len(sample["tokens"])
            return tokens

        def grows(tokens, sizes):
            """A token of a larger number is never paler, and the largest is seen."""
            order = sorted(range(len(tokens)), key=lambda t: sizes[t])
            shades = [opacity(tokens[t]) for t in order]
            return shades == sorted(shades) and (sizes[order[-1]] < 0.06 or shades[-1] > shades[0] or sizes[order[0]] == sizes[order[-1]])

        tokens = coloured("logprob")
        assert all(token["classes"][0] == "low" for token in tokens) and grows(tokens, [-value for value in sampled])
        assert page.locator("#legend i").all_inner_texts() == ["0", "-1.7", "-3.3", "-5"]
        tokens = coloured("entropy")
        assert all(token["classes"][0] == "plenty" for token in tokens) and grows(tokens, entropy)
        tokens = coloured("ratio")
        ratios = [now - then for now, then in zip(trained, sampled)]
        assert [token["classes"][0] for token in tokens] == ["low" if ratio < 0 else "high" for ratio in ratios]
        assert grows(tokens, [abs(ratio) for ratio in ratios])
        assert page.locator("#legend i").all_inner_texts() == ["0.71", "0.86", "1", "1.17", "1.41"]
        tokens = coloured("version")
        assert [token["classes"][0] for token in tokens] == [f"v{version % 6}" for version in sample["versions"]]
        assert len({token["back"] for token in tokens}) == len(set(sample["versions"])) >= 2
        drew = sorted({version for other in samples for version in other.get("versions", [other.get("version")])})
        legend = page.locator("#legend i")
        assert legend.all_inner_texts() == [f"version {version}" for version in drew]
        backs = dict(zip(drew, legend.evaluate_all("all => all.map((mark) => getComputedStyle(mark).backgroundColor)")))
        assert [token["back"] for token in tokens] == [backs[version] for version in sample["versions"]]
        picture(page, tmp_path, "versions")
        assert all(token["classes"] == [] for token in coloured("none")) and legend.count() == 0


def test_samples_are_text_and_a_hundred_thousand_stay_smooth(lockstep, page, tmp_path):
    write_run(tmp_path / "run", SCRIPT)
    with Dashboard(lockstep, tmp_path / "run") as dashboard:
        open_page(page, dashboard.address)
        assert SCRIPT in page.locator("#charts").inner_text()
        page.keyboard.press("2")
        page.wait_for_selector(".answer")
        assert page.locator("#list-space").evaluate("box => box.offsetHeight") == 25_000 * 30
        assert page.locator(".row").count() < 100
        assert SCRIPT in page.locator(".prompt").inner_text()
        assert page.locator(".answer pre").first.inner_text() == SCRIPT + " end"
        began = time.monotonic()
        for share in (0.5, 0.1, 0.9, 1.0):
            page.locator("#list").evaluate("(box, share) => box.scrollTop = box.scrollHeight * share", share)
            page.wait_for_function("() => document.querySelectorAll('.row').length > 10")
        assert time.monotonic() - began < 20  # paged: a page of all rows would take minutes
        page.wait_for_function("() => [...document.querySelectorAll('.row')].some(row => row.innerText.startsWith('step 1 '))")
        page.locator(".row").last.click()
        page.wait_for_function("() => document.querySelector('#group h2').innerText === 'Step 1, prompt 0'")
        # bench/dashboard_frames.py records these; the bounds are far above, for busy machines, and far below those of a list that is drawn whole.
        page.locator("#list").evaluate("box => box.scrollTop = 0")
        times = measure(page)
        assert all(part["p95_ms"] < 150 for name, part in times.items() if name.startswith("scroll_")), times
        assert all(part["until_shown_ms"] < 3000 for name, part in times.items() if name.startswith("filter_")), times
        page.keyboard.press("3")
        assert SCRIPT in page.locator("#settings").inner_text()
        assert page.evaluate("window.hacked") is None
        assert page.locator("main script, main img").count() == 0


def test_a_run_is_shown_while_it_goes_on(lockstep, page, tmp_path):
    save = tmp_path / "run"
    save.mkdir()
    (save / "metrics.jsonl").write_text('{"step":1,"reward":0.25}\n')
    with Dashboard(lockstep, save) as dashboard:
        open_page(page, dashboard.address)
        with open(save / "metrics.jsonl", "a") as file:
            file.write('{"step":2,"reward":0.625}\n')
        page.wait_for_function("() => document.querySelector('#cards').innerText.includes('0.625')", timeout=30_000)


def test_training_serves_its_own_page(lockstep, tmp_path):
    (tmp_path / "token").write_text("word\n")
    process = subprocess.Popen(
        [lockstep.binary, "train", *map(str, ("--hf-checkpoint", ROOT / "models/arith", "--prompt-data", ROOT / "models/arith/train.jsonl", "--input-key",
         "prompt", "--label-key", "label", "--rm-type", "number", "--rollout-batch-size", 4, "--n-samples-per-prompt", 4, "--rollout-max-response-len", 8,
         "--lora-rank", 4, "--target-modules", "all-linear", "--num-rollout", 100000, "--save", tmp_path / "run", "--dashboard", 0,
         "--dashboard-token-file", tmp_path / "token"))], stdout=subprocess.PIPE, text=True)
    lines = iter(process.stdout.readline, "")
    address = next(line.split()[-1] for line in lines if line.startswith("dashboard"))
    threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()
    assert "word" not in address
    request = urllib.request.Request(address.split("#")[0] + "api/runs", headers={"Authorization": "Bearer word"})
    end = time.monotonic() + 60
    while json.load(urllib.request.urlopen(request))["runs"][0]["samples"] == 0:
        assert time.monotonic() < end
        time.sleep(0.2)
    process.terminate()
    assert process.wait(timeout=60) == 130


def test_a_token_opens_the_page(lockstep, runs, page, tmp_path):
    (tmp_path / "token").write_text("a word")
    with Dashboard(lockstep, runs / "fast", "--token-file", tmp_path / "token") as dashboard:
        address = dashboard.address.replace("token=...", "token=a%20word")
        open_page(page, address)
        assert page.locator("figure").count() > 5
        assert "word" not in page.url
        page.reload()
        page.wait_for_selector("body[data-ready=yes]")
