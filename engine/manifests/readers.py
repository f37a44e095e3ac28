"""Which reader takes a manifest, told by what is on the disk and by the file's extension."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from tallymill.engine.manifests.archive import archive_reader
from tallymill.engine.manifests.base import BATCH_ROWS, Faults, RawBatch, Reader, canonical_array, canonical_type
from tallymill.engine.manifests.folder import MetadataFolderReader, PlainFolderReader, is_image_name, metadata_file
from tallymill.engine.manifests.parquet_file import ParquetReader, part_files
from tallymill.engine.manifests.text_files import CsvReader, jsonl_reader
from tallymill.errors import ManifestError

_TABLE_FILES = (".parquet", ".jsonl", ".ndjson", ".csv")
FORMS = (
    "a manifest is .parquet, .jsonl (.ndjson), .csv, .tar, .zip, a folder of Parquet part files or a folder of images"
)


class TableReader:
    """Reads a ``pa.Table``; images must be named, not stored."""

    name = "table"

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        fields = [pa.field(f.name, canonical_type(f.type)) for f in table.schema]
        self.schema = pa.schema(fields)
        if len(set(self.schema.names)) < len(fields):
            raise ManifestError("table: a column name stands more than once")
        kind = self.schema.field("image").type if "image" in self.schema.names else None
        if kind is not None and (pa.types.is_binary(kind) or pa.types.is_struct(kind)):
            raise ManifestError(
                "table: column image holds bytes, which cannot be read again from a table",
                hint="write the table to a Parquet file and give its path",
            )

    def batches(self, faults: Faults) -> Iterator[RawBatch]:  # noqa: ARG002 - values are looked at later
        """Yield the table's rows."""
        first = 1
        for batch in self._table.to_batches(max_chunksize=BATCH_ROWS):
            columns = [canonical_array(column) for column in batch.columns]
            data = pa.RecordBatch.from_arrays(columns, schema=self.schema)
            yield RawBatch(data, self.name, "row", np.arange(first, first + batch.num_rows))
            first += batch.num_rows


def open_reader(manifest: str | Path | pa.Table) -> Reader:
    """The reader of a manifest in any form."""
    if isinstance(manifest, pa.Table):
        return TableReader(manifest)
    path = Path(manifest)
    if path.is_dir():
        return _open_folder(path.absolute())
    if not path.exists():
        remote = "://" in str(manifest)
        raise ManifestError(f"{manifest}: no such file or folder", hint="fetch it first" if remote else FORMS)
    kind = path.suffix.lower()
    if kind in (".tar", ".zip"):
        return archive_reader(path)
    if kind in _TABLE_FILES:
        return open_table_file(path)
    raise ManifestError(f"{path.name}: {kind or 'a file without extension'} is not a form of manifest", hint=FORMS)


def _open_folder(root: Path) -> Reader:
    metadata = metadata_file(root)
    if metadata is not None:
        return MetadataFolderReader(root, metadata)
    parts = part_files(root)
    if not parts:
        return PlainFolderReader(root)
    images = sorted(entry.name for entry in root.iterdir() if is_image_name(entry.name))
    if images:
        raise ManifestError(
            f"{root.name}: has both Parquet files ({parts[0].name}) and images ({images[0]})",
            hint="give the Parquet file itself, or keep the images in a folder of their own",
        )
    return ParquetReader(parts, root)


def open_table_file(path: Path) -> Reader:
    """A reader of a Parquet, JSONL or CSV file."""
    kind = path.suffix.lower()
    if not path.is_file():
        raise ManifestError(f"{path}: no such file")
    if kind == ".parquet":
        return ParquetReader([path], path.parent)
    if kind in (".jsonl", ".ndjson"):
        return jsonl_reader(path)
    if kind == ".csv":
        return CsvReader(path)
    raise ManifestError(f"{path.name}: {kind or 'no extension'} is none of {', '.join(_TABLE_FILES)}")
