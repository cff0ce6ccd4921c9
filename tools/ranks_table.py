#!/usr/bin/env python3
"""What ranks cost: bytes, milliseconds and what is full first, for 8, 64 and 512 GPUs.   ranks_table.py [--check PAGE]

A model with few numbers, each measured or named as an assumption. The exchange between two GPUs is fitted to what NCCL 2.28 took on
two H100 and on two H200 (NVLink, 18 links); the rest counts bytes and messages of what the program sends. Prints the table of
docs/distributed.md; --check compares the model with the measurements, and the page with the table.
"""
import sys

# Milliseconds (NCCL_NVLS_ENABLE=0), by buffer in MB. On 2 x H100: all-to-all of a buffer, of which half stays; all-gather of one each. On
# 2 x H200: the sum as more than two ranks form it (2026-11-29, no record kept).
MEASURED = {"all-to-all": {1: 0.080, 10: 0.080, 40: 0.16, 175: 0.41, 349: 0.76},
            "all-gather": {1: 0.067, 10: 0.097, 40: 0.25, 175: 0.74, 349: 1.42},
            "sum": {349: 2.28}}

EXCHANGE_MS = 0.06         # fitted: one exchange between GPUs, however small
NVLINK_GB_S = 215          # fitted: what a GPU receives inside a host
PIECE_MB = 134.2           # of the sum (parallel/tree_sum.cpp): 32 Mi floats
GPUS_A_HOST = 8
NIC_GB_S = 40              # assumed: per GPU between hosts, 400 Gb/s at 80 %
NIC_EXCHANGE_MS = 0.15     # assumed: one exchange that reaches another host
TCP_GB_S = 8               # assumed: per host, for samples; 100 Gb/s at 64 %
CONTROL_MS = 0.01          # assumed: rank 0's work for one rank's message on the control channel
TOKEN_BYTES = 49           # of a sampled token on the wire (rollout/dealt_sampler.cpp)
MEETING_MS = 1600          # how often ranks tell each other of their tokens in a long rollout (the same file)
MAX_LANES = 64             # the most ranks that a gradient's tree has places for


def exchange_ms(megabytes, crossing=0.0):
    """All ranks at once; each receives so many MB, of which `crossing` come from other hosts."""
    inside = (megabytes - crossing) / NVLINK_GB_S
    outside = crossing / NIC_GB_S
    return (NIC_EXCHANGE_MS if crossing else EXCHANGE_MS) + max(inside, outside)


def measured_ms(kind, megabytes):
    if kind == "sum":
        return gradient_sum(2, megabytes / 4e-6)[1]
    return exchange_ms(megabytes / 2 if kind == "all-to-all" else megabytes)


def gradient_sum(ranks, floats):
    """MB to each rank and milliseconds: slices to their ranks, then the sums to all."""
    whole = 4e-6 * floats
    others = max(0, ranks - GPUS_A_HOST) / max(1, ranks - 1)
    pieces = -(-whole // PIECE_MB)
    received = whole * (ranks - 1) / ranks
    piece = received / pieces  # the sums of a piece travel together with the partial sums of the next
    ms = 2 * exchange_ms(piece, piece * others) + (pieces - 1) * exchange_ms(2 * piece, 2 * piece * others)
    return 2 * received, ms


def samples(ranks, per_rank, tokens):
    """Of a rollout: MB to each rank, and milliseconds at which a host's ranks receive them."""
    received = 1e-6 * per_rank * ranks * tokens * TOKEN_BYTES * (ranks - 1) / ranks
    return received, received * min(ranks, GPUS_A_HOST) / TCP_GB_S


def control_share(ranks):
    """Of rank 0's time while ranks sample: at each meeting they come to three calls and are told to go on."""
    return 3 * 2 * ranks * CONTROL_MS / MEETING_MS


def first_full(ranks, sum_ms, samples_ms):
    shares = {"rank 0's control channel": control_share(ranks), "samples over TCP": samples_ms / 10000,
              "the gradient's sum": sum_ms / 10000}
    name = max(shares, key=shares.get)
    if ranks > MAX_LANES:
        return f"the lanes: {MAX_LANES} at most, so {ranks} ranks are refused; then {name}"
    return f"{name} ({100 * shares[name]:.1f} % of its time)"


def rows():
    for ranks in (8, 64, 512):
        sum_mb, sum_ms = gradient_sum(ranks, 87e6)  # an 8B model, rank 32 on all layers
        sample_mb, samples_ms = samples(ranks, 32, 1024)
        yield [f"{ranks}", f"{-(-ranks // GPUS_A_HOST)}", f"{sum_mb:.0f} MB, {sum_ms:.1f} ms", f"{sample_mb:.0f} MB, {samples_ms:.0f} ms",
               f"{100 * control_share(ranks):.1f} %", first_full(ranks, sum_ms, samples_ms)]


def table():
    head = ["GPUs", "hosts", "gradient sum of a step", "samples of a rollout", "rank 0's control channel", "full first"]
    lines = [head, ["---"] * len(head), *rows()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def check(page):
    problems = []
    for kind, times in MEASURED.items():
        for megabytes, ms in times.items():
            ratio = measured_ms(kind, megabytes) / ms
            if not 0.75 <= ratio <= 1.25:
                problems.append(f"{kind} of {megabytes} MB: the model says {measured_ms(kind, megabytes):.3f} ms, measured {ms}")
    if table() not in open(page).read():
        problems.append(f"{page} does not hold this table:\n{table()}")
    return problems


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        found = check(sys.argv[2])
        print("\n".join(found) or "the model fits the measurements, and the page has its table")
        sys.exit(1 if found else 0)
    print(table())
