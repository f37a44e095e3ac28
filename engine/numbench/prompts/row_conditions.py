"""Conditions that each row of a prompt file satisfies or not, whatever the others are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymill.engine.numbench.factors import (
    APPEARANCES,
    COMPOSITIONS,
    COUNT_RANGES,
    GREATEST_COUNT,
    LAYOUTS,
    LEAST_COUNT,
    MODIFIER_GROUPS,
    modifier_group,
)
from tallymill.engine.numbench.prompts.columns import Flags, Ints, Prompts
from tallymill.engine.numbench.prompts.conditions import Condition, of_number, of_rows
from tallymill.engine.numbench.prompts.text import prompt_texts, terms_of

_FACTORS = {"composition": COMPOSITIONS, "layout": LAYOUTS, "appearance": APPEARANCES, "count_range": COUNT_RANGES}
_MODIFIED = APPEARANCES.index("modified")


def row_conditions(prompts: Prompts, categories: Sequence[str], plurals: Sequence[str], rows: int) -> list[Condition]:
    """The conditions on single rows, and that ids and texts are all different."""
    return [
        of_number("Total", "prompts", rows, prompts.n),
        *chain(_ids(prompts), _factors(prompts), _targets(prompts), _modifiers(prompts)),
        *_texts(prompts, categories, plurals),
    ]


def _ids(prompts: Prompts) -> Iterator[Condition]:
    ids, core_ids, layouts, appearances = (
        prompts.columns[name] for name in ("prompt_id", "core_id", "layout", "appearance")
    )
    empty = _empty(ids) | _empty(core_ids)
    yield of_rows(prompts, "Ids", "none empty", empty, prompts.said("core_id"))
    yield of_rows(prompts, "Ids", "prompt_id unique", repeated(ids), prompts.said("core_id"))
    differ = differing(ids, pc.binary_join_element_wise(core_ids, layouts, appearances, "-"))
    initials = pa.array([*(name[0] for name in COMPOSITIONS), None]).take(pa.array(prompts.composition % 3))
    first = pc.utf8_slice_codeunits(core_ids, 0, 1)
    yield of_rows(
        prompts,
        "Ids",
        "prompt_id = core_id-layout-appearance",
        ~empty & (differ | differing(first, initials)),
        lambda row: f"core_id {prompts.value('core_id', row)!r}, {prompts.value('composition', row)!r}",
    )


def _factors(prompts: Prompts) -> Iterator[Condition]:
    codes = {
        "composition": prompts.composition,
        "layout": prompts.layout,
        "appearance": prompts.appearance,
        "count_range": prompts.count_range,
    }
    for column, levels in _FACTORS.items():
        yield of_rows(
            prompts,
            "Levels",
            f"{column} is a level of it",
            codes[column] < 0,
            prompts.said(column),
            required=", ".join(levels),
        )


def _targets(prompts: Prompts) -> Iterator[Condition]:
    unreadable = np.zeros(prompts.n, np.bool_)
    unreadable[list(prompts.target_faults)] = True
    yield of_rows(prompts, "Targets", "can be read", unreadable, lambda row: prompts.target_faults[row])
    known = ~unreadable & (prompts.composition >= 0)

    def targets(row: int) -> str:
        pairs = prompts.value("targets", row)
        readable = isinstance(pairs, list) and all(isinstance(pair, dict) for pair in pairs)
        return " and ".join(f"{p['count']} {p['category']}" for p in pairs) if readable else repr(pairs)  # type: ignore[attr-defined]

    wrong = known & (prompts.targets != prompts.composition + 1)
    yield of_rows(prompts, "Targets", "one in single, two in double", wrong, targets)
    there: Flags = (np.arange(2) < prompts.targets[:, None]) & ~unreadable[:, None]
    strange: Flags = np.any(there & (prompts.category < 0), axis=1)
    yield of_rows(prompts, "Targets", "categories of the vocabulary", strange, targets)
    twice: Flags = (prompts.targets >= 2) & ~unreadable & (prompts.name[:, 0] == prompts.name[:, 1])
    yield of_rows(prompts, "Targets", "two categories are distinct", twice, targets)
    beyond = (prompts.count < LEAST_COUNT) | (prompts.count > GREATEST_COUNT)
    outside: Flags = np.any(there & beyond, axis=1)
    limits = f"{LEAST_COUNT} to {GREATEST_COUNT}"
    yield of_rows(prompts, "Targets", "counts within limits", outside, targets, required=limits)
    ranges = (prompts.count.max(axis=1) - 1) // (GREATEST_COUNT // len(COUNT_RANGES))
    differ = there[:, 0] & ~outside & (prompts.count_range >= 0) & (ranges != prompts.count_range)
    yield of_rows(
        prompts,
        "Targets",
        "count_range is that of the larger count",
        differ,
        lambda row: f"{prompts.value('count_range', row)} for {targets(row)}",
    )


def _modifiers(prompts: Prompts) -> Iterator[Condition]:
    modifiers = prompts.said("modifiers")
    yield of_rows(prompts, "Modifiers", "known, each once, in the order of Table 3", ~prompts.terms_well, modifiers)
    numbers = np.bitwise_count(prompts.terms.astype(np.uint64))
    wrong = np.where(prompts.appearance == _MODIFIED, (numbers != 2) & (numbers != 3), numbers != 0)
    yield of_rows(
        prompts, "Modifiers", "two or three if modified, none if clean", wrong & (prompts.appearance >= 0), modifiers
    )
    groups = pa.array([modifier_group(terms_of(bits)) if bits else None for bits in range(256)], pa.string())
    expected = groups.take(pa.array(prompts.terms))
    given = prompts.columns["modifier_group"]
    yield of_rows(
        prompts,
        "Modifiers",
        "modifier_group is what they are",
        differing(given, expected) & prompts.terms_well,
        lambda row: f"{prompts.value('modifier_group', row)!r} for {modifiers(row)}",
        required=f"{', '.join(MODIFIER_GROUPS)}; null if clean",
    )


def _texts(prompts: Prompts, categories: Sequence[str], plurals: Sequence[str]) -> Iterator[Condition]:
    text, value = prompts.columns["text"], prompts.said("text")
    yield of_rows(prompts, "Texts", "none empty", _empty(text), value)
    yield of_rows(prompts, "Texts", "all different", repeated(text), value)
    rows = np.flatnonzero(_well(prompts))
    expected = prompt_texts(
        categories,
        plurals,
        np.maximum(prompts.category[rows], 0),
        prompts.count[rows],
        prompts.layout[rows],
        prompts.terms[rows],
    )
    differ = np.zeros(prompts.n, np.bool_)
    differ[rows] = differing(text.take(pa.array(rows)), expected)
    yield of_rows(
        prompts,
        "Texts",
        "say the targets, layout and modifiers",
        differ,
        lambda row: f"{value(row)}, not {expected[int(np.searchsorted(rows, row))].as_py()!r}",
    )


def _well(prompts: Prompts) -> Flags:
    """Rows of which it can be told what their text should be."""
    slots = np.arange(2) < prompts.targets[:, None]
    inside = (prompts.category >= 0) & (prompts.count >= LEAST_COUNT) & (prompts.count <= GREATEST_COUNT)
    well: Flags = (inside | ~slots).all(axis=1) & (prompts.targets >= 1) & (prompts.targets <= 2)
    well &= prompts.terms_well & (prompts.layout >= 0)
    well[list(prompts.target_faults)] = False
    return well


def repeated(column: pa.Array) -> Flags:
    """Where a value stands that stood before; null and empty ones apart."""
    codes: Ints = pc.fill_null(column.dictionary_encode().indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    again = np.ones(len(codes), np.bool_)
    again[np.unique(codes, return_index=True)[1]] = False
    found: Flags = again & ~_empty(column)
    return found


def differing(left: pa.Array, right: pa.Array) -> Flags:
    """Where two columns of text differ; null equals null alone."""
    same = pc.fill_null(pc.equal(left, right), False)
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    differ: Flags = ~pc.or_(same, both_null).to_numpy(zero_copy_only=False)
    return differ


def _empty(column: pa.Array) -> Flags:
    empty: Flags = pc.fill_null(pc.equal(column, ""), True).to_numpy(zero_copy_only=False)
    return empty
