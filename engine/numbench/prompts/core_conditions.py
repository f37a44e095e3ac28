"""Conditions on the cores of the full prompt file, and on how evenly everything is spread over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.numbench.factors import (
    APPEARANCES,
    COMPOSITIONS,
    GREATEST_COUNT,
    GUIDED,
    LAYOUTS,
    LEAST_COUNT,
    MODIFIERS,
)
from tallymill.engine.numbench.prompts.columns import Flags, Ints, Prompts
from tallymill.engine.numbench.prompts.conditions import (
    SHOWN_FAILURES,
    Condition,
    Failure,
    of_levels,
    of_number,
    of_rows,
)
from tallymill.engine.numbench.prompts.cores import CATEGORIES, CORES, PER_CATEGORY, PER_COUNT

_SLOTS = ("single", "double, first target", "double, second target")
_MODIFIED = APPEARANCES.index("modified")
# Cores of a count with each guided layout: a third of 800 to within one, and to within 5 %.
_WITHIN_ONE, _WITHIN_5 = (266, 267), (254, 280)
_NUMBERS = range(LEAST_COUNT, GREATEST_COUNT + 1)


@dataclass(frozen=True, slots=True)
class _Cores:
    """The cores of a file: ``first`` int64 [cores], the row where each begins.

    ``layout`` is the guided one (position in ``LAYOUTS``, 0 if it has none), ``terms`` those of its first modified row.
    """

    first: Ints
    layout: Ints
    terms: Ints


def full_conditions(prompts: Prompts, categories: Sequence[str]) -> list[Condition]:
    """The conditions on cores and on balance, in the order of Table 2."""
    cores = _cores(prompts)
    return [
        *_levels(prompts),
        *_versions(prompts, cores),
        *_compositions(prompts, cores),
        *_counts(prompts, cores),
        *_categories(prompts, cores, categories),
        *_targets(prompts, cores),
        *_layouts(prompts, cores),
        *_appearance(prompts, cores),
    ]


def _cores(prompts: Prompts) -> _Cores:
    rows = np.flatnonzero(prompts.core >= 0)
    core = prompts.core[rows]
    number = int(core.max(initial=-1)) + 1
    first = np.full(number, prompts.n)
    np.minimum.at(first, core, rows)
    layout = np.zeros(number, np.int64)
    np.maximum.at(layout, core, prompts.layout[rows])
    modified = rows[prompts.appearance[rows] == _MODIFIED]
    terms = np.zeros(number, np.int64)
    terms[prompts.core[modified[::-1]]] = prompts.terms[modified[::-1]]
    return _Cores(first, layout, terms)


def _levels(prompts: Prompts) -> Iterator[Condition]:
    """The second column of Table 2."""
    within = (prompts.count >= LEAST_COUNT) & (prompts.count <= GREATEST_COUNT)
    for dimension, levels, values in (
        ("Composition", len(COMPOSITIONS), prompts.composition),
        ("Count", GREATEST_COUNT, np.where(within, prompts.count, -1)),
        ("Category", CATEGORIES, prompts.category),
        ("Spatial layout", len(LAYOUTS), prompts.layout),
        ("Appearance", len(APPEARANCES), prompts.appearance),
    ):
        yield of_number(dimension, "levels", levels, len(np.unique(values[values >= 0])))


def _versions(prompts: Prompts, cores: _Cores) -> Iterator[Condition]:
    """A core has four prompts that ask for the same."""
    known = prompts.core >= 0
    bits = np.zeros(len(cores.first), np.int64)
    numbers = np.bincount(prompts.core[known], minlength=len(cores.first))
    version = (prompts.layout > 0) * len(APPEARANCES) + prompts.appearance
    told = known & (prompts.layout >= 0) & (prompts.appearance >= 0)
    np.bitwise_or.at(bits, prompts.core[told], np.int64(1) << version[told])
    odd = np.zeros(prompts.n, np.bool_)
    odd[cores.first[(numbers != 4) | (bits != 0b1111)]] = True
    yield of_number("Total", "cores", len(COMPOSITIONS) * CORES, len(cores.first))
    yield of_rows(
        prompts,
        "Cores",
        "free and one guided layout, each clean and modified",
        odd,
        prompts.said("core_id"),
        required="four prompts",
    )
    # A row without a core (-1) takes what is appended.
    guided = known & (prompts.layout > 0) & (prompts.layout != np.append(cores.layout, 0)[prompts.core])
    yield of_rows(prompts, "Cores", "one guided layout", guided, prompts.said("layout"))
    yield from _same(prompts, cores, known)


def _same(prompts: Prompts, cores: _Cores, known: Flags) -> Iterator[Condition]:
    begin = np.append(cores.first, 0)[prompts.core]
    other = np.zeros(prompts.n, np.bool_)
    for column in (prompts.composition, prompts.targets, *prompts.name.T, *prompts.count.T):
        other |= column != column[begin]
    yield of_rows(prompts, "Cores", "the same targets in all prompts", known & other, prompts.said("targets"))
    modified = known & (prompts.appearance == _MODIFIED)
    yield of_rows(
        prompts,
        "Cores",
        "the same modifiers in both layouts",
        modified & (prompts.terms != np.append(cores.terms, 0)[prompts.core]),
        prompts.said("modifiers"),
    )


def _compositions(prompts: Prompts, cores: _Cores) -> Iterator[Condition]:
    for code, name in enumerate(COMPOSITIONS):
        found = int((prompts.composition[cores.first] == code).sum())
        yield of_number("Composition", f"{name} cores", CORES, found)


def _slots(prompts: Prompts, cores: _Cores) -> Iterator[tuple[str, Ints, int]]:
    """Name, rows (one a core) and column of the targets that are balanced each for itself."""
    for name, (composition, slot) in zip(_SLOTS, ((0, 0), (1, 0), (1, 1)), strict=True):
        yield name, cores.first[prompts.composition[cores.first] == composition], slot


def _counts(prompts: Prompts, cores: _Cores) -> Iterator[Condition]:
    for name, rows, slot in _slots(prompts, cores):
        counts = count_levels(prompts, rows, slot)
        yield of_levels(prompts, "Count", f"each in {name}", counts, rows, (PER_COUNT, PER_COUNT), _NUMBERS)
    rows = cores.first[prompts.composition[cores.first] == 1]
    yield independent(prompts.count[rows])


def independent(counts: Ints) -> Condition:
    """Of two independent columns of 80,000 the correlation is beyond 0.02 once in 10^8."""
    name, required = "the two of a double are independent", "|r| at most 0.02"
    if len(counts) < 2 or not np.ptp(counts, axis=0).all():
        return Condition("Count", name, required, "cannot be told", False)
    r = float(np.corrcoef(counts[:, 0], counts[:, 1]).ravel()[1])
    return Condition("Count", name, required, f"r = {r:.4f}", abs(r) <= 0.02)


def _categories(prompts: Prompts, cores: _Cores, categories: Sequence[str]) -> Iterator[Condition]:
    names = [repr(name) for name in categories]
    limits = (PER_CATEGORY, PER_CATEGORY)
    for name, rows, slot in _slots(prompts, cores):
        yield of_levels(prompts, "Category", f"each in {name}", prompts.category[rows, slot], rows, limits, names)


def _targets(prompts: Prompts, cores: _Cores) -> Iterator[Condition]:
    """No targets twice, whichever comes first."""
    codes = prompts.name * (1 << 32) + np.clip(prompts.count, 0, 1 << 31)
    codes.sort(axis=1)
    for composition, name in enumerate(("single: no (category, count) twice", "double: no set of targets twice")):
        rows = np.sort(cores.first[prompts.composition[cores.first] == composition])
        again = np.ones(len(rows), np.bool_)
        again[np.unique(codes[rows], axis=0, return_index=True)[1]] = False
        bad = np.zeros(prompts.n, np.bool_)
        bad[rows[again]] = True
        yield of_rows(prompts, "Cores", name, bad, prompts.said("targets"), required="all different")


def _layouts(prompts: Prompts, cores: _Cores) -> Iterator[Condition]:
    numbers = np.bincount(prompts.layout[prompts.layout >= 0], minlength=len(LAYOUTS)).tolist()
    yield of_number("Spatial layout", "free prompts", 320_000, numbers[0])
    wanted = [106_666, 106_666, 106_668]
    yield Condition(
        "Spatial layout",
        "guided prompts (" + ", ".join(GUIDED) + ")",
        " / ".join(f"{n:,}" for n in reversed(wanted)) + " in any order",
        " / ".join(f"{n:,}" for n in numbers[1:]),
        sorted(numbers[1:]) == wanted,
    )
    guided = cores.layout - 1
    for code, name in enumerate(COMPOSITIONS):
        of = np.flatnonzero(prompts.composition[cores.first] == code)
        limits = (CORES // 3, CORES // 3 + 1)
        rows = cores.first[of]
        yield of_levels(prompts, "Spatial layout", f"each in {name} cores", guided[of], rows, limits, GUIDED)
    yield from _layouts_by_count(prompts, cores, guided)


def _layouts_by_count(prompts: Prompts, cores: _Cores, guided: Ints) -> Iterator[Condition]:
    labels = [f"count {count}, {layout}" for count in _NUMBERS for layout in GUIDED]
    for name, rows, slot in _slots(prompts, cores):
        counts = count_levels(prompts, rows, slot)
        layout = guided[prompts.core[rows]]
        levels = np.where((counts >= 0) & (layout >= 0), counts * len(GUIDED) + layout, -1)
        limits, within = (_WITHIN_ONE, "one") if name == _SLOTS[0] else (_WITHIN_5, "5 %")
        required = f"{limits[0]} to {limits[1]} (within {within})"
        name = f"each, for each count in {name}"
        yield of_levels(prompts, "Spatial layout", name, levels, rows, limits, labels, required=required)


def _appearance(prompts: Prompts, cores: _Cores) -> Iterator[Condition]:
    for code, name in enumerate(APPEARANCES):
        yield of_number("Appearance", f"{name} prompts", 320_000, int((prompts.appearance == code).sum()))
    numbers = np.bitwise_count(cores.terms.astype(np.uint64))
    for code, name in enumerate(COMPOSITIONS):
        of = prompts.composition[cores.first] == code
        halves = [int((numbers[of] == terms).sum()) for terms in (2, 3)]
        found = " / ".join(f"{half:,}" for half in halves)
        required = f"{CORES // 2:,} / {CORES // 2:,}"
        yield Condition("Appearance", f"{name} cores with two / three terms", required, found, required == found)
    yield _terms(cores.terms)


def _terms(terms: Ints) -> Condition:
    numbers = [int((terms >> place & 1).sum()) for place in range(len(MODIFIERS))]
    wanted = 5 * CORES // len(MODIFIERS)  # two and three terms, half of the cores each
    failures = [
        Failure(None, None, f"{term}: {number:,} cores")
        for term, number in zip(MODIFIERS, numbers, strict=True)
        if number != wanted
    ]
    found = f"{min(numbers):,}" if min(numbers) == max(numbers) else f"{min(numbers):,} to {max(numbers):,}"
    return Condition(
        "Appearance",
        "cores with each term",
        f"{wanted:,}",
        found,
        not failures,
        len(failures),
        failures[:SHOWN_FAILURES],
    )


def count_levels(prompts: Prompts, rows: Ints, slot: int) -> NDArray[np.int64]:
    """The counts of a target as levels 0 .. 99, -1 where they lie outside the limits."""
    counts = prompts.count[rows, slot]
    return np.where((counts >= LEAST_COUNT) & (counts <= GREATEST_COUNT), counts - LEAST_COUNT, -1)
