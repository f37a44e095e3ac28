"""Requested counts in every form that a manifest can give them, brought to one Arrow type and checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymill.engine.manifests.base import TARGETS, brief, is_list
from tallymill.engine.manifests.json_text import RepeatedKeys, load_json
from tallymill.errors import ManifestError

LEAST_COUNT, GREATEST_COUNT = 1, 100
FORMS = 'targets are [{"category": "cat", "count": 3}], {"cat": 3} or cat=3;dog=2'

Pairs = list[tuple[str, int]]
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Converted:
    """``array``: list<struct<category, count>> a row, null where there was none. ``faults``: row -> what is wrong."""

    array: pa.Array
    faults: dict[int, str]


@lru_cache(maxsize=65_536)
def normal_category(name: str) -> str:
    """Lower case, without outer spaces, inner spaces single."""
    return " ".join(name.split()).lower()


def from_values(values: Sequence[Any]) -> Converted:
    """Convert one Python value a row: None, a list of {"category", "count"}, a dict, or text in either form."""
    offsets, categories, counts, missing = [0], [], [], []
    faults: dict[int, str] = {}
    for row, value in enumerate(values):
        missing.append(value is None)
        try:
            for category, count in () if value is None else _pairs(value):
                categories.append(category)
                counts.append(count)
        except _BadTargetsError as error:
            faults[row] = str(error)
            del categories[offsets[-1] :], counts[offsets[-1] :]
        offsets.append(len(categories))
    items = pa.StructArray.from_arrays(
        [pa.array(categories, pa.string()), pa.array(counts, pa.int64())], fields=list(TARGETS.value_type)
    )
    mask = pa.array(missing, pa.bool_())
    return Converted(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=TARGETS, mask=mask), faults)


def from_column(column: pa.Array) -> Converted:
    """Convert a column of lists of structs (any encoding) or of text."""
    if pa.types.is_string(column.type):
        return from_values(column.to_pylist())
    kind = column.type
    if pa.types.is_null(kind):
        return Converted(pa.nulls(len(column), TARGETS), {})
    if not is_list(kind) or not pa.types.is_struct(kind.value_type):
        raise ManifestError(f"column targets: type {kind} is not a list of (category, count)", hint=FORMS)
    names = {f.name for f in kind.value_type}
    if not {"category", "count"} <= names:
        raise ManifestError(f"column targets: has {sorted(names)}, not category and count", hint=FORMS)
    return _from_lists(column)


def row_errors(targets: pa.Array) -> pa.Array:
    """What makes a row an error row (string, null if nothing): a count outside 1..100 or a repeated category.

    ``targets`` has normalised categories and no nulls inside its lists.
    """
    parents = pc.list_parent_indices(targets).to_numpy()
    flat = targets.flatten()
    counts = flat.field("count").to_numpy()
    outside = np.flatnonzero((counts < LEAST_COUNT) | (counts > GREATEST_COUNT))
    repeats = _repeats(parents, flat.field("category"))
    if not len(outside) and not len(repeats):
        return pa.nulls(len(targets), pa.string())
    errors: list[str | None] = [None] * len(targets)
    for at in repeats:
        errors[parents[at]] = f"category {flat.field('category')[int(at)].as_py()!r} is requested more than once"
    for at in outside[::-1]:
        errors[parents[at]] = f"requested count {counts[at]} outside {LEAST_COUNT}..{GREATEST_COUNT}"
    return pa.array(errors, pa.string())


def _repeats(parents: np.ndarray[Any, Any], categories: pa.Array) -> np.ndarray[Any, Any]:
    """Positions of targets whose category stands earlier in the same row."""
    if len(parents) == 0 or not np.any(parents[1:] == parents[:-1]):
        return np.zeros(0, np.int64)
    codes = categories.dictionary_encode()
    keys = parents.astype(np.int64) * (len(codes.dictionary) + 1) + codes.indices.to_numpy()
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    return np.sort(order[1:][ordered[1:] == ordered[:-1]])


def _from_lists(column: pa.Array) -> Converted:
    """The vectorised way: no Python object a row."""
    column = column if pa.types.is_list(column.type) else column.cast(pa.list_(column.type.value_type))
    parents = pc.list_parent_indices(column).to_numpy()
    flat = column.flatten()
    names = pc.struct_field(flat, "category")
    numbers = pc.struct_field(flat, "count")
    if not pa.types.is_string(names.type):
        raise ManifestError(f"column targets: category is of type {names.type}, not text", hint=FORMS)
    codes = names.dictionary_encode()
    words = pa.array([normal_category(word) for word in codes.dictionary.to_pylist()], pa.string())
    categories = words.take(codes.indices)
    counts, whole = _whole_numbers(numbers)
    named = pc.fill_null(pc.not_equal(categories, ""), False).to_numpy(zero_copy_only=False)
    faults: dict[int, str] = {}
    for at in np.flatnonzero(~named | ~whole)[::-1]:
        what = _count_fault(numbers[int(at)].as_py()) if named[at] else "a category is missing"
        faults[int(parents[at])] = what
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    filled = [pc.fill_null(categories, ""), counts]
    items = pa.StructArray.from_arrays(filled, fields=list(TARGETS.value_type))
    return Converted(pa.ListArray.from_arrays(offsets, items, type=TARGETS, mask=pc.is_null(column)), faults)


def _whole_numbers(numbers: pa.Array) -> tuple[pa.Array, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Counts as int64 without nulls (0 where there is no whole number), and where there is one."""
    kind = numbers.type
    if pa.types.is_null(kind):
        return pa.array(np.zeros(len(numbers), np.int64)), np.zeros(len(numbers), np.bool_)
    if not pa.types.is_integer(kind) and not pa.types.is_floating(kind):
        raise ManifestError(f"column targets: count is of type {kind}, not a whole number", hint=FORMS)
    valid = pc.is_valid(numbers).to_numpy(zero_copy_only=False)
    values = pc.fill_null(numbers, pa.scalar(0, kind)).to_numpy(zero_copy_only=False)
    limit = 2**63 if pa.types.is_unsigned_integer(kind) and kind.bit_width == 64 else None
    whole = values < limit if limit else np.ones(len(values), np.bool_)
    if pa.types.is_floating(kind):
        whole = np.isfinite(values) & (np.abs(values) < 2**53) & (np.trunc(values) == values)
    return pa.array(np.where(whole, values, 0).astype(np.int64)), valid & whole


