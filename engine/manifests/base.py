"""What every reader of manifests shares: canonical types, rows with their whereabouts, and the list of faults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tallymill.errors import ManifestError

BATCH_ROWS = 4096
SHOWN_FAULTS = 20

TARGETS = pa.list_(pa.struct([("category", pa.string()), ("count", pa.int64())]))
CORE_COLUMNS = pa.schema(
    [
        ("item_id", pa.string()),
        ("image", pa.string()),
        ("sample", pa.int64()),
        ("system", pa.string()),
        ("prompt_id", pa.string()),
        ("targets", TARGETS),
        ("error", pa.string()),
    ]
)
# A factor column of one of these names would collide with a column that scoring writes.
RESERVED = frozenset({"error", "status", "image_hash", "cw_nps", "b_nps", "user_score"})


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Rows as one reader found them: ``rows[i]`` is the line, row or member of row i, ``unit`` says which."""

    data: pa.RecordBatch
    file: str
    unit: str
    rows: Sequence[int | str] | np.ndarray[Any, np.dtype[np.int64]]

    def where(self, row: int) -> str:
        """Name the place of a row: ``a.csv, line 3``."""
        return f"{self.file}, {self.unit} {self.rows[row]}"


@dataclass(slots=True)
class Faults:
    """Faulty rows of one file or folder: all are counted, the first ``most`` are kept to be shown."""

    file: str
    most: int = SHOWN_FAULTS
    total: int = 0
    shown: list[str] = field(default_factory=list)

    def add(self, where: str, reason: str, *, column: str | None = None, value: object = None) -> None:
        """Record one fault."""
        self.total += 1
        if len(self.shown) < self.most:
            at = where if column is None else f"{where}, column {column}"
            self.shown.append(f"{at}: {reason}" if value is None else f"{at}: {reason}: {brief(value)}")

    def add_rows(
        self, raw: RawBatch, rows: Iterable[int], reason: str, *, column: str, values: pa.Array | None = None
    ) -> None:
        """Record the same fault for several rows of a batch; ``values`` holds a value a row of the batch."""
        for row in rows:
            if len(self.shown) >= self.most:
                self.total += 1
                continue
            self.add(raw.where(row), reason, column=column, value=None if values is None else values[row].as_py())

    def raise_if_any(self, hint: str = "mend or remove these rows; nothing was scored") -> None:
        """Raise one ``ManifestError`` that lists the faults kept and says how many there are."""
        if not self.total:
            return
        more = self.total - len(self.shown)
        lines = [f"{self.file}: {self.total} fault{'s' if self.total > 1 else ''}", *self.shown]
        if more:
            lines.append(f"and {more} more")
        raise ManifestError("\n  ".join(lines), hint=hint)


class Reader(Protocol):
    """One form of manifest. ``schema`` is that of every batch's data, in canonical types, ``image`` being a string."""

    @property
    def name(self) -> str:
        """How messages call the manifest."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of every batch."""

    def batches(self, faults: Faults) -> Iterator[RawBatch]:
        """Yield the rows from the first one on, at most ``BATCH_ROWS`` at a time; faulty rows go to ``faults``."""


def brief(value: object, limit: int = 120) -> str:
    """Quote a value for a message, cut when long."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def canonical_type(kind: pa.DataType) -> pa.DataType:
    """The one type that stands for all encodings of the same values (dictionary, large, view, run-end, map)."""
    t = pa.types
    if t.is_dictionary(kind) or t.is_run_end_encoded(kind):
        return canonical_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return canonical_type(kind.storage_type)
    if t.is_large_string(kind) or t.is_string_view(kind):
        return pa.string()
    if t.is_large_binary(kind) or t.is_binary_view(kind):
        return pa.binary()
    if t.is_map(kind):
        pair = pa.struct([("key", canonical_type(kind.key_type)), ("value", canonical_type(kind.item_type))])
        return pa.list_(pair)
    if is_list(kind):
        return pa.list_(canonical_type(kind.value_type))
    if t.is_struct(kind):
        return pa.struct([(f.name, canonical_type(f.type)) for f in kind])
    if t.is_union(kind):
        raise ManifestError(f"a column of type {kind} is not supported")
    return kind


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is one of the encodings of lists."""
    t = pa.types
    return bool(
        t.is_list(kind)
        or t.is_large_list(kind)
        or t.is_fixed_size_list(kind)
        or t.is_list_view(kind)
        or t.is_large_list_view(kind)
    )


def canonical_array(array: pa.Array) -> pa.Array:
    """Cast an array to its canonical type."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    wanted = canonical_type(array.type)
    return array if array.type.equals(wanted) else array.cast(wanted)
