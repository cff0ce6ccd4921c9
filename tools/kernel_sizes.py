#!/usr/bin/env python3
"""Bytes of code of every GPU kernel of the given files of src/kernels/cuda, smallest first: a decode step's kernels share
the instruction cache (docs/decisions/gpu-few-rows.md). Needs nvcc, no GPU.

    tools/kernel_sizes.py linear_ring rmsnorm
"""
import argparse
import pathlib
import re
import struct
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("file", nargs="+", help="name without .cu")
parser.add_argument("--nvcc", default="nvcc")
options = parser.parse_args()
ROOT = pathlib.Path(__file__).resolve().parents[1]


def sections(elf):
    """(name, size) of an ELF file of 64 bits."""
    offset, = struct.unpack_from("<Q", elf, 0x28)
    count, strings = struct.unpack_from("<HH", elf, 0x3C)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + 64 * i) for i in range(count)]
    names = headers[strings][4]
    for header in headers:
        start = names + header[0]
        yield elf[start:elf.index(b"\0", start)].decode(), header[5]


for file in options.file:
    with tempfile.TemporaryDirectory() as folder:
        cubin = pathlib.Path(folder) / "kernels.cubin"
        subprocess.run([options.nvcc, "-O3", "-DNDEBUG", "-std=c++20", "-arch=sm_90a", "-cubin", f"-I{ROOT / 'src'}", "-w", "-o",
                        cubin, ROOT / f"src/kernels/cuda/{file}.cu"], check=True, stderr=subprocess.DEVNULL)
        kernels = [(size, name) for name, size in sections(cubin.read_bytes()) if name.startswith(".text.")]
    for size, name in sorted(kernels):
        # The mangled name from the kernel's own on.
        print(f"{size:8}  {file}  {re.sub(r'.*_GLOBAL__N__[0-9a-f]+_[0-9]+_[a-z_]+_cu_[0-9a-f]+', '', name).lstrip('0123456789')}")
