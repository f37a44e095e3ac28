"""How fast the scores and proposals of a whole RUN become the tables of NumBench: images/s, and the peak of memory.

A RUN of four systems with four images of each prompt, four prompts a core and three detectors is made in a temporary
folder, and analysed from its files in processes of its own: without intervals, with 2,000 resamples, and without
intervals where of 100 images 90 have targets that nothing covers and one failed, each with a text of its own. ``ROWS``
says how many images; for the full size of NumBench (5 GB on disk, some minutes to make)::

    python -c "from tallymill.bench.analyse import *; print(table(run(rows=10_240_000, repeats=1)))"
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.bench.rescore import CATEGORIES, Drawn, ids_of, make_run
from tallymill.engine.numbench.factors import APPEARANCES, COMPOSITIONS, COUNT_RANGES, FREE, GUIDED, MODIFIER_GROUPS
from tallymill.engine.numbench.scores import (
    ERROR,
    SCORED,
    TARGET_TYPE,
    UNCOVERED,
    Counts,
    ScorePlan,
    count_targets,
    scores_of,
)
from tallymill.engine.proposals import CountedBoxes
from tallymill.errors import TallymillError
from tallymill.kernels.count import Scores
from tallymill.runners.plan import Shard
from tallymill.runners.run import Run
from tallymill.runners.run_folder import plan_of, stamps_of
from tallymill.runners.sink import ScoresPart

ROWS, REPEATS, RESAMPLES = 1_024_000, 3, 2_000
SYSTEMS, SAMPLES, PROMPTS = 4, 4, 4  # the last: prompts a core
SHARD, DRAWN = 4_096, 8
_CHILD = """
import json, sys, time, tallymill
start = time.perf_counter()
result = tallymill.analyse(sys.argv[1], workers=int(sys.argv[2]), resamples=int(sys.argv[3]))
seconds = time.perf_counter() - start
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
scored = sum(row.scored for row in result.systems)
print(json.dumps({"seconds": seconds, "peak_bytes": peak, "scored": scored}))
"""


def run(rows: int = ROWS, repeats: int = REPEATS) -> dict[str, Any]:
    """Make a RUN of so many images and analyse it; of ``repeats`` measurements the medians."""
    workers = min(2, len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "RUN"
        found = {}
        for name, resamples, lossy in (
            ("without intervals", 0, False),
            (f"{RESAMPLES:,} resamples", RESAMPLES, False),
            ("most without a score", 0, True),
        ):
            if not path.exists() or lossy:
                shutil.rmtree(path, ignore_errors=True)
                make_scored_run(path, rows, lossy=lossy)
            scored = int((_statuses(np.arange(rows), lossy) == 0).sum())
            times = [_measure(path, workers, resamples, scored) for _ in range(repeats)]
            seconds = float(np.median([one["seconds"] for one in times]))
            peak = max(one["peak_bytes"] for one in times)
            found[name] = {"seconds": seconds, "images_per_s": rows / seconds, "peak_bytes": peak}
    return {"images": rows, "workers": workers, "analyses": found}


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    lines = [f"{result['images']:,} images of {SYSTEMS} systems, from Parquet to tables, {result['workers']} threads"]
    for name, one in result["analyses"].items():
        lines.append(
            f"  {name:<20}{one['seconds']:7.2f} s  {one['images_per_s']:12,.0f} images/s"
            f"  peak {one['peak_bytes'] / 2**20:,.0f} MiB"
        )
    return "\n".join(lines)


def _measure(path: Path, workers: int, resamples: int, scored: int) -> dict[str, float]:
    command = [sys.executable, "-c", _CHILD, str(path), str(workers), str(resamples)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(finished.stdout)
    if measured["scored"] != scored:
        raise TallymillError(f"{measured['scored']:.0f} images were scored and not {scored}: not timed")
    return measured


def make_scored_run(path: Path, rows: int, seed: int = 0, *, lossy: bool = False) -> None:
    """Write the RUN that a sweep over ``rows`` images would leave, scores and all, with the factors of NumBench.

    With ``lossy`` most of its images have no score (see ``_statuses``).
    """
    samples = make_run(path, rows, seed, DRAWN, shard_items=SHARD, alike=SYSTEMS * SAMPLES * PROMPTS)
    source = Run(path)
    plan, stamp = plan_of(source.record), stamps_of(source.record).scores
    scored = [_scored(drawn, plan) for drawn in samples]
    (path / "scores").mkdir()

    def write(shard: Shard) -> None:
        part = ScoresPart(path / "scores" / shard.part, stamp, shard)
        part.write(_rows(shard, samples[shard.index % DRAWN], *scored[shard.index % DRAWN], lossy))
        part.close({})

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(write, source.shards))


def _scored(drawn: Drawn, plan: ScorePlan) -> tuple[Counts, Scores]:
    boxes = np.arange(len(drawn.offsets), dtype=np.int64) * (len(drawn.target[0]) // (len(drawn.offsets) - 1))
    covered = np.ones(len(drawn.counts), np.bool_)
    requested = drawn.counts.astype(np.uint16)
    found = [
        CountedBoxes(drawn.offsets, requested, covered, boxes, target, confidence)
        for target, confidence in zip(drawn.target, drawn.confidence, strict=True)
    ]
    counts = count_targets(requested, drawn.offsets, found, plan)
    return counts, scores_of(counts, requested, drawn.offsets)


def _statuses(k: NDArray[np.int64], lossy: bool) -> NDArray[np.int64]:
    """The place of the status of image k in SCORED, ERROR, UNCOVERED: of a lossy RUN 9, 1 and 90 of 100."""
    return np.where(k % 100 < 90, 2, (k % 100 == 90).astype(np.int64)) if lossy else np.zeros(len(k), np.int64)


def _rows(shard: Shard, drawn: Drawn, counts: Counts, scores: Scores, lossy: bool) -> pa.RecordBatch:
    size = len(shard)
    offsets = drawn.offsets[: size + 1]
    targets = int(offsets[-1])
    k = np.arange(shard.start, shard.stop)
    prompt, core = k // (SYSTEMS * SAMPLES), k // (SYSTEMS * SAMPLES * PROMPTS)
    guided, modified = prompt % PROMPTS >= 2, prompt % 2 == 1
    number = np.diff(offsets)
    status = _statuses(k, lossy)
    none = status > 0
    of_target = np.repeat(status, number)
    largest = np.maximum.reduceat(drawn.counts[:targets], offsets[:-1])
    pairs = pa.StructArray.from_arrays(
        [
            _words(CATEGORIES, np.arange(targets) % len(CATEGORIES)),
            pa.array(drawn.counts[:targets].astype(np.uint16)),
            pa.array(scores.soft_count[:targets], mask=of_target > 0),
            pa.array(scores.hard_count[:targets], mask=of_target > 0),
            pa.array(np.where(of_target == 2, 0, counts.covering[:targets]).astype(np.uint8)),
        ],
        fields=list(TARGET_TYPE),
    )
    groups = pa.array(MODIFIER_GROUPS).take(pa.array(core % 3, mask=~modified))
    columns = {
        "item_id": ids_of(shard),
        "prompt_id": pa.array([f"s-{p:08d}" for p in prompt.tolist()]),
        "system": _words([f"system {s}" for s in range(SYSTEMS)], k % SYSTEMS),
        "sample": pa.array(k // SYSTEMS % SAMPLES),
        "core_id": pa.array([f"core-{c:07d}" for c in core.tolist()]),
        "composition": _words(COMPOSITIONS, number - 1),
        "layout": _words((FREE, *GUIDED), np.where(guided, 1 + core % 3, 0)),
        "appearance": _words(APPEARANCES, modified.astype(np.int64)),
        "modifier_group": groups,
        "count_range": _words(COUNT_RANGES, (largest - 1) // 25),
        "image_hash": pa.nulls(size, pa.string()),
        "targets": pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pairs),
        "cw_nps": pa.array(scores.cw_nps[:size], mask=none),
        "b_nps": pa.array(scores.b_nps[:size], mask=none),
        "status": _words((SCORED, ERROR, UNCOVERED), status),
        "error": pa.array(
            [f"image: fault {i}" if s == 1 else None for i, s in zip(k, status, strict=True)], pa.string()
        ),
    }
    return pa.record_batch(list(columns.values()), names=list(columns))


def _words(words: tuple[str, ...] | list[str], places: NDArray[np.int64]) -> pa.Array:
    return pa.array(list(words)).take(pa.array(places))
