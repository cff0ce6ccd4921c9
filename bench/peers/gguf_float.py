"""A quantized GGUF file as one of float32 weights, for side-by-side runs: gguf_float.py IN.gguf OUT.gguf"""
import sys

import gguf
from gguf.quants import dequantize

reader = gguf.GGUFReader(sys.argv[1])
writer = gguf.GGUFWriter(sys.argv[2], reader.get_field("general.architecture").contents())
for field in reader.fields.values():
    if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type", "general.quantization_version"):
        continue
    kind = field.types[0]
    writer.add_key_value(field.name, field.contents(), kind, sub_type=field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
writer.add_file_type(gguf.LlamaFileType.ALL_F32)
for tensor in reader.tensors:
    writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
