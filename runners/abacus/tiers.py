"""``abacus tiers``: how difficult edits are, by their source images alone."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tallymill.engine.abacus.data import EDIT
from tallymill.engine.abacus.manifest import EditManifest
from tallymill.engine.abacus.panoptic import Panoptic, canonical
from tallymill.engine.abacus.tiers import TIERS
from tallymill.engine.abacus.tiers import tiers as tiers_of
from tallymill.errors import ImageError, UsageError
from tallymill.runners.files import appearing
from tallymill.runners.outputs import require_file

CUTS = b"tallymill.tier_cuts"


@dataclass(frozen=True, slots=True)
class EditTiers:
    """``edits`` by tier; ``cuts`` are the greatest difficulty of easy and of medium edits; ``without`` says why some
    have no tier: (reason, edits, the first of them).
    """

    out: str
    edits: dict[str, int]
    cuts: tuple[float, float]
    without: list[tuple[str, int, str]]


def tiers(
    manifest: str | Path | pa.Table,
    out: str | Path,
    *,
    panoptic: str | Path,
    panoptic_images: str | Path | None = None,
    cuts: tuple[float, float] | None = None,
) -> EditTiers:
    """Write the manifest with the tier of every edit as the Parquet file ``out``; its metadata have the cuts.

    An edit is ranked by the share of its source that instances cover, by its ``capacity``, and by how small the
    instances of its category are; one that lacks any of these gets no tier, and is told. Raises ``ManifestError`` for
    faulty rows and annotations, ``UsageError`` where no edit can be ranked, or ``cuts`` do not rise.
    """
    inputs = (None if isinstance(manifest, pa.Table) else manifest, panoptic)
    path = require_file(Path(out), *inputs)
    folder = None if panoptic_images is None else Path(panoptic_images)
    annotations = Panoptic(Path(panoptic), folder)
    rows = [row for batch in EditManifest(manifest).batches() for row in batch.to_pylist()]
    measured: list[tuple[int, tuple[float, float, float]]] = []
    why: dict[str, list[str]] = {}
    for place, row in enumerate(rows):
        found = _measured(row, annotations)
        if isinstance(found, str):
            why.setdefault(found, []).append(row["edit_id"])
        else:
            measured.append((place, found))
        row["tier"] = None
    if not measured:
        told = ", ".join(why) or "there are none"
        raise UsageError(f"no edit can be ranked: {told}")
    coverage, capacity, area = np.array([values for _, values in measured], np.float64).T
    ranked = tiers_of(coverage, capacity, area, cuts)
    for (place, _), name in zip(measured, ranked.names, strict=True):
        rows[place]["tier"] = name
    table = pa.Table.from_pylist(rows, schema=EDIT).drop_columns(["error"])
    with appearing(path) as temporary:
        pq.write_table(table.replace_schema_metadata({CUTS: json.dumps(ranked.cuts).encode()}), temporary)
    numbers = Counter(ranked.names)
    without = [(reason, len(ids), ids[0]) for reason, ids in sorted(why.items())]
    return EditTiers(str(path), {name: numbers[name] for name in TIERS}, ranked.cuts, without)


def _measured(row: dict[str, Any], annotations: Panoptic) -> tuple[float, float, float] | str:
    """Coverage, capacity and median area of an edit's source, or what it lacks."""
    if row["capacity"] is None:
        return "no capacity"
    annotation = annotations.of(row["source"], row["image_id"])
    if annotation is None:
        return "no annotation of its source"
    try:
        truth = annotations.read(annotation, {row["category"]: canonical(row["category"])}, None)
    except ImageError as exc:
        return exc.message
    areas = truth.instances[row["category"]].masks.area
    if not len(areas):
        return "no annotated instance of its category"
    return truth.covered, float(row["capacity"]), float(np.median(areas))
