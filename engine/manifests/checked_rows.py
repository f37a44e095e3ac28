"""The rows of one raw batch under examination: columns in the types that are wanted, and which rows are still good."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymill.engine.manifests.base import Faults, RawBatch, is_list
from tallymill.engine.manifests.json_text import load_json

Mask = np.ndarray[Any, np.dtype[np.bool_]]

_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class CheckedRows:
    """Reads columns of a batch; each row that has a fault is recorded once and is no longer ``ok``."""

    def __init__(self, raw: RawBatch, faults: Faults) -> None:
        self._raw = raw
        self._faults = faults
        self.size = raw.data.num_rows
        self.ok: Mask = np.ones(self.size, np.bool_)

    def column(self, name: str) -> pa.Array | None:
        """A column as it is, or None."""
        return self._raw.data.column(name) if name in self._raw.data.schema.names else None

    def text(self, name: str) -> pa.Array:
        """A column as strings (whole numbers as digits), all null when it is not there."""
        column = self.column(name)
        return pa.nulls(self.size, pa.string()) if column is None else column.cast(pa.string())

    def whole(self, name: str) -> pa.Array:
        """A column as int64; what is not a whole number is a fault."""
        column = self.column(name)
        if column is None or pa.types.is_null(column.type):
            return pa.nulls(self.size, pa.int64())
        if pa.types.is_string(column.type):
            column = blank_to_null(column)
            bad = pc.invert(pc.match_substring_regex(column, r"^[+-]?[0-9]{1,18}$"))
        elif pa.types.is_floating(column.type):
            bad = pc.invert(pc.and_(pc.equal(pc.trunc(column), column), pc.less(pc.abs(column), 2.0**53)))
        elif pa.types.is_integer(column.type):
            most = pa.scalar(2**63 - 1, pa.uint64())
            bad = pc.greater(column, most) if pa.types.is_uint64(column.type) else pa.nulls(self.size, pa.bool_())
        else:
            self.fault(pc.is_valid(column), name, "not a whole number", column)
            return pa.nulls(self.size, pa.int64())
        self.fault(bad, name, "not a whole number", column)
        return pc.if_else(pc.fill_null(bad, False), pa.scalar(None, column.type), column).cast(pa.int64())

    def numbers(self, name: str, width: int | None = None) -> np.ndarray[Any, np.dtype[np.float64]]:
        """A column as float64 [rows], or [rows, width] from lists; what is no finite number is a fault (NaN here)."""
        column = self.column(name)
        if column is None:
            column = pa.nulls(self.size, pa.string())
        fast = _lists(column, width) if width else _floats(column)
        if fast is not None:
            values, wanted = fast, "a number" if width is None else f"{width} numbers"
        else:
            wanted = "a number" if width is None else f"a list of {width} numbers"
            rows = [_row_of(value, width) for value in column.to_pylist()]
            values = np.array(rows, np.float64).reshape((self.size, width) if width else self.size)
        finite = np.isfinite(values).reshape(self.size, -1).all(axis=1)
        self.fault(~finite, name, f"not {wanted}, all finite" if width else f"not {wanted}", column)
        return values

    def flags(self, name: str) -> Mask:
        """A column of true and false (also as words or 1 and 0), null and absent as false; anything else is a fault."""
        column = self.column(name)
        if column is None or pa.types.is_null(column.type):
            return np.zeros(self.size, np.bool_)
        if pa.types.is_boolean(column.type):
            return np.asarray(pc.fill_null(column, False).to_numpy(zero_copy_only=False))
        values = column.to_pylist()
        known = [False if v is None or v == "" else _FLAGS.get(str(v).strip().lower()) for v in values]
        self.fault(np.array([flag is None for flag in known], np.bool_), name, "neither true nor false", column)
        return np.array([bool(flag) for flag in known], np.bool_)

    def fault(self, bad: pa.Array | Mask, column: str, reason: str, values: pa.Array | None = None) -> None:
        """Record the rows where ``bad`` is true; a row that is already faulty is not told twice."""
        mask = bad if isinstance(bad, np.ndarray) else pc.fill_null(bad, False).to_numpy(zero_copy_only=False)
        mask = mask & self.ok
        if mask.any():
            self._faults.add_rows(self._raw, np.flatnonzero(mask).tolist(), reason, column=column, values=values)
            self.ok &= ~mask

    def faults_at(self, reasons: dict[int, str], column: str) -> None:
        """Record a reason a row."""
        for row, reason in sorted(reasons.items()):
            if self.ok[row]:
                self._faults.add(self._raw.where(row), reason, column=column)
                self.ok[row] = False


def blank_to_null(column: pa.Array) -> pa.Array:
    """Empty texts as null."""
    blank = pc.equal(column, "")
    return pc.if_else(blank, pa.scalar(None, pa.string()), column) if pc.any(blank).as_py() else column


def _floats(column: pa.Array) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return None
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))


def _lists(column: pa.Array, width: int) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Lists of exactly ``width`` numbers each, where a column holds nothing else."""
    if not is_list(column.type) or column.null_count:
        return None
    inner = column.type.value_type
    lengths = pc.list_value_length(column)
    if not (pa.types.is_integer(inner) or pa.types.is_floating(inner)) or not pc.all(pc.equal(lengths, width)).as_py():
        return None
    flat = _floats(column.flatten())
    return None if flat is None else flat.reshape(-1, width)


def _row_of(value: Any, width: int | None) -> Any:
    """One number or ``width`` of them from a Python value or its text; NaN where there are none."""
    nothing = math.nan if width is None else [math.nan] * width
    if isinstance(value, str):
        value = _decoded(value, float if width is None else load_json)
    if width is None:
        return value if _is_number(value) else nothing
    fits = isinstance(value, list) and len(value) == width and all(map(_is_number, value))
    return value if fits else nothing


def _decoded(text: str, decode: Callable[[str], Any]) -> Any:
    try:
        return decode(text)
    except ValueError:
        return None


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**53)
