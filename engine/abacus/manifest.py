"""Manifests of edits: Parquet, JSONL or CSV, or an Arrow table, to rows of one form (``data.EDIT``)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tallymill.engine.abacus.data import EDIT
from tallymill.engine.abacus.instructions import CHANGE, OPERATIONS, parse_instruction
from tallymill.engine.abacus.panoptic import canonical
from tallymill.engine.manifests.base import Faults, RawBatch, Reader
from tallymill.engine.manifests.checked_rows import CheckedRows
from tallymill.engine.manifests.readers import TableReader, open_table_file
from tallymill.errors import ManifestError

# Other names of columns, and what they are called here.
ALIASES = {"target_category": "target", "k": "count", "K": "count", "item_id": "edit_id"}
_TEXTS = ("edit_id", "source", "edited", "operation", "category", "target", "editor", "tier", "image_id", "instruction")
_WHOLE = ("count", "human_count")
_NUMBERS = ("capacity", "human_rating")
_HINT = "a row has source, edited, and an instruction or operation, category and count (a change a target, too)"
Row = dict[str, Any]


class EditManifest:
    """A manifest that can be read once or more. ``ignored`` names its columns that nothing here asks for."""

    def __init__(self, manifest: str | Path | pa.Table) -> None:
        """Raises ``ManifestError`` where no row could be right."""
        self._manifest = manifest
        reader = self._open()
        names = [ALIASES.get(name, name) for name in reader.schema.names]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ManifestError(f"{reader.name}: two columns are for {repeated[0]}", hint="keep one of them")
        if missing := [name for name in ("source", "edited") if name not in names]:
            raise ManifestError(f"{reader.name}: no column {' and no column '.join(missing)}", hint=_HINT)
        if "instruction" not in names and (lost := {"operation", "category", "count"} - set(names)):
            raise ManifestError(f"{reader.name}: no column {', '.join(sorted(lost))}, and no instruction", hint=_HINT)
        for field in reader.schema:
            if ALIASES.get(field.name, field.name) in _TEXTS and not _is_text(field.type):
                raise ManifestError(
                    f"{reader.name}: column {field.name} is of type {field.type}, not text",
                    hint="images are named: paths, URLs, or members of archives" if "bin" in str(field.type) else None,
                )
        self.name = reader.name
        self.ignored = sorted(set(names) - {*EDIT.names} | ({"error"} & set(names)))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows of ``EDIT``. Faulty ones are left out, and one ``ManifestError`` after the last batch lists them.

        What makes a row an error row, and nothing worse, stands in ``error``: K below 1.
        """
        reader = self._open()
        faults = Faults(reader.name)
        known: set[str] = set()
        for raw in reader.batches(faults):
            rows = list(_rows(raw, faults, known))
            if rows:
                yield pa.RecordBatch.from_pylist(rows, schema=EDIT)
        faults.raise_if_any()

    def _open(self) -> Reader:
        if isinstance(self._manifest, pa.Table):
            return TableReader(self._manifest)
        return open_table_file(Path(self._manifest))


def _rows(raw: RawBatch, faults: Faults, known: set[str]) -> Iterator[Row]:
    data = raw.data.rename_columns([ALIASES.get(name, name) for name in raw.data.schema.names])
    raw = RawBatch(data, raw.file, raw.unit, raw.rows)
    checked = CheckedRows(raw, faults)
    columns = {name: checked.text(name).to_pylist() for name in _TEXTS}
    columns |= {name: checked.whole(name).to_pylist() for name in _WHOLE}
    columns |= {name: _numbers(checked, name) for name in _NUMBERS}
    for place in range(checked.size):
        if not checked.ok[place]:
            continue
        row = {name: _stripped(values[place]) for name, values in columns.items()}
        try:
            yield _row(row, known)
        except ManifestError as exc:
            faults.add(raw.where(place), exc.message)


def _row(row: Row, known: set[str]) -> Row:
    for name in ("source", "edited"):
        if row[name] is None:
            raise ManifestError(f"{name} is empty")
    row["edit_id"] = row["edit_id"] or row["edited"]
    if row["edit_id"] in known:
        raise ManifestError(f"edit_id {row['edit_id']!r} stands more than once")
    known.add(row["edit_id"])
    for name in ("operation", "category", "target"):
        row[name] = row[name] and row[name].lower()
    _complete(row)
    if row["operation"] not in OPERATIONS:
        raise ManifestError(f"operation {row['operation']!r} is not one of {', '.join(OPERATIONS)}")
    for name in ("category", "count"):
        if row[name] is None:
            raise ManifestError(f"{name} is empty, and no instruction says it")
    if (row["target"] is None) == (row["operation"] == CHANGE):
        raise ManifestError("a change needs a target" if row["target"] is None else "only a change has a target")
    if row["target"] is not None and canonical(row["target"]) == canonical(row["category"]):
        raise ManifestError(f"it changes {row['category']!r} to itself")
    row["error"] = None if row["count"] >= 1 else f"count: K is {row['count']}; it must be at least 1"
    return row


def _complete(row: Row) -> None:
    """What the instruction says, where a field is missing; a field that says otherwise is a fault.

    An instruction in words that are not read is none where nothing is missing.
    """
    missing = [name for name in ("operation", "category", "count") if row[name] is None]
    if row["operation"] == CHANGE and row["target"] is None:
        missing.append("target")
    if row["instruction"] is None:
        return
    try:
        told = parse_instruction(row["instruction"])
    except ManifestError:
        if missing:
            raise
        return
    for name in ("operation", "category", "count", "target"):
        said = getattr(told, name)
        if row[name] is None:
            row[name] = said
        elif said is not None and _plain(row[name]) != _plain(said):
            raise ManifestError(f"{name} is {row[name]!r}, the instruction says {said!r}")


def _plain(value: str | int) -> str | int:
    """Equal for names of one category."""
    return canonical(value) if isinstance(value, str) else value


def _numbers(checked: CheckedRows, name: str) -> list[float | None]:
    """A column of numbers that may be absent; what is there and is none is a fault."""
    column = checked.column(name)
    if column is None:
        return [None] * checked.size
    found: list[float | None] = []
    reasons: dict[int, str] = {}
    for place, value in enumerate(column.to_pylist()):
        try:
            number = None if value is None or value == "" else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if number is not None and not math.isfinite(number):
            reasons[place], number = f"not a number: {value!r}", None
        found.append(number)
    checked.faults_at(reasons, name)
    return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_null(kind) or pa.types.is_integer(kind))


def _stripped(value: Any) -> Any:
    return (value.strip() or None) if isinstance(value, str) else value
