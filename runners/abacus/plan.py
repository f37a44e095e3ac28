"""A manifest of edits, read and checked once, and laid out in the RUN for its workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tallymill.engine.abacus.manifest import EditManifest
from tallymill.engine.abacus.panoptic import Panoptic
from tallymill.engine.manifests.digest import Digest
from tallymill.errors import ManifestError
from tallymill.runners.plan import SHARDS_AIMED_AT, blocks, item_writer

# An edit takes a hundred times as long as an image of a sweep.
LEAST_SHARD, MOST_SHARD = 4, 512


@dataclass(frozen=True, slots=True)
class EditFacts:
    """What a manifest holds: rows, a digest of what they say, and the columns that nothing asked for.

    ``annotations`` are the PNG files of its sources.
    """

    rows: int
    sha256: str
    ignored: tuple[str, ...]
    annotations: frozenset[Path] = frozenset()


def default_shard_edits(rows: int) -> int:
    """ceil(N / 256) clamped to 4 .. 512: from the manifest alone, so that a rerun cuts the same shards."""
    return min(max(-(-rows // SHARDS_AIMED_AT), LEAST_SHARD), MOST_SHARD)


def lay_out_edits(manifest: str | Path | pa.Table, items: Path, panoptic: Panoptic | None = None) -> EditFacts:
    """Check the whole manifest, writing its rows to ``items``. Faults are a ``ManifestError``."""
    edits, digest, rows = EditManifest(manifest), Digest(), 0
    files: set[Path] = set()
    writer: pa.RecordBatchFileWriter | None = None

    def checked() -> Iterator[pa.RecordBatch]:
        for batch in edits.batches():
            digest.update(batch)
            if panoptic is not None:
                files.update(_annotations(batch, panoptic))
            yield batch

    try:
        for block in blocks(checked()):
            if writer is None:
                writer = item_writer(items, block.schema)
            writer.write_batch(block)
            rows += block.num_rows
    finally:
        if writer is not None:
            writer.close()
    if not rows:
        raise ManifestError(f"{edits.name}: no edits", hint="a manifest needs at least one row")
    return EditFacts(rows, digest.hexdigest(), tuple(edits.ignored), frozenset(files))


def _annotations(batch: pa.RecordBatch, panoptic: Panoptic) -> Iterator[Path]:
    for source, image_id in zip(batch["source"].to_pylist(), batch["image_id"].to_pylist(), strict=True):
        annotation = panoptic.of(source, image_id)
        if annotation is not None:
            yield annotation.file
