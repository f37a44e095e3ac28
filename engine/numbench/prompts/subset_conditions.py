"""Conditions on the balanced subset of 3,200 prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from tallymill.engine.numbench.factors import APPEARANCES, COMPOSITIONS, COUNT_RANGES, GREATEST_COUNT, LAYOUTS
from tallymill.engine.numbench.prompts.build import SUBSET_ROWS
from tallymill.engine.numbench.prompts.columns import Ints, Prompts
from tallymill.engine.numbench.prompts.conditions import Condition, of_levels, of_rows
from tallymill.engine.numbench.prompts.core_conditions import count_levels

_SINGLE, _DOUBLE = COMPOSITIONS.index("single"), COMPOSITIONS.index("double")
_FACTORS = (COMPOSITIONS, COUNT_RANGES, LAYOUTS, APPEARANCES)
CELLS = [" ".join(levels) for levels in product(*_FACTORS)]
PER_CELL = SUBSET_ROWS // len(CELLS)


def cells_of(prompts: Prompts) -> Ints:
    """The cell of composition x count range x layout x appearance of each row, -1 where a level is unknown."""
    codes = (prompts.composition, prompts.count_range, prompts.layout, prompts.appearance)
    cell = np.zeros(prompts.n, np.int64)
    for code, levels in zip(codes, _FACTORS, strict=True):
        cell = cell * len(levels) + code
    return np.where(np.min(codes, axis=0) < 0, -1, cell)


def subset_conditions(prompts: Prompts, categories: Sequence[str]) -> list[Condition]:
    """The conditions on cores and on balance."""
    rows = np.arange(prompts.n)
    again = np.ones(prompts.n, np.bool_)
    again[np.unique(prompts.core, return_index=True)[1]] = False
    cells = of_levels(prompts, "Cells", "each of the 64", cells_of(prompts), rows, (PER_CELL, PER_CELL), CELLS)
    core = of_rows(prompts, "Cores", "none twice", again & (prompts.core >= 0), prompts.said("core_id"))
    return [cells, core, *_categories(prompts, categories), _counts(prompts)]


def _categories(prompts: Prompts, categories: Sequence[str]) -> Iterator[Condition]:
    names = [repr(name) for name in categories]
    rows = np.flatnonzero(prompts.composition == _SINGLE)
    yield of_levels(prompts, "Category", "each in single", prompts.category[rows, 0], rows, (1, 1), names)
    rows = np.flatnonzero(prompts.composition == _DOUBLE)
    both = prompts.category[rows].ravel()
    yield of_levels(prompts, "Category", "each in double", both, np.repeat(rows, 2), (1, 3), names)


def _counts(prompts: Prompts) -> Condition:
    """How many of the 800 (count, layout, appearance) of single prompts have two."""
    rows = np.flatnonzero((prompts.composition == _SINGLE) & (cells_of(prompts) >= 0))
    count = count_levels(prompts, rows, 0)
    levels = (count * len(LAYOUTS) + prompts.layout[rows]) * len(APPEARANCES) + prompts.appearance[rows]
    number = GREATEST_COUNT * len(LAYOUTS) * len(APPEARANCES)
    twice = int((np.bincount(levels[count >= 0], minlength=number) == 2).sum())
    found = f"{twice} of {number} do"
    return Condition(
        "Count", "each in each single cell", "2, as far as possible", found, None if twice < number else True
    )
