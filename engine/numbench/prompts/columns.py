"""The columns of a prompt file as numbers, whatever stands in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tallymill.engine.manifests.base import is_list
from tallymill.engine.manifests.targets import from_column
from tallymill.engine.numbench.factors import APPEARANCES, COMPOSITIONS, COUNT_RANGES, LAYOUTS, MODIFIERS
from tallymill.engine.numbench.prompts.build import SCHEMA
from tallymill.errors import ManifestError

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Prompts:
    """A prompt file of ``n`` rows for checks: its ``columns`` as they stand, and as numbers.

    Codes are positions in the lists of ``factors``, -1 for anything else. ``core`` numbers the core ids in order of
    appearance. ``terms`` are bits for ``MODIFIERS`` and ``terms_well`` says where all are known and in order.
    ``targets`` counts a row's targets; ``category`` (positions in the vocabulary), ``name`` (numbers that differ where
    names do) and ``count`` are int64 [n, 2], -1, -1 and 0 where there is none; a count outside 1..100 stands as it is.
    ``target_faults`` says of a row why its targets cannot be read.
    """

    n: int
    columns: dict[str, pa.Array]
    core: Ints
    composition: Ints
    layout: Ints
    appearance: Ints
    count_range: Ints
    terms: Ints
    terms_well: Flags
    targets: Ints
    category: Ints
    name: Ints
    count: Ints
    target_faults: dict[int, str]

    def value(self, column: str, row: int) -> object:
        """What stands in a column of a row, as the file has it."""
        return self.columns[column][row].as_py()

    def prompt_id(self, row: int) -> str | None:
        """The id of a row."""
        found: str | None = self.columns["prompt_id"][row].as_py()
        return found

    def said(self, column: str) -> Callable[[int], str]:
        """The same as a text, for a message."""

        def text(row: int) -> str:
            return f"{column} {self.value(column, row)!r}"

        return text


def read_columns(file: str, table: pa.Table, names: list[str]) -> Prompts:
    """Decode a table whose categories should be of ``names``; what no row could mend is a ``ManifestError``."""
    _require_columns(file, table.schema)
    if not table.num_rows:
        raise ManifestError(f"{file}: has no prompts")
    column = {name: _whole(table.column(name)) for name in SCHEMA.names}
    terms, terms_well = _terms(file, column["modifiers"])
    targets, category, name, count, faults = _targets(file, column["targets"], names)
    return Prompts(
        n=table.num_rows,
        columns=column,
        core=_numbered(column["core_id"]),
        composition=_codes(column["composition"], COMPOSITIONS),
        layout=_codes(column["layout"], LAYOUTS),
        appearance=_codes(column["appearance"], APPEARANCES),
        count_range=_codes(column["count_range"], COUNT_RANGES),
        terms=terms,
        terms_well=terms_well,
        targets=targets,
        category=category,
        name=name,
        count=count,
        target_faults=faults,
    )


def _require_columns(file: str, schema: pa.Schema) -> None:
    if missing := [name for name in SCHEMA.names if name not in schema.names]:
        raise ManifestError(
            f"{file}: no column {', '.join(missing)}; the columns are {', '.join(schema.names) or 'none'}",
            hint=f"a prompt file has {', '.join(SCHEMA.names)}",
        )
    for name in SCHEMA.names:
        kind = schema.field(name).type
        # Targets tell of themselves what is wrong inside.
        listed = is_list(kind) and (name == "targets" or (name == "modifiers" and _is_text(kind.value_type)))
        if not (listed or _is_text(kind)):
            raise ManifestError(f"{file}: column {name} is of type {kind}, not {SCHEMA.field(name).type}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_null(kind))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    return array.cast(pa.string()) if pa.types.is_null(array.type) else array


def _codes(column: pa.Array, levels: tuple[str, ...]) -> Ints:
    return _filled(pc.index_in(column, value_set=pa.array(levels, pa.string())))


def _numbered(column: pa.Array) -> Ints:
    return _filled(column.dictionary_encode().indices)


def _filled(codes: pa.Array) -> Ints:
    filled: Ints = pc.fill_null(codes.cast(pa.int64()), UNKNOWN).to_numpy(zero_copy_only=False)
    return filled


def _terms(file: str, column: pa.Array) -> tuple[Ints, Flags]:
    """Bits of the terms, and where all are known and stand in order, none twice."""
    lists = _term_lists(file, column) if pa.types.is_string(column.type) else column.cast(pa.list_(pa.string()))
    parents = pc.list_parent_indices(lists).to_numpy()
    places = _codes(lists.flatten(), MODIFIERS)
    bits, well = np.zeros(len(column), np.int64), np.ones(len(column), np.bool_)
    np.bitwise_or.at(bits, parents[places >= 0], np.int64(1) << places[places >= 0])
    well[parents[places < 0]] = False
    out_of_order = (parents[1:] == parents[:-1]) & (places[1:] <= places[:-1])
    well[parents[1:][out_of_order]] = False
    return bits, well


def _term_lists(file: str, column: pa.Array) -> pa.Array:
    """Lists that stand as JSON, which is how a file of text has them."""
    encoded = column.dictionary_encode()
    lists = []
    for text in encoded.dictionary.to_pylist():
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if not isinstance(value, list) or not all(isinstance(term, str) for term in value):
            raise ManifestError(f"{file}: column modifiers: {text!r} is not a list of terms")
        lists.append(value)
    return pa.array(lists, pa.list_(pa.string())).take(encoded.indices)


def _targets(file: str, column: pa.Array, names: list[str]) -> tuple[Ints, Ints, Ints, Ints, dict[int, str]]:
    """Number of targets a row; category, name and count of the first two; and why targets cannot be read."""
    try:
        converted = from_column(column)
    except ManifestError as error:
        raise ManifestError(f"{file}: {error.message}", hint=error.hint) from None
    lists = converted.array
    numbers = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = lists.flatten()
    # As the file has them: "Cat" is not a category, although a manifest may write it so.
    written = pc.struct_field(_flat(column), "category") if is_list(column.type) else flat.field("category")
    known = _filled(pc.index_in(written, value_set=pa.array(names, pa.string())))
    given = _numbered(written)
    counts = flat.field("count").to_numpy(zero_copy_only=False)
    first = np.cumsum(numbers) - numbers
    shape = (len(column), 2)
    category, name = np.full(shape, UNKNOWN), np.full(shape, UNKNOWN)
    count = np.zeros(shape, np.int64)
    for slot in range(2):
        rows = np.flatnonzero(numbers > slot)
        at = first[rows] + slot
        category[rows, slot], name[rows, slot], count[rows, slot] = known[at], given[at], counts[at]
    faults = dict(converted.faults)
    faults.update({int(row): "no targets" for row in np.flatnonzero(numbers == 0) if int(row) not in faults})
    return numbers, category, name, count, faults


def _flat(column: Any) -> pa.Array:
    return (column if pa.types.is_list(column.type) else column.cast(pa.list_(column.type.value_type))).flatten()
