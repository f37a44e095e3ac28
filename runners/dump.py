"""Every stored proposal as a flat row, for an audit: COCO results JSON or Parquet, raw and calibrated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tallymill.engine.batch import ItemBatch
from tallymill.engine.detectors.coco import COCO_80, COCO_IDS
from tallymill.engine.numbench.scores import MAX_COUNT
from tallymill.engine.proposals import Proposals
from tallymill.engine.words import counted
from tallymill.errors import RunError, UsageError
from tallymill.kernels.count import calibrate
from tallymill.runners.files import appearing
from tallymill.runners.outputs import require_file
from tallymill.runners.run import Run
from tallymill.runners.run_folder import plan_of

FORMATS = {"parquet": ".parquet", "coco": ".json"}
SCHEMA = pa.schema(
    [
        ("item_id", pa.string()),
        ("detector", pa.string()),
        ("target", pa.uint8()),
        ("category", pa.string()),
        ("requested", pa.uint16()),
        ("confidence", pa.float32()),
        ("calibrated", pa.float32()),
        ("threshold", pa.float64()),
        ("kept", pa.bool_()),
        ("counted_soft", pa.bool_()),
        ("counted_hard", pa.bool_()),
        ("box", pa.list_(pa.float32(), 4)),
    ]
)
# Categories outside COCO get ids from here on, by name, so that the ids of the 80 stay what tools expect.
FIRST_OTHER_ID = 1001


def dump(
    run: str | Path | Run,
    out: str | Path,
    *,
    form: str | None = None,
    detectors: str | Iterable[str] = (),
    partial: bool = False,
) -> int:
    """Write every stored proposal of a RUN to the file ``out``; give their number.

    ``form`` follows from the name of the file where it is not given: .parquet, or .json for "coco".
    ``form`` "parquet" has the columns of ``SCHEMA``; "coco" is a results list with ``image_id`` (the item id),
    ``category_id`` (the COCO id, or one from 1,001 for other categories), ``bbox`` [x, y, width, height] in pixels,
    ``score`` (raw), and beside the standard the calibrated confidence, the detector and whether NMS kept the box.
    A RUN that is not complete is a ``RunError``; with ``partial`` the images of shards that are not done are left out.
    """
    source = run if isinstance(run, Run) else Run(run)
    target = require_file(Path(out), outside=[source])
    detectors = (detectors,) if isinstance(detectors, str) else tuple(detectors)
    form = form or next((name for name, suffix in FORMATS.items() if Path(out).suffix == suffix), None)
    if form is None:
        raise UsageError(f"--out {out}: neither .parquet nor .json", hint="say which with --format parquet or coco")
    if form not in FORMATS:
        raise UsageError(f"--format {form}: must be one of {', '.join(FORMATS)}")
    unknown = set(detectors) - set(source.detectors)
    if unknown:
        raise UsageError(f"no detector {sorted(unknown)[0]!r} here", hint=f"one of {', '.join(source.detectors)}")
    if not partial:
        _require_complete(source, detectors)
    rows = _rows(source, detectors or source.detectors)
    with appearing(target) as path:
        return _write_parquet(path, rows) if form == "parquet" else _write_coco(path, rows, _other_ids(source))


def _require_complete(source: Run, detectors: Sequence[str]) -> None:
    lacks = source.lacks(detectors)
    for name, shard in lacks:
        source.proposals_of_shard(name, shard)  # what was scored and is gone or damaged is told as that
    if lacks:
        undone = len({shard for _, shard in lacks})
        raise RunError(
            f"{source.path} is not complete: {undone:,} of {counted(len(source.shards), 'shard')} not done yet",
            hint="complete it first: run its sweep again, which continues where it stopped; "
            "with partial=True their images are left out",
        )


def _rows(source: Run, detectors: Sequence[str]) -> Iterator[pa.Table]:
    plan = plan_of(source.record)
    schedule = np.asarray(plan.schedule)
    for shard in source.shards:
        for name in detectors:
            table = source.proposals_of_shard(name, shard)
            if table is None:
                continue
            row = 0
            for batch in source.items(shard, table):
                proposals = Proposals.from_arrow(table.slice(row, len(batch)))
                yield _flat(batch, name, proposals, source.taus[name], schedule)
                row += len(batch)


def _flat(batch: ItemBatch, detector: str, found: Proposals, tau: float, schedule: np.ndarray[Any, Any]) -> pa.Table:
    targets = batch.targets
    item = np.repeat(np.arange(len(batch)), np.diff(found.offsets))
    flat = targets.offsets[item] + found.target
    category = pa.DictionaryArray.from_arrays(pa.array(targets.codes[flat]), pa.array(targets.categories, pa.string()))
    rho = calibrate(found.confidence, tau)
    least = schedule[np.clip(targets.count[flat], 1, MAX_COUNT) - 1]
    kept = np.ones(len(item), np.bool_) if found.kept is None else found.kept
    columns = [
        found.item_id.take(pa.array(item)),
        pa.array([detector] * len(item), pa.string()),
        pa.array(found.target),
        category.cast(pa.string()),
        pa.array(targets.requested[flat]),
        pa.array(found.confidence),
        pa.array(rho),
        pa.array(least),
        pa.array(kept),
        pa.array(kept & (rho.astype(np.float64) >= least)),
        pa.array(kept & (found.confidence >= np.float32(0.5))),
        pa.FixedSizeListArray.from_arrays(pa.array(found.boxes.reshape(-1)), 4),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _write_parquet(path: Path, rows: Iterator[pa.Table]) -> int:
    total = 0
    # Opened here: Arrow opens no file of a name that is not UTF-8.
    with path.open("wb") as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for table in rows:
            writer.write_table(table)
            total += table.num_rows
    return total


def _write_coco(path: Path, rows: Iterator[pa.Table], others: dict[str, int]) -> int:
    ids = {**dict(zip(COCO_80, COCO_IDS, strict=True)), **others}
    total = 0
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        for table in rows:
            for row in table.to_pylist():
                file.write((",\n" if total else "\n") + json.dumps(_coco(row, ids), ensure_ascii=False))
                total += 1
        file.write("\n]\n")
    return total


def _coco(row: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    left, top, right, bottom = row["box"]
    return {
        "image_id": row["item_id"],
        "category_id": ids.get(row["category"]),
        "category": row["category"],
        "bbox": [left, top, right - left, bottom - top],
        "score": row["confidence"],
        "calibrated": row["calibrated"],
        "kept": row["kept"],
        "detector": row["detector"],
    }


def _other_ids(source: Run) -> dict[str, int]:
    """Ids over the whole manifest: they depend neither on the detectors asked for nor on how far the sweep came."""
    others = sorted(source.categories() - set(COCO_80))
    return {name: FIRST_OTHER_ID + k for k, name in enumerate(others)}
