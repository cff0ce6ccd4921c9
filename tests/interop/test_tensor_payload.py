"""The tensors that we send to SGLang (versions/tensor_payload.h), read by the real torch and by SGLang's SafeUnpickler."""
import ast
import base64
import hashlib
import io
import json
import pathlib
import pickle
import zipfile

import pytest
import torch
from conftest import rows_program
from safetensors.torch import load_file, save_file


@pytest.fixture(scope="module")
def sent(lockstep, tmp_path_factory):
    folder = tmp_path_factory.mktemp("payload") / "adapter"
    folder.mkdir()
    numbers = torch.Generator().manual_seed(1)
    tensors = {}
    for layer in range(2):
        for module, (rows, cols) in {"q_proj": (48, 32), "v_proj": (16, 32)}.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[name + ".lora_A.weight"] = torch.randn(4, cols, generator=numbers)
            tensors[name + ".lora_B.weight"] = torch.randn(rows, 4, generator=numbers)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    body = rows_program(lockstep, "tensor_payload_rows")([{"adapter": str(folder)}])[0]
    return body, load_file(folder / "adapter_model.safetensors"), config


def same(got, wanted):
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert got[name].dtype == torch.float32 and got[name].is_contiguous() and torch.equal(got[name], tensor), name


def test_torch_reads_the_tensors(sent):
    body, wanted, config = sent
    assert body["config_dict"] == config
    [text] = body["serialized_named_tensors"]
    same(pickle.loads(base64.b64decode(text)), wanted)
    assert body["expected_checksums"] == {
        name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in wanted.items()}


def test_sglangs_unpickler_reads_the_tensors(sent, request):
    """Of its wheel, which is not installed: of its source only the reader is run."""
    folder = request.config.getoption("--sglang")
    if folder is None:
        pytest.skip("no SGLang wheel: tools/interop/setup.sh VENV sglang, and --sglang FOLDER")
    [wheel] = pathlib.Path(folder).glob("sglang-*.whl")
    source = zipfile.ZipFile(wheel).read("sglang/srt/utils/common.py").decode()
    wanted = {"_safe_load_torch_storage", "SafeUnpickler", "safe_pickle_load", "safe_pickle_loads"}
    parts = [node for node in ast.parse(source).body if getattr(node, "name", None) in wanted]
    space = {"pickle": pickle, "torch": torch, "io": io}
    exec(compile(ast.Module(parts, []), "sglang/srt/utils/common.py", "exec"), space)
    body, tensors, _ = sent
    same(space["safe_pickle_loads"](base64.b64decode(body["serialized_named_tensors"][0])), tensors)
