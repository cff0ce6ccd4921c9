"""What a running server costs, from outside: memory and CPU time of its threads (Linux), its Prometheus counters."""
import os
import pathlib
import re


def resident_bytes(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"process {pid} has no VmRSS")


def thread_seconds(pid):
    """{thread id: seconds of CPU}; the thread whose id is the process's is the one that serves."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        found[int(task.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def metric(client, name):
    """The sum of a counter over its labels."""
    values = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", client.get("/metrics").text, re.MULTILINE)
    if not values:
        raise KeyError(f"{name} is not among the server's metrics")
    return sum(map(float, values))
