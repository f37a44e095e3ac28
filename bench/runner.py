"""Runs one benchmark by name. Every entry has ``run() -> result`` (JSON-ready) and ``table(result) -> text``."""

from __future__ import annotations

import importlib
import platform
from typing import Any

from tallymill.errors import UsageError
from tallymill.runners.run_folder import versions

ENTRIES = {
    "decode": ("tallymill.bench.decode", "JPEG decoding against Pillow and OpenCV"),
    "sweep": ("tallymill.bench.sweep", "engine time an image, items/s and memory of a sweep"),
}


def run_bench(name: str) -> tuple[dict[str, Any], str]:
    """The result of one benchmark with the machine and versions beside it, and its table for a person."""
    if name not in ENTRIES:
        known = "; ".join(f"{entry}: {about}" for entry, (_, about) in ENTRIES.items())
        raise UsageError(f"no benchmark {name!r}", hint=known)
    entry = importlib.import_module(ENTRIES[name][0])
    result: dict[str, Any] = entry.run()
    return {"bench": name, **result, "machine": platform.machine(), "versions": versions()}, entry.table(result)
