"""JSONL and CSV manifests, read line by line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from tallymill.engine.manifests.base import BATCH_ROWS, Faults, RawBatch, brief
from tallymill.engine.manifests.json_text import RepeatedKeys, load_json
from tallymill.engine.manifests.rows import DictReader, Row
from tallymill.errors import ManifestError

Rename = dict[str, str]


def jsonl_reader(path: Path, label: str | None = None, rename: Rename | None = None) -> DictReader:
    """A reader of a JSONL file: one object a line (ended by a line feed only), blank lines skipped."""
    label = label or path.name
    return DictReader(label, "line", lambda faults: jsonl_objects(path, label, faults, rename))


def jsonl_objects(path: Path, label: str, faults: Faults, rename: Rename | None = None) -> Iterator[Row]:
    """The line number and the object of each line; what is no object, or no JSON, goes to ``faults``."""
    with _open(path, label).open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{label}, line {number}"
            try:
                # Bytes are split at line feeds alone, so U+2028 and U+0085 inside a string split nothing.
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                row = load_json(text) if text else None
            except UnicodeDecodeError as error:
                faults.add(f"{where}, column {error.start + 1}", "not UTF-8")
            except ValueError as error:
                faults.add(where, str(error))
            else:
                found = as_object(row, where, faults) if text else None
                if found is not None:
                    yield number, {rename.get(name, name): value for name, value in found.items()} if rename else found


def as_object(row: Any, where: str, faults: Faults) -> dict[str, Any] | None:
    """A decoded value that is an object without repeated keys; None if not, and the fault is recorded."""
    if not isinstance(row, dict):
        faults.add(where, f"not an object: {brief(row)}")
        return None
    if isinstance(row, RepeatedKeys):
        names = [name for name, _ in row.pairs]
        faults.add(where, f"key {next(n for n in names if names.count(n) > 1)!r} stands more than once")
        return None
    return row


class CsvReader:
    """A reader of comma-separated text: every column is text and an empty field is null; ``NA`` is a text."""

    def __init__(self, path: Path, label: str | None = None, rename: Rename | None = None) -> None:
        self._path = path
        self.name = label or path.name
        _, header = next(self._records(), (1, []))
        names = [(rename or {}).get(name.strip(), name.strip()) for name in header]
        for at, name in enumerate(names, 1):
            if not name or names.count(name) > 1:
                what = "stands more than once" if name else "has no name"
                raise ManifestError(f"{self.name}, line 1: column {at} {name!r} {what}")
        if not names:
            raise ManifestError(f"{self.name}: empty; the first line of a CSV names the columns")
        self.schema = pa.schema([(name, pa.string()) for name in names])

    def batches(self, faults: Faults) -> Iterator[RawBatch]:
        """Yield the rows after the header; a row with too many or too few fields goes to ``faults``."""
        records = self._records()
        next(records, None)
        while chunk := list(islice(records, BATCH_ROWS)):
            good = [entry for entry in chunk if self._fits(entry, faults)]
            if good:
                yield self._batch(good)

    def _fits(self, entry: tuple[int, list[str]], faults: Faults) -> bool:
        line, fields = entry
        where = f"{self.name}, line {line}"
        if len(fields) != len(self.schema):
            faults.add(where, f"{len(fields)} fields under {len(self.schema)} headers")
            return False
        # Bytes that are not UTF-8 come as lone surrogates, which nothing else does.
        bad = [name for name, text in zip(self.schema.names, fields, strict=True) if not _encodable(text)]
        if bad:
            faults.add(where, "not UTF-8", column=bad[0])
        return not bad

    def _batch(self, entries: list[tuple[int, list[str]]]) -> RawBatch:
        columns = zip(*(fields for _, fields in entries), strict=True)
        arrays = [pa.array([text or None for text in column], pa.string()) for column in columns]
        data = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return RawBatch(data, self.name, "line", [line for line, _ in entries])

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Each record with the line it starts on; a quoted field may hold line ends."""
        path = _open(self._path, self.name)
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file, strict=True)
            line = 1
            try:
                for fields in reader:
                    if fields:
                        yield line, fields
                    line = reader.line_num + 1
            except csv.Error as error:
                raise ManifestError(
                    f"{self.name}, line {line}: not CSV: {error}",
                    hint='a quote inside a quoted field is written twice (""); an opened quote must be closed',
                ) from None


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _open(path: Path, label: str) -> Path:
    if not path.is_file():
        raise ManifestError(f"{label}: no such file")
    return path
