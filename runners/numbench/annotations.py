"""Annotators' counts of what can be seen in images, from a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallymill.engine.manifests.base import Faults
from tallymill.engine.manifests.checked_rows import CheckedRows, blank_to_null
from tallymill.engine.manifests.readers import open_table_file
from tallymill.engine.manifests.targets import normal_category
from tallymill.errors import ManifestError

FORM = "annotations have item_id, category (or target, from 0), annotator and count; ambiguous and system are optional"
MEND = "mend or remove these rows; no agreement was computed"
# Nobody counts further; a larger number is a slip of the keyboard.
MOST_COUNTED = 1_000_000


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotator's count of one category in one image; ``where`` is its place in the file."""

    where: str
    item: str
    system: str | None
    category: str | None
    target: int | None
    annotator: str
    count: int
    ambiguous: bool


@dataclass(frozen=True, slots=True)
class Annotations:
    """An annotation file. ``has_marks`` says whether ambiguous images could be marked at all."""

    path: str
    sha256: str
    file: str
    rows: list[Annotation]
    has_marks: bool


def read_annotations(path: str | Path) -> Annotations:
    """Read a file (Parquet, JSONL or CSV) with a row an image, category and annotator.

    Columns: ``item_id``; ``category`` as it was asked for, or ``target``, its index among the requested ones (0 the
    first); ``annotator``, any name; ``count``, a whole number of at least 0; optionally ``ambiguous``, true where the
    annotator could not tell instances apart (null is false), and ``system``, needed where images of several systems
    have the same ``item_id``. Other columns are left alone. All faulty rows are told in one ``ManifestError``.
    """
    reader = open_table_file(Path(path))
    _check_columns(reader.name, reader.schema)
    faults = Faults(reader.name)
    rows: list[Annotation] = []
    for raw in reader.batches(faults):
        checked = CheckedRows(raw, faults)
        columns = list(_columns(checked))
        where = [raw.where(row) for row in range(checked.size)]
        rows += [
            Annotation(*values) for values, ok in zip(zip(where, *columns, strict=True), checked.ok, strict=True) if ok
        ]
    faults.raise_if_any(MEND)
    if not rows:
        raise ManifestError(f"{reader.name}: has no rows", hint=FORM)
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return Annotations(str(path), digest, reader.name, rows, "ambiguous" in reader.schema.names)


def _columns(rows: CheckedRows) -> Iterator[list[Any]]:
    """The columns of ``Annotation`` after ``where``."""
    item, annotator = rows.text("item_id"), rows.text("annotator")
    for name, column in (("item_id", item), ("annotator", annotator)):
        rows.fault(pc.fill_null(pc.equal(column, ""), True), name, "is empty")
    words = rows.text("category").to_pylist()
    category = pa.array([None if word is None else normal_category(word) or None for word in words], pa.string())
    target = rows.whole("target")
    rows.fault(pc.less(target, 0), "target", "is below 0", target)
    rows.fault(pc.and_(pc.is_null(category), pc.is_null(target)), "category", "neither a category nor a target")
    count = rows.whole("count")
    rows.fault(pc.is_null(count), "count", "is missing")
    rows.fault(pc.or_(pc.less(count, 0), pc.greater(count, MOST_COUNTED)), "count", f"not in 0..{MOST_COUNTED}", count)
    yield item.to_pylist()
    yield blank_to_null(rows.text("system")).to_pylist()
    yield category.to_pylist()
    yield target.to_pylist()
    yield annotator.to_pylist()
    yield count.to_pylist()
    yield rows.flags("ambiguous").tolist()


def _check_columns(name: str, schema: pa.Schema) -> None:
    columns = set(schema.names)
    if not {"item_id", "annotator", "count"} <= columns or not {"category", "target"} & columns:
        raise ManifestError(f"{name}: its columns are {', '.join(schema.names) or 'none'}", hint=FORM)
    for column in columns & {"item_id", "annotator", "system", "category"}:
        kind = schema.field(column).type
        number = pa.types.is_integer(kind) and column in ("item_id", "annotator")
        if not (pa.types.is_string(kind) or pa.types.is_null(kind) or number):
            raise ManifestError(f"{name}: column {column} is of type {kind}, not text", hint=FORM)
