#!/usr/bin/env python3
"""Writes adapters as torch.save leaves them, and the same tensors as safetensors.

  python tools/golden/torch_files.py --out tests/golden/torch
  (then tools/golden/make_goldens.py --manifest records the files in MANIFEST.json)

  zip_NAME.bin      a dictionary of tensors as the ZIP archive of today
  legacy_NAME.bin   the same as the row of pickles of before PyTorch 1.6
  NAME.safetensors  what Lockstep must read of both: the same names, types, shapes and values, rows side by side
  refused.json      {"NAME.bin": words of the error}: files that hold something else
  adapter/          an adapter directory as miles and vime save it, with files that are not read
"""
import argparse
import collections
import json
import pathlib

import torch
from safetensors.torch import save_file

SEED = 20240607
MODULE = "base_model.model.model.layers.0.self_attn"


def numbers(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=GENERATOR).to(dtype)


def adapter(dtype):
    return {f"{MODULE}.{leaf}.lora_{factor}.weight": numbers(*shape, dtype=dtype)
            for leaf in ("q_proj", "v_proj") for factor, shape in (("A", (2, 8)), ("B", (6, 2)))}


def cases():
    for dtype, name in ((torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16")):
        yield name, adapter(dtype)
    yield "types", {"f64": numbers(3, dtype=torch.float64), "i64": torch.arange(-3, 3), "i32": torch.arange(4, dtype=torch.int32).view(2, 2),
                    "u8": torch.arange(5, dtype=torch.uint8)}
    wide, cube = numbers(6, 10), numbers(2, 3, 4, 5)
    yield "strided", {"transposed": wide.t(), "columns": wide[:, 3:7], "steps": wide[::2, ::3], "rows": wide[2:4], "permuted": cube.permute(3, 1, 0, 2),
                      "of_one": wide[1:2, 4:5].t()}
    shared = numbers(2, 8)
    yield "shared", {f"{MODULE}.{leaf}.lora_A.weight": shared for leaf in ("q_proj", "k_proj", "v_proj")}
    yield "empty", {"none": torch.zeros(0, 7), "scalar": torch.tensor(2.5), "nothing_but": torch.zeros(0)}
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(numbers(*parameter.shape))
    yield "state_dict", module.state_dict()  # ordered, with versions of modules as an attribute
    yield "parameters", collections.OrderedDict((name, torch.nn.Parameter(value)) for name, value in module.state_dict().items())
    yield "no_tensors", {}


class Surprise:
    def __reduce__(self):
        return print, ("a pickle was executed",)


def refused():
    yield "list", [numbers(2)], ["something else than a dictionary"]
    yield "nested", {"state": {"a": numbers(2)}}, ["state", "no tensor"]
    yield "number", {"step": 3}, ["step", "no tensor"]
    yield "numbered", {1: numbers(2)}, ["no text"]
    yield "expanded", {"a": numbers(2, 1).expand(2, 5)}, ["a", "two places"]
    yield "boolean", {"a": torch.ones(2, dtype=torch.bool)}, ["torch.BoolStorage"]
    yield "code", {"a": Surprise()}, ["__builtin__.print"]
    yield "deep", {"a": numbers(1, 1, 1, 1, 2)}, ["5 dimensions"]


def rows_side_by_side(tensors):
    return {name: value.detach().reshape([1] if value.dim() == 0 else value.shape).clone().contiguous() for name, value in tensors.items()}


def write_adapter_directory(out):
    out.mkdir(exist_ok=True)
    tensors = adapter(torch.bfloat16)
    torch.save(tensors, out / "adapter_model.bin")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "lora_dropout": 0.0, "bias": "none",
              "target_modules": ["q_proj", "v_proj"]}
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2))
    torch.save({"iteration": 7, "optimizer": {"step": 7}}, out / "training_state_rank0.pt")
    torch.save({"adapter": tensors}, out / "adapter_megatron_tp0_pp0.pt")
    save_file(tensors, out.parent / "adapter.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, tensors in cases():
        torch.save(tensors, out / f"zip_{name}.bin")
        torch.save(tensors, out / f"legacy_{name}.bin", _use_new_zipfile_serialization=False)
        save_file(rows_side_by_side(tensors), out / f"{name}.safetensors")
    for protocol in (3, 4, 5):
        tensors = adapter(torch.float32)
        torch.save(tensors, out / f"zip_protocol{protocol}.bin", pickle_protocol=protocol)
        save_file(rows_side_by_side(tensors), out / f"protocol{protocol}.safetensors")
    errors = {}
    for name, value, words in refused():
        for kind, options in (("zip", {}), ("legacy", {"_use_new_zipfile_serialization": False})):
            file = f"{kind}_refused_{name}.bin"
            torch.save(value, out / file, **options)
            errors[file] = words
    (out / "refused.json").write_text(json.dumps(errors, indent=1) + "\n")
    write_adapter_directory(out / "adapter")


GENERATOR = torch.Generator().manual_seed(SEED)
if __name__ == "__main__":
    main()
