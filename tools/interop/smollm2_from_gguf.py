"""SmolLM2-135M-Instruct from a GGUF file to a Hugging Face directory in bf16: smollm2_from_gguf.py FILE.gguf DIR"""
import json
import os
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

source, target = sys.argv[1], sys.argv[2]
folder, name = os.path.split(os.path.abspath(source))
dequantized = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
# A fresh model of the same shape: the loaded one remembers that it came quantized and would be saved so.
config = dequantized.config
config.__dict__.pop("quantization_config", None)
config.dtype = torch.bfloat16
model = type(dequantized)(config)
model.load_state_dict(dequantized.state_dict())
model.tie_weights()
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
model.to(torch.bfloat16).save_pretrained(target)
tokenizer.save_pretrained(target)

# The GGUF file does not carry the Digits step of the published tokenizer; put it back.
path = os.path.join(target, "tokenizer.json")
with open(path) as file:
    data = json.load(file)
byte_level = data["pre_tokenizer"]
if byte_level["type"] == "ByteLevel":
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
    }
    with open(path, "w") as file:
        json.dump(data, file, ensure_ascii=False)
