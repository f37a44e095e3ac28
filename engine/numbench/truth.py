"""The true objects of images whose proposals calibrate a detector: a table with a row an object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tallymill.engine.manifests.base import Faults, RawBatch
from tallymill.engine.manifests.checked_rows import CheckedRows
from tallymill.engine.manifests.readers import open_table_file
from tallymill.engine.manifests.targets import normal_category
from tallymill.errors import ManifestError

CORNERS = ("x1", "y1", "x2", "y2")
FORM = "a truth file has item_id, category (or target, from 0) and box [x1, y1, x2, y2] (or x1, y1, x2, y2), in pixels"
_MEND = "mend or remove these rows; nothing was fitted"


@dataclass(frozen=True, slots=True)
class Truth:
    """N true objects in order of item (as first named), category, target and box: the order of rows leaves no trace.

    ``items`` are the named items; object i belongs to ``items[item[i]]``, and those of item k are
    ``starts[k]:starts[k + 1]``. ``category`` int64 [N] indexes ``categories``, -1 where none is given; ``target`` int64
    [N] is the index of a requested target, -1 likewise (one of the two is there). ``boxes`` float64 [N, 4] xyxy in
    pixels of the upright image. ``row`` int64 [N] is the line or row of ``file``, called so by ``unit``.
    """

    file: str
    unit: str
    items: dict[str, int]
    starts: NDArray[np.int64]
    item: NDArray[np.int64]
    categories: tuple[str, ...]
    category: NDArray[np.int64]
    target: NDArray[np.int64]
    boxes: NDArray[np.float64]
    row: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.item)

    def where(self, at: int) -> str:
        """Name the place of an object: ``truth.csv, line 3``."""
        return f"{self.file}, {self.unit} {self.row[at]}"


def read_truth(path: str | Path) -> Truth:
    """Read a truth file (Parquet, JSONL or CSV), a row a true object; an image without objects is not in it.

    ``item_id`` names the item of the RUN; ``category`` is the requested name, compared as manifests compare them, or
    ``target`` its index among the requested ones (0 the first); where both are given they must agree. The box is
    ``box`` [x1, y1, x2, y2] or four columns of these names, in pixels of the upright image. Other columns are left
    alone. All faulty rows are told in one ``ManifestError``.
    """
    reader = open_table_file(Path(path))
    _check_columns(reader.name, reader.schema)
    faults = Faults(reader.name)
    batches = [raw for raw in reader.batches(faults) if raw.data.num_rows]
    parts = list(_parts(batches, faults))
    faults.raise_if_any(_MEND)
    if not parts:
        raise ManifestError(f"{reader.name}: has no objects", hint=FORM)
    item_names, category_names, target, boxes, row = zip(*parts, strict=True)
    if (np.concatenate(boxes) <= 1.0).all():
        raise ManifestError(f"{reader.name}: no box reaches beyond 1", hint="boxes are in pixels, not shares of a side")
    items, item = _codes(pa.chunked_array(item_names))
    categories, category = _codes(pa.chunked_array(category_names))
    columns = (item, category, np.concatenate(target), np.concatenate(boxes), np.concatenate(row))
    return _ordered(reader.name, batches[0].unit, items, tuple(categories), *columns)


def _parts(batches: list[RawBatch], faults: Faults) -> Iterator[tuple[Any, ...]]:
    for raw in batches:
        rows = CheckedRows(raw, faults)
        items = rows.text("item_id")
        rows.fault(pc.fill_null(pc.equal(items, ""), True), "item_id", "is empty")
        categories = _categories(rows)
        target = rows.whole("target")
        rows.fault(pc.less(target, 0), "target", "is below 0", target)
        nothing = pc.and_(pc.is_null(categories), pc.is_null(target))
        rows.fault(nothing, "category", "neither a category nor a target")
        boxes = _boxes(rows)
        good, kept = rows.ok, pa.array(rows.ok)
        index = np.asarray(pc.fill_null(target, -1).to_numpy(zero_copy_only=False), np.int64)
        row = np.asarray(raw.rows, np.int64)
        yield items.filter(kept), categories.filter(kept), index[good], boxes[good], row[good]


def _categories(rows: CheckedRows) -> pa.Array:
    column = rows.text("category").dictionary_encode()
    words = [None if word is None else normal_category(word) or None for word in column.dictionary.to_pylist()]
    return pa.array(words, pa.string()).take(column.indices)


def _boxes(rows: CheckedRows) -> NDArray[np.float64]:
    if rows.column("box") is not None:
        boxes = rows.numbers("box", 4)
        shown = rows.column("box")
    else:
        boxes = np.stack([rows.numbers(name) for name in CORNERS], axis=1)
        shown = pa.array([str(box) for box in boxes.tolist()]) if len(boxes) else None
    degenerate = ~((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))
    rows.fault(degenerate, "box", "not x1 < x2 and y1 < y2 (these are corners, not width and height)", shown)
    return boxes


def _codes(names: pa.ChunkedArray) -> tuple[dict[str, int], NDArray[np.int64]]:
    """Distinct names in order of first appearance, and the code of each (-1 for null)."""
    encoded = names.combine_chunks().dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return {name: code for code, name in enumerate(encoded.dictionary.to_pylist())}, codes


def _ordered(
    file: str,
    unit: str,
    items: dict[str, int],
    categories: tuple[str, ...],
    item: NDArray[np.int64],
    category: NDArray[np.int64],
    target: NDArray[np.int64],
    boxes: NDArray[np.float64],
    row: NDArray[np.int64],
) -> Truth:
    order = np.lexsort((*boxes.T[::-1], target, category, item))
    starts = np.searchsorted(item[order], np.arange(len(items) + 1))
    return Truth(
        file=file,
        unit=unit,
        items=items,
        starts=starts.astype(np.int64),
        item=item[order],
        categories=categories,
        category=category[order],
        target=target[order],
        boxes=boxes[order],
        row=row[order],
    )


def _check_columns(name: str, schema: pa.Schema) -> None:
    columns = set(schema.names)
    boxed = "box" in columns or set(CORNERS) <= columns
    if "item_id" not in columns or not {"category", "target"} & columns or not boxed:
        raise ManifestError(f"{name}: its columns are {', '.join(schema.names) or 'none'}", hint=FORM)
    for column in ("item_id", "category"):
        kind = schema.field(column).type if column in columns else pa.null()
        number = column == "item_id" and pa.types.is_integer(kind)
        if not (pa.types.is_string(kind) or pa.types.is_null(kind) or number):
            raise ManifestError(f"{name}: column {column} is of type {kind}, not text", hint=FORM)