class _BadTargetsError(Exception):
    """Targets that cannot be read; the caller knows the row."""


def _pairs(value: Any) -> Pairs:
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, RepeatedKeys):
        return [_pair(name, count) for name, count in value.pairs]
    if isinstance(value, dict):
        return [_pair(name, count) for name, count in value.items()]
    if not isinstance(value, list):
        raise _BadTargetsError(f"not targets: {brief(value)} ({FORMS})")
    pairs = []
    for entry in value:
        if not isinstance(entry, dict) or "category" not in entry or "count" not in entry:
            raise _BadTargetsError(f"not a category with a count: {brief(entry)} ({FORMS})")
        pairs.append(_pair(entry["category"], entry["count"]))
    return pairs


def _pair(name: object, count: object) -> tuple[str, int]:
    if name is not None and not isinstance(name, str):
        raise _BadTargetsError(f"category {brief(name)} is not a name")
    category = normal_category(name or "")
    if not category:
        raise _BadTargetsError("a category is missing")
    if type(count) is float and count.is_integer() and abs(count) < 2**53:
        count = int(count)
    if type(count) is not int or not -(2**63) <= count < 2**63:
        raise _BadTargetsError(_count_fault(count))
    return category, count


def _count_fault(count: object) -> str:
    return "a count is missing" if count is None else f"count {brief(count)} is not a whole number"


def _parse_text(text: str) -> Pairs:
    parsed = _parse_cached(text)
    if isinstance(parsed, str):
        raise _BadTargetsError(parsed)
    return parsed


@lru_cache(maxsize=65_536)
def _parse_cached(text: str) -> Pairs | str:
    """The pairs of a JSON or compact text, or what is wrong with it."""
    try:
        if text.lstrip()[:1] in ("[", "{"):
            return _pairs(load_json(text))
        return [_compact_pair(part) for part in text.split(";") if part.strip()]
    except (_BadTargetsError, ValueError) as error:
        return str(error)


def _compact_pair(part: str) -> tuple[str, int]:
    name, equals, count = part.rpartition("=")
    if not equals:
        raise _BadTargetsError(f"{brief(part)} is not category=count ({FORMS})")
    if not _WHOLE.fullmatch(count.strip()):
        raise _BadTargetsError(_count_fault(count.strip()))
    return _pair(name, int(count))
