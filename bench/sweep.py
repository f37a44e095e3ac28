"""What the engine costs around the models: time an image, items a second, and memory as the manifest grows.

- engine: photographs through the real detectors, slices off. Everything outside decoding, preprocessing, the models and
  the decoding of their outputs ("boxes") is the engine's: reading, NMS, scoring, Arrow, Parquet, syncing files to disk.
- stub: the ``synthetic`` ensemble (three detectors of 13 boxes, two targets, no image) through ``tallymill.sweep``,
  each size in a process of its own so that peaks of memory can be told apart.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tallymill.bench.decode import photographs
from tallymill.engine.settings import Settings
from tallymill.runners.sweep import Quiet, prepare
from tallymill.runners.worker import Worker

IMAGES, REPEATS = 500, 1
SMALL, LARGE = 10_000, 1_000_000
MODEL_STAGES = ("decode", "preprocess", "model", "boxes")
# 64-bit hashes of item ids and their sort: what the search for duplicates may hold.
DUPLICATE_BYTES = 16
# ``ru_maxrss`` of a child counts what its parent held when it was forked; the kernel's VmHWM does not.
_CHILD = """
import json, os, sys, threading, time, tallymill

def peak(process, command=""):
    try:
        if command not in open(f"/proc/{process}/cmdline").read():  # before exec a child still has its parent's memory
            return 0
        return next(int(line.split()[1]) * 1024 for line in open(f"/proc/{process}/status") if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0

def watch():
    while True:
        for thread in os.listdir("/proc/self/task"):
            try:
                children = open(f"/proc/self/task/{thread}/children").read().split()
            except OSError:
                continue
            for child in children:
                peaks[child] = max(peaks.get(child, 0), peak(child, "tallymill.runners.worker"))
        time.sleep(0.02)

peaks = {"none": 0}
threading.Thread(target=watch, daemon=True).start()
start = time.perf_counter()
summary = tallymill.sweep(sys.argv[1], sys.argv[2], ensemble="synthetic", workers=int(sys.argv[3]))
seconds = time.perf_counter() - start
assert summary.complete and summary.scored == summary.items, summary
print(json.dumps({"seconds": seconds, "parent_bytes": peak("self"), "worker_bytes": max(list(peaks.values()))}))
"""


def run(images: int = IMAGES, small: int = SMALL, large: int = LARGE, repeats: int = REPEATS) -> dict[str, Any]:
    """Measure both parts. Times are medians over ``repeats`` sweeps."""
    workers = min(2, len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        engine = {
            f"{size} items a shard": _engine(root / f"shards-{size}", images, size, repeats) for size in (images, 16)
        }
        stub = {str(rows): _stub(root, rows, workers) for rows in (small, large)}
    before, after = (stub[str(rows)] for rows in (small, large))
    held = [one["parent_bytes"] + workers * one["worker_bytes"] for one in (before, after)]
    return {
        "engine_ms_an_image": engine,
        "stub": stub,
        "stub_items_per_s": large / after["seconds"],
        "workers": workers,
        "memory_ratio": (held[1] - DUPLICATE_BYTES * large) / held[0],
    }


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    lines = ["milliseconds an image, slices off (median)"]
    columns = ("engine", "boxes", "decode", "preprocess", "model")
    lines.append(f"  {'':<20}" + "".join(f"{name:>12}" for name in columns))
    for name, ms in result["engine_ms_an_image"].items():
        lines.append(f"  {name:<20}" + "".join(f"{ms[column]:12.3f}" for column in columns))
    lines.append(f"stub sweep, {result['workers']} workers: {result['stub_items_per_s']:,.0f} items/s")
    for rows, one in result["stub"].items():
        parent, worker = (one[f"{who}_bytes"] / 2**20 for who in ("parent", "worker"))
        seconds = f"{one['seconds']:7.1f} s"
        lines.append(f"  {int(rows):>9,} rows: {seconds}, peak {parent:.0f} MiB (parent), {worker:.0f} MiB (worker)")
    lines.append(
        f"memory of all processes, large to small, less {DUPLICATE_BYTES} bytes an item: {result['memory_ratio']:.3f}"
    )
    return "\n".join(lines)


def _engine(root: Path, images: int, shard_items: int, repeats: int) -> dict[str, float]:
    """Milliseconds an image by stage: one worker in this process, models loaded before the clock starts."""
    manifest = _photographs(root, images)
    runs = []
    for k in range(repeats):
        prepared = prepare(manifest, root / f"run-{k}", settings=Settings(slices=()), shard_items=shard_items)
        worker = Worker(prepared.spec)
        start = time.perf_counter()
        summaries = [worker.score(shard, Quiet().advance) for shard in prepared.shards()]
        wall = time.perf_counter() - start
        worker.close()
        if sum(s.scored for s in summaries) != images:
            raise RuntimeError(f"only {sum(s.scored for s in summaries)} of {images} photographs were scored")
        stages = {stage: sum(s.seconds[stage] for s in summaries) for stage in MODEL_STAGES}
        runs.append({"engine": wall - sum(stages.values()), **stages})
    return {stage: statistics.median(one[stage] for one in runs) * 1000 / images for stage in runs[0]}


def _photographs(root: Path, images: int) -> Path:
    """A JSONL manifest of that many photographs, a few different ones over and over."""
    root.mkdir(parents=True)
    files = photographs(20)
    for k, data in enumerate(files):
        (root / f"{k}.jpg").write_bytes(data)
    manifest = root / "manifest.jsonl"
    with manifest.open("w", encoding="utf-8") as lines:
        for k in range(images):
            row = {"item_id": f"{k:05d}", "image": f"{k % len(files)}.jpg", "targets": {"cat": 1, "cup": 2}}
            lines.write(json.dumps(row) + "\n")
    return manifest


def _stub(root: Path, rows: int, workers: int) -> dict[str, float]:
    """One stub sweep in a process of its own: seconds and peaks of memory."""
    manifest = root / f"stub-{rows}.parquet"
    _stub_manifest(manifest, rows)
    command = [sys.executable, "-c", _CHILD, str(manifest), str(root / f"run-{rows}"), str(workers)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(finished.stdout)
    return measured


def _stub_manifest(path: Path, rows: int, chunk: int = 65_536) -> None:
    rng = np.random.default_rng(0)
    writer: pq.ParquetWriter | None = None
    for start in range(0, rows, chunk):
        size = min(chunk, rows - start)
        ids = pa.array([f"item-{k:08d}" for k in range(start, start + size)])
        pairs = pa.StructArray.from_arrays(
            [pa.array(["cat", "dog"] * size), pa.array(rng.integers(1, 101, 2 * size))], names=["category", "count"]
        )
        targets = pa.ListArray.from_arrays(pa.array(np.arange(0, 2 * size + 1, 2, dtype=np.int32)), pairs)
        table = pa.table({"item_id": ids, "image": ids, "targets": targets})
        writer = writer or pq.ParquetWriter(str(path), table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
