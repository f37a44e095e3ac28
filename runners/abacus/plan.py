"""A manifest of edits, read and checked once, and laid out in the RUN for its workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tallymill.engine.abacus.manifest import EditManifest
from tallymill.engine.abacus.panoptic import Panoptic
from tallymill.engine.manifests.digest import Digest
from tallymill.errors import ManifestError
from tallymill.runners.plan import SHARDS_AIMED_AT, ItemFile, Shard, blocks, item_writer

# An edit takes a hundred times as long as an image of a sweep.
LEAST_SHARD, MOST_SHARD = 4, 512
PLACE = "place"


@dataclass(frozen=True, slots=True)
class EditFacts:
    """What a manifest holds: rows, different sources, a digest of what rows say, and columns that nothing asked for.

    ``annotations`` are the PNG files of its sources.
    """

    rows: int
    sources: int
    sha256: str
    ignored: tuple[str, ...]
    annotations: frozenset[Path] = frozenset()


def default_shard_edits(rows: int, sources: int) -> int:
    """ceil(N / 256) clamped to 4 .. 512, and brought to a multiple of the edits that a source has on the average, so
    that shards end where sources do when all have as many. From the manifest alone: a rerun cuts the same shards.
    """
    edits = min(max(-(-rows // SHARDS_AIMED_AT), LEAST_SHARD), MOST_SHARD)
    each = -(-rows // sources)
    if each > MOST_SHARD:
        return edits
    return min(-(-edits // each), MOST_SHARD // each) * each


def lay_out_edits(manifest: str | Path | pa.Table, items: Path, panoptic: Panoptic | None = None) -> EditFacts:
    """Check the whole manifest, writing its rows to ``items``, those of one source together (see ``grouped``).

    Faults are a ``ManifestError``.
    """
    edits, digest = EditManifest(manifest), Digest()
    files: set[Path] = set()
    batches = []
    for batch in edits.batches():
        digest.update(batch)
        if panoptic is not None:
            files.update(_annotations(batch, panoptic))
        batches.append(batch)
    if not batches:
        raise ManifestError(f"{edits.name}: no edits", hint="a manifest needs at least one row")
    table, sources = grouped(pa.Table.from_batches(batches))
    with item_writer(items, table.schema) as writer:
        for block in blocks(iter(table.to_batches())):
            writer.write_batch(block)
    return EditFacts(len(table), sources, digest.hexdigest(), tuple(edits.ignored), frozenset(files))


def grouped(edits: pa.Table) -> tuple[pa.Table, int]:
    """The rows with those of one source together, sources and the rows of each in the order in which they come, and
    how many sources there are. A column ``PLACE`` says where each row stood.
    """
    source = pc.dictionary_encode(edits["source"]).unify_dictionaries().combine_chunks()
    order = np.argsort(source.indices.to_numpy(), kind="stable")
    return edits.take(pa.array(order)).append_column(PLACE, pa.array(order)), len(source.dictionary)


def places(items: Path, shards: Sequence[Shard]) -> NDArray[np.int64]:
    """Where each row of the shards stands in the manifest."""
    with ItemFile(items) as file:
        found = [batch[PLACE].to_numpy() for shard in shards for batch in file.rows(shard)]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _annotations(batch: pa.RecordBatch, panoptic: Panoptic) -> Iterator[Path]:
    for source, image_id in zip(batch["source"].to_pylist(), batch["image_id"].to_pylist(), strict=True):
        annotation = panoptic.of(source, image_id)
        if annotation is not None:
            yield annotation.file
