"""Parquet part files: encodings that suit their columns, buffered row groups, and a stamp that says whose they are."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tallymill.errors import RunError
from tallymill.runners.plan import Shard

ROW_GROUP_BYTES = 32 << 20
_STAMP, _COUNTS = b"tallymill.stamp", b"tallymill.counts"
# Confidences and coordinates hardly repeat: a dictionary only costs, and splitting bytes lets ZSTD see exponents.
_SPLIT = ("confidence.list.element", "box.list.element.list.element")
# Nor do these; what is left is worth a dictionary.
_UNREPEATED = (*_SPLIT, "item_id", "image_hash", "cw_nps", "b_nps", "targets.list.element.soft")


class PartWriter:
    """Writes record batches to one Parquet file in row groups of about ``ROW_GROUP_BYTES``."""

    def __init__(self, path: Path, schema: pa.Schema, stamp: str, shard: Shard) -> None:
        leaves = _leaf_names(schema)
        split = [name for name in _SPLIT if name in leaves]
        self._writer = pq.ParquetWriter(
            str(path),
            schema.with_metadata({_STAMP: _stamp_of(stamp, shard)}),
            compression="zstd",
            use_dictionary=[name for name in leaves if name not in _UNREPEATED],
            write_statistics=False,
            column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT") or None,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows; a row group is written whenever enough have gathered."""
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def close(self, counts: Mapping[str, Any]) -> None:
        """Write what remains, and the ``counts`` that a summary will add up."""
        self._flush()
        self._writer.add_key_value_metadata({_COUNTS.decode(): json.dumps(counts)})
        self._writer.close()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting).cast(self._writer.schema))
        self._waiting, self._bytes = [], 0


# What reading a damaged file can raise: names of columns that are gone, text that is none, lengths that do not fit.
UNREADABLE = (OSError, pa.ArrowException, KeyError, ValueError)


def _stamp_of(stamp: str, shard: Shard) -> bytes:
    """The stamp of a run with the shard's number, so that a part that was copied over another is seen."""
    return f"{stamp}/{shard.index}".encode()


def read_counts(path: Path, stamp: str, shard: Shard) -> dict[str, Any] | None:
    """The counts of a part file, or None unless it is whole, and is this shard's part of the run with ``stamp``."""
    try:
        return _counts_in(pq.read_metadata(str(path)), stamp, shard)
    except UNREADABLE:  # absent, or cut short by a copy that broke off
        return None


def foreign_part(path: Path, stamp: str, shard: Shard) -> RunError | None:
    """The error for a part that is there and bears another stamp than the run's ``run.json`` gives it."""
    try:
        found = (pq.read_metadata(str(path)).metadata or {}).get(_STAMP)
    except UNREADABLE:
        return None
    if found is None or found == _stamp_of(stamp, shard):
        return None
    return RunError(
        f"{path} was written under another run.json than the one that is there now",
        hint="run its sweep (or rescore) again; or, if run.json was edited, put back the one that belongs to its files",
    )


def open_part(
    path: Path, stamp: str, shard: Shard, *, encoded: Collection[str] = ()
) -> tuple[pq.ParquetFile, dict[str, Any]] | None:
    """The same with the file, opened for reading; the text columns ``encoded``, all there, come as dictionaries."""
    try:
        file = pq.ParquetFile(str(path), read_dictionary=list(encoded))
        counts = _counts_in(file.metadata, stamp, shard)
    except UNREADABLE:
        return None
    return None if counts is None else (file, counts)


def _counts_in(metadata: Any, stamp: str, shard: Shard) -> dict[str, Any] | None:
    values = metadata.metadata or {}
    if values.get(_STAMP) != _stamp_of(stamp, shard) or metadata.num_rows != len(shard) or _COUNTS not in values:
        return None
    counts: dict[str, Any] = json.loads(values[_COUNTS])
    return counts


def read_part(path: Path, columns: list[str] | None = None) -> pa.Table:
    """The rows of a part file; a ``RunError`` naming the file where it is damaged."""
    with naming_damage(path):
        return pq.read_table(path, columns=columns)


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """What goes wrong with the file inside is a ``RunError`` that names it."""
    try:
        yield
    except UNREADABLE as exc:
        hint = "remove it and the scores file of the same name, and run the sweep again"
        raise RunError(f"{path} is damaged: {exc}", hint=hint) from None


@contextmanager
def naming_values(run: Path, shard: Shard) -> Iterator[None]:
    """A value among a shard's proposals that no sweep writes is a ``RunError`` that names the part."""
    try:
        yield
    except ValueError as exc:
        hint = "remove it and the scores file of the same name, and run the sweep again"
        raise RunError(f"{run}: the proposals of {shard.part} are damaged: {exc}", hint=hint) from None


@functools.lru_cache(maxsize=32)
def _leaf_names(schema: pa.Schema) -> list[str]:
    """Dotted names of the leaf columns as Parquet knows them."""
    buffer = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), buffer)
    leaves = pq.ParquetFile(buffer.getvalue()).schema
    return [leaves.column(i).path for i in range(len(leaves))]
