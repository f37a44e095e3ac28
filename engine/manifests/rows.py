"""Rows that are Python dictionaries (JSONL lines, members of an archive) -> raw batches of one schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from tallymill.engine.manifests.base import BATCH_ROWS, TARGETS, Faults, RawBatch
from tallymill.engine.manifests.targets import from_values
from tallymill.errors import ManifestError

Row = tuple[int | str, dict[str, Any]]
INFERRED_ROWS = 4096

_TEXT = frozenset({"image", "system", "prompt"})
_NAMES = frozenset({"item_id", "prompt_id"})


class DictReader:
    """A reader over dictionaries.

    The first 4,096 rows decide the columns and their types: bool, int64, float64 (numbers of both kinds, all exact),
    else text; in a text column whatever is not text stands as JSON. A later row with another column, or with a value
    that its column cannot hold, is a fault.
    """

    def __init__(self, name: str, unit: str, rows: Callable[[Faults], Iterator[Row]]) -> None:
        self.name = name
        self._unit = unit
        self._rows = rows
        faults = Faults(name)
        head = [row for _, row in islice(rows(faults), INFERRED_ROWS)]
        if not head:
            faults.raise_if_any()
            raise ManifestError(f"{name}: has no items")
        self.schema = _infer(head)
        self._names = frozenset(self.schema.names)

    def batches(self, faults: Faults) -> Iterator[RawBatch]:
        """Yield the rows from the first one on; values that do not fit their columns go to ``faults``."""
        rows = self._rows(faults)
        while chunk := list(islice(rows, BATCH_ROWS)):
            good = [entry for entry in chunk if self._known(entry, faults)]
            raw = self._batch(good, faults)
            if raw.data.num_rows:
                yield raw

    def _known(self, entry: Row, faults: Faults) -> bool:
        where, row = entry
        if row.keys() <= self._names:
            return True
        extra = ", ".join(sorted(row.keys() - self._names))
        reason = f"{extra} is not among the columns of the first {INFERRED_ROWS} rows (add it there, null will do)"
        faults.add(f"{self.name}, {self._unit} {where}", reason)
        return False

    def _batch(self, entries: list[Row], faults: Faults) -> RawBatch:
        bad: set[int] = set()
        columns = []
        for field in self.schema:
            values = [row.get(field.name) for _, row in entries]
            array, reasons = _column(field, values)
            for at, reason in sorted(reasons.items()):
                if at not in bad:
                    faults.add(f"{self.name}, {self._unit} {entries[at][0]}", reason, column=field.name)
                    bad.add(at)
            columns.append(array)
        data = pa.RecordBatch.from_arrays(columns, schema=self.schema) if columns else _empty()
        rows: list[int | str] = [where for where, _ in entries]
        if bad:
            kept = [at for at in range(len(entries)) if at not in bad]
            data, rows = data.take(pa.array(kept, pa.int64())), [rows[at] for at in kept]
        return RawBatch(data, self.name, self._unit, rows)


def _empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([], names=[])


def _infer(rows: list[dict[str, Any]]) -> pa.Schema:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.schema([(name, _kind(name, [row.get(name) for row in rows])) for name in names])


def _kind(name: str, values: list[Any]) -> pa.DataType:
    if name == "targets":
        return TARGETS
    if name in _TEXT or name in _NAMES:
        return pa.string()
    if name == "sample":
        return pa.int64()
    seen = {type(value) for value in values if value is not None}
    if seen == {bool}:
        return pa.bool_()
    if seen and seen <= {int, float}:
        whole = [value for value in values if type(value) is int]
        if float not in seen and all(-(2**63) <= value < 2**63 for value in whole):
            return pa.int64()
        if all(abs(value) <= 2**53 for value in whole):
            return pa.float64()
    return pa.string()


def _column(field: pa.Field, values: list[Any]) -> tuple[pa.Array, dict[int, str]]:
    """One column and, by row, what does not fit into it (null stands there)."""
    if field.name == "targets":
        converted = from_values(values)
        return converted.array, converted.faults
    fits = _FITS[field.type]
    reasons: dict[int, str] = {}
    if field.name in _NAMES:
        values = [str(value) if type(value) is int else value for value in values]
    elif pa.types.is_string(field.type) and field.name not in _TEXT:
        values = [value if value is None or type(value) is str else _as_json(value) for value in values]
    if not all(map(fits, values)):
        reasons = {at: f"{_as_json(v)} is not {_NOUN[field.type]}" for at, v in enumerate(values) if not fits(v)}
        values = [value if fits(value) else None for value in values]
    return pa.array(values, field.type), reasons


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_FITS: dict[pa.DataType, Callable[[Any], bool]] = {
    pa.string(): lambda v: v is None or type(v) is str,
    pa.bool_(): lambda v: v is None or type(v) is bool,
    pa.int64(): lambda v: v is None or (type(v) is int and -(2**63) <= v < 2**63),
    pa.float64(): lambda v: v is None or type(v) is float or (type(v) is int and abs(v) <= 2**53),
}
_NOUN = {pa.string(): "text", pa.bool_(): "true or false", pa.int64(): "a whole number", pa.float64(): "a number"}
