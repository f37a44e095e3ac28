"""Small models of every family through every runtime: the largest difference from the original, and what was built.

Weights are random and models small (``small_models``), so that this says what can be exported and runs, not how well or
fast. ONNX Runtime and torch answer on the CPU, by the gate's comparisons; engines of TensorRT are built where it is
installed, and run nowhere here. Needs ``pip install 'tallymill[cpu,text,export]'``.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tallymill.bench.small_models import SMALL, write_small
from tallymill.errors import TallymillError
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.to_tensorrt import MODULES, Target
from tallymill.exporters.to_torch import Programs

CAPABILITY = "89"  # that TensorRT for RTX can build for without a card
WAYS: dict[str, dict[str, Any]] = {
    "onnx": {},
    "torch fp32": {"programs": Programs("fp32")},
    "torch bf16": {"programs": Programs("bf16")},
    "tensorrt": {"engines": Target("fp16", CAPABILITY, (2,))},
}


def run(families: Sequence[str] = tuple(SMALL), ways: Sequence[str] = tuple(WAYS)) -> dict[str, Any]:
    """Of each family and runtime: seconds of the export, and the largest differences that the gate found."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    ways = [way for way in ways if way != "tensorrt" or any(find_spec(module) for module in MODULES)]
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for family in families:
            folder = write_small(family, Path(scratch) / family)
            found[family] = {way: _export(family, folder, way) for way in ways}
    return {"bench": "matrix", "families": found}


def _export(family: str, folder: Path, way: str) -> dict[str, Any]:
    small, out = SMALL[family], folder.parent / f"{family}-{way.replace(' ', '-')}"
    start = time.perf_counter()
    try:
        bundle = export(recipe_of(small.recipe), folder, out=out, options=small.options, **WAYS[way])
    except TallymillError as exc:
        return {"refused": str(exc)}
    gate = json.loads((bundle.folder / "bundle.json").read_text("utf-8"))["gate"]
    parts = [each for each in gate if each["part"] != "whole"]
    whole = [each for each in gate if each["part"] == "whole"]
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "bytes": sum(file.stat().st_size for file in bundle.folder.iterdir()),
        "parts": max(each["difference"] for each in parts),
        "pixels": _largest(whole, "boxes (pixels)"),
        "confidence": _largest(whole, "confidences"),
    }


def _largest(findings: Sequence[dict[str, Any]], output: str) -> float | None:
    """None where nothing of the kind was compared."""
    return max((each["difference"] for each in findings if each["output"] == output), default=None)


def table(result: dict[str, Any]) -> str:
    """A family a row, a runtime a column: differences of outputs, of boxes in pixels, and of confidences."""
    families = result["families"]
    ways = list(next(iter(families.values())))
    lines = [f"| family | {' | '.join(ways)} |", f"|---|{'---|' * len(ways)}"]
    for family, cells in families.items():
        lines.append(f"| `{family}` | {' | '.join(_cell(cells[way]) for way in ways)} |")
    return "\n".join(lines)


def _cell(found: dict[str, Any]) -> str:
    if "refused" in found:
        return "refused"
    told = [f"{found['parts']:.1g}"]
    for key, unit in (("pixels", " px"), ("confidence", "")):
        told.append("-" if found[key] is None else f"{found[key]:.1g}{unit}")
    return "; ".join(told)
