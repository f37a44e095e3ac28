"""Checks every Triton kernel on the card at hand against the CPU's, at real sizes, and times it.

``python -m tallymill.bench.gpu`` takes less than five minutes; its last line is JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from tallymill.bench.gpu_cases import CASES, Case
from tallymill.bench.pairs import aligned
from tallymill.errors import MissingExtraError, TallymillError, UsageError

REPEATS = 30
SECONDS = 2.0  # of one timing, at most
FLUSH_BYTES = 256 << 20  # more than any card's L2 cache
COPY_BYTES = 1 << 30


def run() -> dict[str, Any]:
    """Check each case, then time it by events on the card: medians, warm but for the L2 cache, which is flushed.

    Raises:
        TallymillError: a kernel gives another result than the CPU.
        UsageError: there is no card.
    """
    torch = _torch()
    card = _card(torch)
    rows = [_measured(torch, case, card["bandwidth_gb_s"]) for cases in CASES for case in cases("cuda", False)]
    return {"card": card, "cases": rows}


def table(result: dict[str, Any]) -> str:
    """The result of ``run`` for reading."""
    card = result["card"]
    rows = [["operation, size", "us", "GB/s", "of the card's", "CPU us", "CPU / card"]]
    for case in result["cases"]:
        name = f"{case['operation']}, {case['size']}"
        share = f"{case['share_of_bandwidth']:.1%}"
        cells = [f"{case['us']:.1f}", f"{case['gb_s']:.1f}", share, f"{case['cpu_us']:.0f}", f"{case['cpu_ratio']:.1f}"]
        rows.append([name, *cells])
        rows += [[f"  {peer['name']}", f"{peer['us']:.1f}", "", "", "", ""] for peer in case["peers"]]
    head = (
        f"{card['name']} (sm_{card['capability']}), driver {card['driver']}, torch {card['torch']}, "
        f"Triton {card['triton']}\nmemory: {card['bandwidth_gb_s']:.0f} GB/s ({card['bandwidth_from']}), "
        f"a large copy reaches {card['copy_gb_s']:.0f} GB/s; the CPU's times are of one thread"
    )
    return f"{head}\n\n{aligned(rows)}"


def _measured(torch: Any, case: Case, bandwidth: float) -> dict[str, Any]:
    # The CPU's call is its first: caches are as cold there as the flush makes them here.
    start = time.perf_counter()
    wanted = case.cpu()
    cpu_us = (time.perf_counter() - start) * 1e6
    case.check(arrays(case.run()), arrays(wanted))
    us = _time(torch, case.run)
    gb_s = case.bytes / us / 1e3
    return {
        "operation": case.operation,
        "size": case.size,
        "us": us,
        "gb_s": gb_s,
        "share_of_bandwidth": gb_s / bandwidth,
        "cpu_us": cpu_us,
        "cpu_ratio": cpu_us / us,
        "peers": [{"name": name, "us": _time(torch, peer)} for name, peer in case.peers.items()],
    }


def arrays(outputs: Any) -> tuple[Any, ...]:
    """One or several outputs, tensors and arrays alike, as NumPy arrays."""
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return tuple(np.asarray(output.cpu() if hasattr(output, "cpu") else output) for output in several)


def _time(torch: Any, call: Callable[[], Any]) -> float:
    """Median microseconds between two events around ``call``."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    taken: list[float] = []
    while len(taken) < REPEATS and (len(taken) < 3 or time.perf_counter() - begun < SECONDS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The flush also gives the host time to queue what follows, so that the card does not wait between the events.
        flush.zero_()
        flush.zero_()
        before.record()
        call()
        after.record()
        torch.cuda.synchronize()
        taken.append(before.elapsed_time(after) * 1e3)
    return median(taken)


def _torch() -> Any:
    with MissingExtraError.unless("torch", "triton", extra="gpu"):
        import torch
        import triton  # noqa: F401 -- only whether it is there
    if not torch.cuda.is_available():
        raise UsageError("there is no GPU here that torch can use", hint="run this on a machine with a CUDA card")
    return torch


def _card(torch: Any) -> dict[str, Any]:
    import triton

    properties = torch.cuda.get_device_properties(0)
    copy = _copy_gb_s(torch)
    # Two transfers a clock; not every version of torch tells the clock.
    kilohertz, bits = (getattr(properties, name, 0) for name in ("memory_clock_rate", "memory_bus_width"))
    declared = 2 * kilohertz * 1e3 * bits / 8 / 1e9
    return {
        "name": properties.name,
        "capability": f"{properties.major}{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "driver": _driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "bandwidth_gb_s": declared or copy,
        "bandwidth_from": "by clock and width of its bus" if declared else "by a large copy",
        "copy_gb_s": copy,
    }


def _copy_gb_s(torch: Any) -> float:
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    us = _time(torch, lambda: target.copy_(source))
    return 2 * COPY_BYTES / us / 1e3


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def main() -> int:
    """Print the table, then JSON."""
    try:
        result = run()
    except TallymillError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    print(table(result))  # noqa: T201
    print(json.dumps(result))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
