"""How fast the stored proposals of a whole RUN become a table: images/s, and the peak of memory.

A RUN of three detectors with 13 boxes an image each is made in a temporary folder, one or two requested categories an
image, and scored from its files in processes of its own: with the built-in score, and with one that a user wrote.
``ROWS`` says how many images; for the full size of NumBench (4.3 GB on disk, two or three minutes to make)::

    python -c "from tallymill.bench.rescore import *; print(table(run(rows=10_240_000)))"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.ensemble import load_ensemble
from tallymill.engine.items import CORE_COLUMNS, TARGETS
from tallymill.engine.numbench.scores import ScorePlan
from tallymill.engine.proposals import SCHEMA, Proposals
from tallymill.engine.settings import Settings
from tallymill.errors import TallymillError
from tallymill.runners.files import write_json
from tallymill.runners.parts import PartWriter
from tallymill.runners.plan import BLOCK_ROWS, Shard, default_shard_items, shards_of
from tallymill.runners.run_folder import RunFolder, make_record, stamps_of

ROWS, REPEATS = 1_000_000, 3
BOXES = 13  # of each of three detectors
CATEGORIES = ("raccoon", "mug")
USER_SCORE = """
import numpy as np

def within_a_fifth(soft, hard, requested):
    return np.mean(np.abs(soft - requested) <= 0.2 * requested)
"""
_CHILD = """
import json, sys, time, tallymill
start = time.perf_counter()
result = tallymill.rescore(sys.argv[1], workers=int(sys.argv[2]), score=sys.argv[3] or None)
seconds = time.perf_counter() - start
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"seconds": seconds, "peak_bytes": peak, "scored": result.scored, "cw_nps": result.cw_nps}))
"""


def run(rows: int = ROWS, repeats: int = REPEATS) -> dict[str, Any]:
    """Make a RUN of so many images and score it; of ``repeats`` measurements the medians."""
    workers = min(2, len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_run(root / "RUN", rows)
        (root / "mine.py").write_text(USER_SCORE)
        scores = {"built in": "", "and a user's": f"{root / 'mine.py'}:within_a_fifth"}
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in scores}
        for _ in range(repeats):
            for name, score in scores.items():
                measured[name].append(_measure(root / "RUN", workers, score, rows))
    return {
        "images": rows,
        "proposals_an_image": 3 * BOXES,
        "workers": workers,
        "scores": {
            name: {
                "seconds": float(np.median([one["seconds"] for one in times])),
                "images_per_s": rows / float(np.median([one["seconds"] for one in times])),
                "peak_bytes": max(one["peak_bytes"] for one in times),
            }
            for name, times in measured.items()
        },
    }


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    lines = [
        f"{result['images']:,} images of {result['proposals_an_image']} proposals, from Parquet to a table, "
        f"{result['workers']} threads"
    ]
    for name, one in result["scores"].items():
        lines.append(
            f"  {name:<14}{one['seconds']:7.2f} s  {one['images_per_s']:12,.0f} images/s"
            f"  peak {one['peak_bytes'] / 2**20:.0f} MiB"
        )
    return "\n".join(lines)


def _measure(path: Path, workers: int, score: str, rows: int) -> dict[str, float]:
    command = [sys.executable, "-c", _CHILD, str(path), str(workers), score]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(finished.stdout)
    if measured["scored"] != rows:
        raise TallymillError(f"only {measured['scored']:.0f} of {rows} images were scored: not timed")
    return measured


class Drawn(NamedTuple):
    """One shard's worth of requests (``offsets`` int64 [I+1], ``counts`` int64 [T]) and three detectors' boxes."""

    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]
    target: list[NDArray[np.uint8]]
    confidence: list[NDArray[np.float32]]
    boxes: list[NDArray[np.float32]]


def make_run(
    path: Path, rows: int, seed: int = 0, drawn: int = 8, *, shard_items: int | None = None, alike: int = 1
) -> list[Drawn]:
    """Write the RUN that a sweep over ``rows`` items would leave, but for its scores; what was drawn is given.

    Requests and boxes repeat after ``drawn`` shards; ids do not. ``alike`` items in a row have the same requests.
    """
    ensemble, size = load_ensemble("synthetic"), shard_items or default_shard_items(rows)
    record = make_record(
        manifest={"source": "made up", "image_root": None, "rows": rows, "sha256": f"{seed:064x}"},
        shard_items=size,
        ensemble=ensemble,
        model_hashes={detector.name: None for detector in ensemble.detectors},
        settings=Settings(slices=()),
        plan=ScorePlan(tuple(d.name for d in ensemble.detectors), tuple(d.tau for d in ensemble.detectors)),
        keep_suppressed=False,
        created="2026-01-01T00:00:00+00:00",
    )
    write_json(path / "run.json", record)
    rng = np.random.default_rng(seed)
    samples = [_draw(rng, size, alike) for _ in range(drawn)]
    shards = shards_of(rows, size)
    _write_items(RunFolder(path).items_path, shards, samples)
    for name in stamps_of(record).detectors:
        (path / "proposals" / name).mkdir(parents=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda shard: _write_proposals(path, record, shard, samples[shard.index % drawn]), shards))
    return samples


def _draw(rng: np.random.Generator, items: int, alike: int) -> Drawn:
    targets = np.repeat(rng.integers(1, 3, -(-items // alike)), alike)[:items]
    boxes = items * BOXES
    corner, side = (np.round(rng.uniform(low, high, (3, boxes, 2)) * 8) / 8 for low, high in ((0, 900), (10, 120)))
    place = rng.integers(0, 255, (3, boxes)) % np.repeat(targets, BOXES)
    return Drawn(
        offsets=np.concatenate([[0], np.cumsum(targets)]).astype(np.int64),
        counts=_counts(rng, targets, alike),
        target=list(np.sort(place.reshape(3, items, BOXES), axis=2).reshape(3, boxes).astype(np.uint8)),
        confidence=list((0.05 + 0.95 * rng.beta(0.7, 1.2, (3, boxes))).astype(np.float32)),
        boxes=list(np.concatenate([corner, corner + side], axis=2).astype(np.float32)),
    )


def _counts(rng: np.random.Generator, targets: NDArray[np.int64], alike: int) -> NDArray[np.int64]:
    """A count a target, the same for all items of a run of ``alike``."""
    pairs = np.repeat(rng.integers(1, 101, (-(-len(targets) // alike), 2)), alike, axis=0)[: len(targets)]
    return pairs[np.arange(2) < targets[:, None]]


def ids_of(shard: Shard) -> pa.Array:
    """The ids of a shard's items."""
    return pa.array([f"item-{k:08d}" for k in range(shard.start, shard.stop)])


