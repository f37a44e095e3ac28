"""An item is an image and the counts requested of it; a manifest is a table of items in one of several forms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tallymill.engine.manifests.base import BATCH_ROWS, CORE_COLUMNS, RESERVED, TARGETS, Faults
from tallymill.engine.manifests.canonical import Canonical, ManifestOptions
from tallymill.engine.manifests.digest import Digest
from tallymill.engine.manifests.duplicates import DuplicateCheck
from tallymill.engine.manifests.prompts import PromptsTable
from tallymill.engine.manifests.readers import FORMS, open_reader
from tallymill.errors import ManifestError

__all__ = [
    "BATCH_ROWS",
    "CORE_COLUMNS",
    "RESERVED",
    "TARGETS",
    "Digest",
    "DuplicateCheck",
    "ManifestOptions",
    "PromptsTable",
    "manifest_root",
    "open_prompts",
    "read_items",
]

_NO_OPTIONS = ManifestOptions()


def open_prompts(options: ManifestOptions) -> PromptsTable | None:
    """The prompts file that is named, read and checked; None where none is."""
    return None if options.prompts is None else PromptsTable(options.prompts)


def read_items(
    manifest: str | Path | pa.Table, options: ManifestOptions = _NO_OPTIONS, prompts: PromptsTable | None = None
) -> Iterator[pa.RecordBatch]:
    """Stream a manifest as canonical batches of at most ``BATCH_ROWS`` rows, all of one schema.

    A batch has ``CORE_COLUMNS`` and then, as factors, every other column of the manifest and of the prompts file.
    ``error`` is null but for rows that SPEC makes error rows (a count outside 1..100, a repeated category). Faulty
    rows are left out, and after the last batch one ``ManifestError`` lists them (the first 20, and how many); so
    nothing may be scored before the stream has been read to its end once. What makes every row faulty is raised
    before the first batch. ``prompts`` is what ``open_prompts`` gives, for a caller that keeps it.
    """
    reader = open_reader(manifest)
    prompts = open_prompts(options) if prompts is None else prompts
    canonical = Canonical(reader.name, reader.schema, options, prompts)
    faults = Faults(reader.name)
    rows = 0
    for raw in reader.batches(faults):
        batch = canonical.batch(raw, faults)
        rows += batch.num_rows
        if batch.num_rows:
            yield batch
    faults.raise_if_any()
    if not rows:
        raise ManifestError(f"{reader.name}: has no items", hint=FORMS)


def manifest_root(manifest: str | Path | pa.Table) -> str | None:
    """The folder against which relative image references are resolved; None for a table."""
    if isinstance(manifest, pa.Table):
        return None
    path = Path(manifest).absolute()
    return str(path if path.is_dir() else path.parent)
