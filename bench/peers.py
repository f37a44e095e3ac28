"""The libraries that kernels are measured against, with one clear error when one is missing."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

from tallymill.errors import UsageError

LAPX_FOLDER = "peers-lapx"  # inside the environment; .ci/install-bench puts lapx there
LAPX_FUNCTIONS = ("lapjv", "lapjvx", "lapjvc", "lapjvsa", "lapjvr", "lapjvh", "lapjvr_batch")


def library(name: str) -> ModuleType:
    """Import a peer by its module's name; a UsageError when it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise UsageError(
            f"this benchmark compares with {name.partition('.')[0]}, which is not installed",
            hint="make bench sets everything up, or: pip install 'tallymill[bench]'",
        ) from None


@cache
def lapx() -> SimpleNamespace:
    """The functions of lapx, beside lap, whose module's name it shares: it is imported from a folder of its own."""
    folder = Path(sys.prefix) / LAPX_FOLDER
    if not (folder / "lap").is_dir():
        raise UsageError(
            "this benchmark compares with lapx, which is not installed",
            hint=f"make bench sets everything up, or: pip install --no-deps --target {folder} lapx",
        )
    ours = {name: sys.modules.pop(name) for name in list(sys.modules) if name == "lap" or name.startswith("lap.")}
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module("lap")
        return SimpleNamespace(**{name: getattr(module, name) for name in LAPX_FUNCTIONS})  # imported when asked for
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name == "lap" or name.startswith("lap.")]:
            del sys.modules[name]
        sys.modules.update(ours)
