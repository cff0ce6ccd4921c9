"""Pages of runs of every kind in a headless Chromium: supervised ones, preferences, stale samples, several runs in one chart."""

import json
import shutil
import urllib.request

import pytest
from dashboard_page import (ADAPTER, ROOT, RUN_COLOURS, Dashboard, browser, figure, leave, needs_chromium, numbers, open_page, page, picture,
                            pixels, readings, runs, shown, train)

pytestmark = needs_chromium


def supervise(lockstep, command, save, row):
    """A run of `lockstep sft` or `lockstep dpo` on rows made of sums and their results."""
    sums = map(json.loads, (ROOT / "models/arith/train.jsonl").read_text().splitlines()[:256])
    data = save.parent / f"{save.name}.jsonl"
    data.write_text("".join(json.dumps({"prompt": sum["prompt"], **row(int(sum["label"]))}) + "\n" for sum in sums))
    lockstep(command, *ADAPTER, "--prompt-data", data, "--lr", "1e-3", "--save", save, "--global-batch-size", 32, "--num-epoch", 2,
             "--eval-prompt-data", "held", f"{data}@[0:32]", "--eval-interval", 4)


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
        for title, name in (("Rewards: chosen, rejected", "rewards"), ("Log-probs: chosen, rejected", "logps")):
            pair = figure(page, title)
            assert readings(pair) == [f"{part} {shown(numbers(supervised / 'dpo', f'{name}/{part}')[-1])}" for part in ("chosen", "rejected")]
            assert pixels(pair, RUN_COLOURS[0]) > 50 and pixels(pair, RUN_COLOURS[1]) == 0, "the second run has no pairs"
        for title in ("Rewards: chosen minus rejected", "Pairs in the right order", "Evaluation: rewards on held: chosen minus rejected",
                      "Evaluation: pairs in the right order on held", "Evaluation: rewards on held: chosen, rejected"):
            assert pixels(figure(page, title), RUN_COLOURS[0]) > 20, title
        assert all(pixels(figure(page, "Loss"), colour) > 50 for colour in RUN_COLOURS)
        picture(page, tmp_path, "dpo")
        page.locator("#runs input").nth(1).uncheck()
        page.wait_for_timeout(200)
        assert all(pixels(figure(page, "Rewards: chosen, rejected"), colour) > 50 for colour in RUN_COLOURS), "two series of one run"


def test_values_that_differ_in_their_last_bits_are_a_line(lockstep, supervised, page, tmp_path):
    save = tmp_path / "flat"
    shutil.copytree(supervised / "dpo", save)
    lines = [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]
    for i, line in enumerate(lines):
        if "loss" in line:
            line["loss"] = 0.6931471805599453 - (i % 2) * 1.1e-16
    (save / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Dashboard(lockstep, save) as dashboard:
        open_page(page, dashboard.address)
        loss = figure(page, "Loss")
        assert readings(loss) == ["0.6931"]
        assert pixels(loss, RUN_COLOURS[0]) > 20
        leave(page)


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
