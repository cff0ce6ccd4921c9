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


def gpu_rows(record):
    ours, ratios = record["parts"]["lockstep"]["results"], record["ratios"]
    peers = sorted((part for name, part in record["parts"].items() if name.startswith("peft_")),
                   key=lambda part: part["train_tok_s"], reverse=True)  # the fastest first: ratios are to it
    names = {"compile": "compiled"}

    def of_peers(value):
        return "; ".join(f"{number(value(peer))} (PEFT {names.get(peer['mode'], peer['mode'])})" for peer in peers)

    def ratio_to_peer(name):
        return ratios.get(f"{name}_over_peft_{peers[0]['mode']}") if peers else None

    def row(label, key, sub=None, unit="", peer=None, ratio=None):
        if key not in ours and key in ("publish_to_token_us", "grpo_step_s"):  # not measured in every record
            return None
        value, limit = ours[key], ours.get(key + "_percent_of_limit")
        if sub:
            value, limit = value[sub], limit[sub] if limit else None
        return label, number(value), f"{limit:.0f} %" if limit else "", peer or "", f"{ratio:.3g}x" if ratio else ""

    yield row("LoRA SFT, rank 16, 8 x 2048, tok/s", "train_tok_s", peer=of_peers(lambda peer: peer["train_tok_s"]),
              ratio=ratio_to_peer("train"))
    memory = ratio_to_peer("train_peak")
    yield ("peak memory of that step, GiB", number(ours["train_peak_bytes"] / 2**30), "",
           of_peers(lambda peer: peer["train_peak_bytes"] / 2**30), f"{memory:.2g}x" if memory else "")
    yield row("decode, one sequence, tok/s", "decode_tok_s", "1")
    for count in ("64", "256"):
        yield row(f"decode with adapter, {count} sequences, tok/s", "decode_lora_tok_s", count)
    yield row("prefill with adapter, 64 x 1024, tok/s", "prefill_lora_tok_s")
    yield row("publish to the next token's start, us", "publish_to_token_us")
    yield row("GRPO step, 32 x 8 samples, s", "grpo_step_s")


def gpu_section(path):
    record = json.loads(path.read_text())
    model = record["parts"]["lockstep"]["model"]["name"]
    lines = [f"**{record['machine']['gpu']}**; {model}, random bf16 weights ([record]({path.relative_to(ROOT)}), {record['date']})", "",
             "| measure | Lockstep | of the limit | peer in the same run | ratio |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in gpu_rows(record) if row]
    return "\n".join(lines)


def serve_rows(record):
    parts, ratios, results = record["parts"], record["ratios"], record["results"]
    for name, label in (("tok_s", ""), ("lora_tok_s", ", rank-16 adapter")):
        for key, value in parts.get("lockstep", {}).get(name, {}).items():
            cells = []
            for peer in ("vllm", "llama"):
                rate = parts.get(peer, {}).get(name, {}).get(key)
                ratio = ratios.get(f"{'lora_' if 'lora' in name else ''}over_{peer}", {}).get(key)
                cells.append(f"{number(rate)} ({ratio:.2g}x)" if rate else "")
            yield f"{key} client{'s' if key != '1' else ''}{label}, tok/s", number(value), *cells
    if "ttft" in results:
        ttft = results["ttft"]
        yield (f"first token of {ttft['prompt_tokens']}, ms; its prefix cached",
               f"{number(ttft['cold_ms']['p50'])}; {number(ttft['prefix_hit_ms']['p50'])}", "", "")
    if "layer" in results:
        yield "the HTTP layer's share of a step, 32 streams", f"{100 * results['layer']['http_share']:.2g} %", "", ""
    if "adapters" in results:
        adapters = results["adapters"]
        yield (f"{adapters['adapters']} adapters in turn, {adapters['concurrency']} clients, tok/s", number(adapters["tok_s"]), "", "")
    if "cycles" in results:
        cycles = results["cycles"]
        yield (f"replace an adapter in place, p50 and p99 of {cycles['cycles']:,}, ms",
               f"{number(cycles['in_place']['p50_ms'])}; {number(cycles['in_place']['p99_ms'])}", "", "")


def serve_section(path):
    record = json.loads(path.read_text())
    machine, tokens = record["machine"], record["tokens"]
    lines = [f"**`lockstep serve` on {machine['cpu']}**, {machine['threads']} threads, {machine['isa']}; SmolLM2-135M through HTTP, "
             f"{tokens['prompt']} tokens in, {tokens['answer']} out ([record]({path.relative_to(ROOT)}), {record['date']})", "",
             "| measure | Lockstep | vLLM-CPU f32 | llama.cpp, in-process |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in serve_rows(record)]
    return "\n".join(lines)


def serve_gpu_section(path):
    record = json.loads(path.read_text())
    results, tokens, vllm = record["results"], record["tokens"], record.get("vllm", {})
    lines = [f"**`lockstep serve` on {record['machine']['gpu']}**; {record['model']['name']}, random bf16 weights, through HTTP, "
             f"{tokens['prompt']} tokens in, {tokens['answer']} out, log-probs ([record]({path.relative_to(ROOT)}), {record['date']})", "",
             f"| measure | Lockstep | vLLM {vllm.get('version', '')}, another run, without HTTP | ratio |", "|---|---|---|---|"]
    for part, label in (("base", ""), ("one_adapter", ", rank-16 adapter"), ("64_adapters", ", 64 adapters in turn")):
        for streams, found in results[part].items():
            rate, peer = found["tokens_per_s"], vllm.get("tokens_per_s", {}).get(part, {}).get(streams)
            cells = [number(peer), f"{rate / peer:.2g}x"] if peer else ["", ""]
            lines.append(f"| {streams} stream{'s' if streams != '1' else ''}{label}, tok/s | {number(rate)} | {' | '.join(cells)} |")
    prompt = results["prompt_2048"]
    lines.append(f"| first token of 2,048, ms; its prefix cached | {number(prompt['cold_ms']['p50'])}; {number(prompt['prefix_hit_ms']['p50'])} | | |")
    return "\n".join(lines)


newest = {}
for path in sorted((ROOT / "bench/records").glob("*/*-cpu-peers.json")):
    newest[path.parent.name] = path
serve = {}
for path in sorted((ROOT / "bench/records").glob("*/*-serve.json")):
    serve[path.parent.name] = path
serve_gpu = sorted((ROOT / "bench/records").glob("*/*-serve-on-gpu.json"))[-1:]
gpu = {}
for model in ("qwen3-0.6b", "qwen3-4b"):
    for path in sorted((ROOT / "bench/records").glob(f"*/????-??-??-{model}.json")):
        gpu[path.parent.name, model] = path
readme = ROOT / "README.md"
text = readme.read_text()
head, rest = text.split(BEGIN)
_, tail = rest.split(END)
made = head + BEGIN + "\n" + "\n\n".join(
    [section(path) for path in newest.values()] + [serve_section(path) for path in serve.values()]
    + [serve_gpu_section(path) for path in serve_gpu] + [gpu_section(path) for path in gpu.values()]) + "\n" + END + tail
if "--check" in sys.argv:
    sys.exit(0 if made == text else "README.md differs from the records: run tools/readme_table.py")
readme.write_text(made)
