"""The balanced subset of 3,200 prompts: 50 in each cell of count range x composition x layout x appearance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tallymill.engine.numbench.factors import APPEARANCES, COMPOSITIONS, COUNT_RANGES, GREATEST_COUNT, LAYOUTS
from tallymill.engine.numbench.prompts.build import SUBSET, facts_of, rows_sha256, with_facts
from tallymill.engine.numbench.prompts.columns import Flags, Ints, Prompts, read_columns
from tallymill.engine.numbench.prompts.matching import NOBODY, assign
from tallymill.engine.numbench.prompts.streams import Stream
from tallymill.engine.numbench.prompts.subset_conditions import PER_CELL
from tallymill.errors import ManifestError

_SINGLE, _DOUBLE = COMPOSITIONS.index("single"), COMPOSITIONS.index("double")
_MOST_USES = 3


def choose_subset(table: pa.Table, categories: Sequence[str], seed: int = 0, *, file: str = "the table") -> pa.Table:
    """3,200 rows of a full prompt table, in its order and with its ids, chosen by the seed.

    No core stands twice; each category once in single prompts and one to three times in double ones; in each single
    cell each count twice. Raises ``ManifestError`` where the table has not the prompts for it.
    """
    prompts = read_columns(file, table, list(categories))
    if strange := np.flatnonzero(_bad(prompts)).tolist():
        raise ManifestError(
            f"{file}: row {strange[0] + 1} ({prompts.prompt_id(strange[0])!r}) is not a sound prompt",
            hint="tallymill prompts check FILE says what is wrong",
        )
    chosen = [*_singles(prompts, len(categories), seed, file), *_doubles(prompts, len(categories), seed, file)]
    facts: dict[str, Any] = {**facts_of(table.schema), "kind": SUBSET, "subset_seed": seed}
    facts["from_rows_sha256"] = rows_sha256(table)
    return with_facts(table.take(pa.array(np.sort(np.array(chosen)))).combine_chunks(), facts)


def _bad(prompts: Prompts) -> Flags:
    """Rows that lack what the choice goes by."""
    codes = (prompts.composition, prompts.layout, prompts.appearance, prompts.count_range, prompts.core)
    slots = np.arange(2) < (prompts.composition == _DOUBLE)[:, None] + 1
    lacking = (prompts.category < 0) | (prompts.count < 1) | (prompts.count > GREATEST_COUNT)
    bad: Flags = (
        (np.min(codes, axis=0) < 0) | (lacking & slots).any(axis=1) | (prompts.targets != prompts.composition + 1)
    )
    return bad


def _singles(prompts: Prompts, categories: int, seed: int, file: str) -> Iterator[int]:
    """A row a category: one of the 400 (count, layout), of which each takes two clean and two modified prompts.

    Which category takes which is an assignment, for a category has 50 counts only, and a guided layout for a third of
    them. Inside a (count, layout) chance decides which two are the clean ones.
    """
    stream = Stream(seed, "subset, single")
    rows = np.flatnonzero((prompts.composition == _SINGLE) & (prompts.appearance == 0))
    rows = rows[stream.order(len(rows))]
    place = (prompts.count[rows, 0] - 1) * len(LAYOUTS) + prompts.layout[rows]
    choices: list[dict[int, int]] = [{} for _ in range(categories)]
    for row, category, at in zip(rows.tolist(), prompts.category[rows, 0].tolist(), place.tolist(), strict=True):
        choices[category].setdefault(at, row)
    per_place = 2 * len(APPEARANCES)
    places = assign([list(found) for found in choices], [per_place] * (GREATEST_COUNT * len(LAYOUTS)))
    if (missing := places.count(NOBODY)) or len(places) != per_place * GREATEST_COUNT * len(LAYOUTS):
        raise _lacking(file, f"single prompts: {missing} categories find no count and layout")
    taken = np.array([choices[category][at] for category, at in enumerate(places)])
    order = stream.order_within(np.array(places)).reshape(-1, per_place)
    other = _other_appearance(prompts, _SINGLE)
    yield from taken[order[:, :2].ravel()].tolist()
    for row in taken[order[:, 2:].ravel()].tolist():
        if row not in other:
            raise _lacking(file, f"the modified prompt of {prompts.prompt_id(row)!r} is not there")
        yield other[row]


def _other_appearance(prompts: Prompts, composition: int) -> dict[int, int]:
    """Row of the modified prompt for the row of each clean one of the same core and layout."""
    of = np.flatnonzero(prompts.composition == composition)
    key = prompts.core[of] * len(LAYOUTS) + prompts.layout[of]
    modified = prompts.appearance[of] == 1
    by_key = dict(zip(key[modified].tolist(), of[modified].tolist(), strict=True))
    clean = zip(key[~modified].tolist(), of[~modified].tolist(), strict=True)
    return {row: by_key[at] for at, row in clean if at in by_key}


def _doubles(prompts: Prompts, categories: int, seed: int, file: str) -> list[int]:
    """50 rows a cell in which each category stands twice as far as that goes, and one to three times.

    First each category in turn that is not used yet takes one of its rows, beside the least used category and in the
    cell with the most room; then the cells are filled, with the least used categories first.
    """
    stream = Stream(seed, "subset, double")
    rows = np.flatnonzero(prompts.composition == _DOUBLE)
    draft = _Draft(prompts, rows[stream.order(len(rows))], categories)
    own = np.argsort(draft.pairs.ravel(), kind="stable") // 2
    starts = np.searchsorted(np.sort(draft.pairs.ravel()), np.arange(categories + 1))
    for category in stream.order(categories).tolist():
        if draft.uses[category]:
            continue
        free = draft.free(own[starts[category] : starts[category + 1]], _MOST_USES)
        if not len(free):
            raise _lacking(file, f"double prompts: no place for category {category + 1} of the vocabulary")
        draft.take(int(free[np.lexsort((-draft.room[draft.cells[free]], draft.used(free)))[0]]))
    for cell in range(len(draft.room)):
        _fill(draft, cell)
        if draft.room[cell]:
            raise _lacking(file, f"double prompts: {draft.room[cell]} too few in cell {cell + 1} of {len(draft.room)}")
    return draft.chosen


class _Draft:
    """Double prompts chosen so far, of ``rows`` in random order.

    ``uses`` counts the prompts of each category, ``room`` what each of the 32 cells still takes.
    """

    def __init__(self, prompts: Prompts, rows: Ints, categories: int) -> None:
        levels = (prompts.count_range[rows], prompts.layout[rows], prompts.appearance[rows])
        shape = (len(COUNT_RANGES), len(LAYOUTS), len(APPEARANCES))
        self.rows, self.cores, self.pairs = rows, prompts.core[rows], prompts.category[rows]
        self.cells = np.ravel_multi_index(levels, shape)
        self.uses = np.zeros(categories, np.int64)
        self.room = np.full(int(np.prod(shape)), PER_CELL)
        self.taken = np.zeros(int(prompts.core.max()) + 1, np.bool_)
        self.chosen: list[int] = []

    def used(self, of: Ints) -> Ints:
        """How often the more used category of each has been used."""
        most: Ints = self.uses[self.pairs[of]].max(axis=1)
        return most

    def free(self, of: Ints, limit: int) -> Ints:
        """Those whose cell has room, whose core is not taken and whose categories were used less than ``limit``."""
        return of[(self.room[self.cells[of]] > 0) & ~self.taken[self.cores[of]] & (self.used(of) < limit)]

    def take(self, at: int) -> None:
        """Choose one."""
        self.uses[self.pairs[at]] += 1
        self.room[self.cells[at]] -= 1
        self.taken[self.cores[at]] = True
        self.chosen.append(int(self.rows[at]))


def _fill(draft: _Draft, cell: int) -> None:
    own = np.flatnonzero(draft.cells == cell)
    for limit in range(1, _MOST_USES + 1):
        for at in draft.free(own, limit).tolist():
            if not draft.room[cell]:
                return
            # What was taken since may be one of its core or categories.
            if len(draft.free(np.array([at]), limit)):
                draft.take(at)


def _lacking(file: str, what: str) -> ManifestError:
    return ManifestError(
        f"{file}: the balanced subset cannot be chosen: {what}",
        hint="take it from a file of all 640,000 prompts (`tallymill prompts build`)",
    )
