# A reward program: one JSON request a line, one JSON answer a line. Full reward for the right number, and a little less
# for every word too many.
import json
import sys

for line in sys.stdin:
    sample = json.loads(line)
    right = sample["response"].strip().split(" ")[-1] == sample["label"]
    print(json.dumps({"id": sample["id"], "reward": right - 0.01 * sample["response"].count(" ")}), flush=True)