def _write_items(path: Path, shards: list[Shard], samples: list[Drawn]) -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(str(path), CORE_COLUMNS, options=options) as writer:
        waiting = CORE_COLUMNS.empty_table()
        for shard in shards:
            waiting = pa.concat_tables([waiting, _items(shard, samples[shard.index % len(samples)])])
            whole = len(waiting) - len(waiting) % BLOCK_ROWS if shard is not shards[-1] else len(waiting)
            for start in range(0, whole, BLOCK_ROWS):
                block = waiting.slice(start, min(BLOCK_ROWS, whole - start)).combine_chunks()
                writer.write_batch(block.to_batches()[0])
            waiting = waiting.slice(whole)


def _items(shard: Shard, drawn: Drawn) -> pa.Table:
    rows = len(shard)
    offsets = drawn.offsets[: rows + 1]
    names = pa.array(CATEGORIES).take(pa.array(np.arange(offsets[-1]) % len(CATEGORIES)))
    pairs = pa.StructArray.from_arrays([names, pa.array(drawn.counts[: offsets[-1]])], fields=list(TARGETS.value_type))
    ids = ids_of(shard)
    known = {
        "item_id": ids,
        "image": ids,
        "system": pa.array([f"system {k % 4}" for k in range(shard.start, shard.stop)]),
        "targets": pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pairs, type=TARGETS),
    }
    return pa.table([known.get(f.name, pa.nulls(rows, f.type)) for f in CORE_COLUMNS], schema=CORE_COLUMNS)


def _write_proposals(path: Path, record: dict[str, Any], shard: Shard, drawn: Drawn) -> None:
    rows = len(shard)
    targets, boxes = int(drawn.offsets[rows]), rows * BOXES
    ids = ids_of(shard)
    for k, (name, stamp) in enumerate(stamps_of(record).detectors.items()):
        found = Proposals(
            item_id=ids,
            image_hash=pa.nulls(rows, pa.string()),
            sizes=np.full((rows, 2), 1024, np.int32),
            errors=[None] * rows,
            saturated=np.zeros(rows, np.bool_),
            target_offsets=drawn.offsets[: rows + 1],
            requested=drawn.counts[:targets].astype(np.uint16),
            covered=np.ones(targets, np.bool_),
            offsets=np.arange(rows + 1, dtype=np.int64) * BOXES,
            target=drawn.target[k][:boxes],
            confidence=drawn.confidence[k][:boxes],
            boxes=drawn.boxes[k][:boxes],
        )
        writer = PartWriter(path / "proposals" / name / shard.part, SCHEMA, stamp, shard)
        writer.write(found.to_arrow())
        writer.close({"items": rows, "failed": 0, "proposals": boxes, "dropped": 0, "saturated": 0})
