"""tallymill scores counting benchmarks at the scale of ten million images.

>>> import tallymill
>>> tallymill.score("cats.jpg", {"cat": 3}).cw_nps
>>> tallymill.sweep("manifest.parquet", "RUN").cw_nps
>>> tallymill.load("RUN").scores

The kernels stand on their own: ``from tallymill.kernels.nms import nms`` imports nothing of the engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Settings",
    "analyse",
    "build_prompts",
    "calibrate",
    "check_prompts",
    "collision",
    "dump",
    "load",
    "report",
    "rescore",
    "score",
    "subset_prompts",
    "sweep",
]

if TYPE_CHECKING:
    from tallymill.engine.settings import Settings
    from tallymill.runners.dump import dump
    from tallymill.runners.numbench.analyse import analyse
    from tallymill.runners.numbench.calibrate import calibrate
    from tallymill.runners.numbench.collision import collision
    from tallymill.runners.numbench.prompts import build_prompts, check_prompts, subset_prompts
    from tallymill.runners.numbench.report import report
    from tallymill.runners.rescore import rescore
    from tallymill.runners.run import load
    from tallymill.runners.single import score
    from tallymill.runners.sweep import sweep

_HOME = {
    "Settings": "tallymill.engine.settings",
    "analyse": "tallymill.runners.numbench.analyse",
    "build_prompts": "tallymill.runners.numbench.prompts",
    "calibrate": "tallymill.runners.numbench.calibrate",
    "check_prompts": "tallymill.runners.numbench.prompts",
    "collision": "tallymill.runners.numbench.collision",
    "dump": "tallymill.runners.dump",
    "load": "tallymill.runners.run",
    "report": "tallymill.runners.numbench.report",
    "rescore": "tallymill.runners.rescore",
    "score": "tallymill.runners.single",
    "subset_prompts": "tallymill.runners.numbench.prompts",
    "sweep": "tallymill.runners.sweep",
}


def __getattr__(name: str) -> Any:
    """Import the engine when it is first used, so that importing a kernel stays cheap."""
    if name not in _HOME:
        raise AttributeError(f"module 'tallymill' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
