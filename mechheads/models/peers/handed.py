"""What a script is handed (a folder with a model and work.json) and what it prints (JSON)."""

import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROUNDS, SHORT = 3, 5.0  # what takes less than 5 s is timed three times; the fastest counts
MB = 1 << 20

# The seconds for the whole work, how much of it was timed, and the numbers, by kind and name.
Answer = tuple[float, str, Mapping[str, Mapping[str, float]]]


def main(package: str, measurements: Mapping[str, Callable[..., Answer]], load: Callable) -> None:
    """Read FOLDER, do MEASUREMENT, print the answer: `python script.py FOLDER MEASUREMENT`."""
    import torch

    folder, name = Path(sys.argv[1]), sys.argv[2]
    work = json.loads((folder / "work.json").read_text())
    torch.set_num_threads(work["threads"])
    given = load(folder / "model", work)
    loaded = resident("VmRSS")
    seconds, how, values = measurements[name](*given, work)
    packages = (package, "torch", "transformers")
    found = {
        "python": platform.python_version(),
        **{key: version(key) for key in packages},
        "seconds": seconds,
        "how": how,
        "values": values,
        "memory": max(resident("VmHWM"), loaded) / MB,
        "loaded": loaded / MB,
    }
    print(json.dumps(found))


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What the work gives, and the seconds it takes."""
    times = []
    while True:
        start = time.perf_counter()
        found = work()
        times.append(time.perf_counter() - start)
        if len(times) == ROUNDS or min(times) > SHORT:
            return found, min(times)


def spread(items: Sequence[Any], n: int) -> list[Any]:
    """n evenly spaced items, or all (n is 0, or too many)."""
    if n == 0 or n >= len(items):
        return list(items)
    return [items[i * len(items) // n] for i in range(n)]


def resident(field: str) -> float:
    """Bytes of memory in use (VmRSS), or the most that ever were (VmHWM)."""
    status = Path("/proc/self/status")
    if status.is_file():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return float(lines[field].split()[0]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most * (1 if sys.platform == "darwin" else 1024))


def quietly() -> None:
    """No progress bars, no hub, no warnings among the answers."""
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1", TOKENIZERS_PARALLELISM="false")
