"""Runs one benchmark by name. Every entry has ``run() -> result`` (JSON-ready) and ``table(result) -> text``."""

from __future__ import annotations

import importlib
import os
import platform
from pathlib import Path
from typing import Any

from tallymill.errors import UsageError
from tallymill.runners.run_folder import versions

ENTRIES = {
    "abacus": (
        "tallymill.bench.abacus",
        "the example set of edits from end to end, against a script, each in one process and in two",
    ),
    "abacus-stages": (
        "tallymill.bench.abacus_stages",
        "matching and consistency of an edit against pycocotools, SciPy and scikit-image",
    ),
    "analyse": ("tallymill.bench.analyse", "a RUN's scores and proposals to the tables of NumBench: rows/s and memory"),
    "candidates": (
        "tallymill.bench.kernels.candidates",
        "raw outputs of detectors to boxes that answer a request, against NumPy and torch",
    ),
    "count": ("tallymill.bench.kernels.count", "counts and scores from stored confidences against NumPy, Arrow, numba"),
    "decode": ("tallymill.bench.decode", "JPEG decoding against Pillow and OpenCV"),
    "detect": (
        "tallymill.bench.detect",
        "two categories an image, detected from text by ONNX Runtime, against the pipeline of transformers",
    ),
    "gpu": ("tallymill.bench.gpu", "the Triton kernels on the card at hand, against the CPU's"),
    "match": (
        "tallymill.bench.kernels.match",
        "matching of boxes and assignment against lap, lapx, SciPy, pycocotools",
    ),
    "matrix": (
        "tallymill.bench.matrix",
        "small models of every family on ONNX Runtime, torch and TensorRT: differences from the originals",
    ),
    "mask_iou": ("tallymill.bench.kernels.mask_iou", "mask IoU and packing against pycocotools, NumPy and torch"),
    "nms": (
        "tallymill.bench.kernels.nms",
        "NMS, soft-NMS and counting against torchvision, OpenCV, supervision, numba",
    ),
    "physcount-ask": (
        "tallymill.bench.physcount_ask",
        "questions asked of a real vLLM with a tiny model, against a loop that asks one at a time",
    ),
    "physcount-score": (
        "tallymill.bench.physcount_score",
        "PhysCount's answers of 40 models to tables: time, memory",
    ),
    "rescore": ("tallymill.bench.rescore", "a RUN's stored proposals to a table of scores: images/s and memory"),
    "sweep": ("tallymill.bench.sweep", "engine time an image, items/s and memory of a sweep"),
}


# A name for several entries, run one after another.
GROUPS = {"kernels": tuple(name for name, (module, _) in ENTRIES.items() if ".kernels." in module)}


def run_bench(name: str) -> tuple[dict[str, Any], str]:
    """The result of one benchmark with the machine and versions beside it, and its table for a person."""
    if name not in ENTRIES and name not in GROUPS:
        known = [f"{entry}: {about}" for entry, (_, about) in ENTRIES.items()]
        known += [f"{group}: {', '.join(entries)}" for group, entries in GROUPS.items()]
        raise UsageError(f"no benchmark {name!r}", hint="; ".join(known))
    results, tables = {}, []
    for entry in GROUPS.get(name, (name,)):
        module = importlib.import_module(ENTRIES[entry][0])
        results[entry] = module.run()
        tables.append(module.table(results[entry]))
    result = results if name in GROUPS else results[name]
    return {"bench": name, **result, "machine": machine(), "versions": versions()}, "\n\n".join(tables)


def machine() -> dict[str, Any]:
    """The architecture, the processor as it names itself, and how many cores this process may use."""
    return {"architecture": platform.machine(), "processor": _processor(), "cores": len(os.sched_getaffinity(0))}


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
