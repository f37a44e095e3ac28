"""Parquet manifests: one file or a folder of part files, read a few thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tallymill.engine.manifests.base import BATCH_ROWS, Faults, RawBatch, canonical_array, canonical_type
from tallymill.errors import ManifestError

# Column chunks are streamed through a buffer of this size: row groups of any size take the same memory.
_BUFFER = 1 << 18
# What pyarrow raises on a file that is damaged; the last of a column's name.
_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)


@dataclass(frozen=True, slots=True)
class _Part:
    path: Path
    label: str
    schema: pa.Schema
    holds_bytes: bool


class ParquetReader:
    """Reads part files in the order given. Images stored as bytes are named ``FILE#row=N`` (from 0), never read."""

    def __init__(self, paths: list[Path], root: Path) -> None:
        self.name = paths[0].name if len(paths) == 1 else root.name
        self._parts = [_open_part(path, path.relative_to(root).as_posix()) for path in paths]
        self.schema = self._unify()

    def batches(self, faults: Faults) -> Iterator[RawBatch]:  # noqa: ARG002 - Parquet rows are faulty by value only
        """Yield the rows of all parts; every batch has the columns of ``schema`` in its order."""
        for part in self._parts:
            yield from self._part_batches(part)

    def _part_batches(self, part: _Part) -> Iterator[RawBatch]:
        wanted = [name for name in self.schema.names if not (part.holds_bytes and name == "image")]
        first = 0
        try:
            with pq.ParquetFile(part.path, buffer_size=_BUFFER, pre_buffer=False) as file:
                columns = [name for name in wanted if name != "image" or not _is_struct(part.schema)]
                columns += ["image.path"] if len(columns) < len(wanted) else []
                for batch in file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
                    data = self._conform(batch, part, first)
                    rows = np.arange(first + 1, first + 1 + batch.num_rows)
                    yield RawBatch(data, part.label, "row", rows)
                    first += batch.num_rows
        except _UNREADABLE as error:
            raise ManifestError(f"{part.label}: cannot be read after row {first}: {error}") from error

    def _conform(self, batch: pa.RecordBatch, part: _Part, first: int) -> pa.RecordBatch:
        columns = []
        for field in self.schema:
            if field.name == "image" and part.holds_bytes:
                names = [f"{part.label}#row={row}" for row in range(first, first + batch.num_rows)]
                columns.append(pa.array(names, pa.string()))
                continue
            column = batch.column(field.name)
            if field.name == "image" and pa.types.is_struct(column.type):
                column = column.field("path")
            columns.append(canonical_array(column).cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _unify(self) -> pa.Schema:
        """One schema for all parts: the same set of columns, of types that differ in nothing but encoding or width."""
        first = self._parts[0]
        fields: dict[str, pa.DataType] = {}
        for part in self._parts:
            names = set(part.schema.names)
            if differing := names ^ set(first.schema.names):
                raise ManifestError(
                    f"{part.label}: its columns differ from those of {first.label}: {', '.join(sorted(differing))}",
                    hint="all part files of a manifest need the same columns",
                )
            for field in part.schema:
                kind = pa.string() if field.name == "image" else _canonical(part, field)
                known = fields.setdefault(field.name, kind)
                fields[field.name] = _wider(known, kind, f"{part.label}: column {field.name}")
        return pa.schema([pa.field(name, kind) for name, kind in fields.items()])


def part_files(folder: Path) -> list[Path]:
    """The part files of a folder by name; hidden ones and ``_metadata`` files are none."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() == ".parquet" and p.name[0] not in "._")


def _open_part(path: Path, label: str) -> _Part:
    try:
        with pq.ParquetFile(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
    except _UNREADABLE as error:
        raise ManifestError(f"{label}: not a Parquet file that can be read: {error}") from error
    repeated = {name for name in schema.names if schema.names.count(name) > 1}
    if repeated:
        raise ManifestError(f"{label}: column {', '.join(sorted(repeated))} stands more than once")
    return _Part(path, label, schema, _holds_bytes(schema, metadata, label))


def _holds_bytes(schema: pa.Schema, metadata: pq.FileMetaData, label: str) -> bool:
    """Whether the images stand in the file itself: a binary column, or a struct whose bytes are not all null."""
    if "image" not in schema.names:
        return False
    kind = canonical_type(schema.field("image").type)
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return True
    if pa.types.is_string(kind) or pa.types.is_null(kind):
        return False
    names = [f.name for f in kind] if pa.types.is_struct(kind) else []
    if "bytes" not in names or not pa.types.is_binary(kind.field("bytes").type):
        raise ManifestError(f"{label}: column image is of type {kind}, not text, bytes or (bytes, path)")
    return "path" not in names or not _all_null(metadata, "image.bytes")


def _all_null(metadata: pq.FileMetaData, column: str) -> bool:
    for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
        for chunk in (group.column(i) for i in range(group.num_columns)):
            statistics = chunk.statistics if chunk.path_in_schema == column else None
            if chunk.path_in_schema == column and (statistics is None or statistics.null_count != group.num_rows):
                return False
    return True


def _is_struct(schema: pa.Schema) -> bool:
    return "image" in schema.names and pa.types.is_struct(canonical_type(schema.field("image").type))


def _canonical(part: _Part, field: pa.Field) -> pa.DataType:
    try:
        return canonical_type(field.type)
    except ManifestError as error:
        raise ManifestError(f"{part.label}: column {field.name}: {error.message}") from None


def _wider(known: pa.DataType, kind: pa.DataType, where: str) -> pa.DataType:
    """The type that holds both: equal ones, a null type, whole numbers of two widths; anything else is an error."""
    if kind.equals(known) or pa.types.is_null(kind):
        return known
    if pa.types.is_null(known):
        return kind
    both = [pa.schema([("x", known)]), pa.schema([("x", kind)])]
    number = pa.types.is_integer(kind) == pa.types.is_integer(known)
    try:
        merged = pa.unify_schemas(both, promote_options="permissive").field("x").type if number else None
    except pa.ArrowException:
        merged = None
    if merged is None:
        raise ManifestError(f"{where}: is of type {kind}, in an earlier part {known}", hint="write all parts alike")
    return merged
