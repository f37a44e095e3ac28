"""Which images of one or several RUNs a report shows: the worst, the typical and random ones of every system.

They are dealt in turn over the cells of Table 4 (composition and count range), so that every cell is seen. Two passes
over the scores, part by part, keep a few candidates a cell: memory does not grow with the RUN. Nothing depends on the
order of rows: ties are broken by a hash of the item's name and the seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tallymill.engine.manifests.hashing import hash64
from tallymill.engine.numbench.analysis.gather import SystemKey
from tallymill.engine.numbench.analysis.images import MULTIPLE
from tallymill.engine.numbench.factors import COMPOSITIONS, COUNT_RANGES, range_codes
from tallymill.engine.numbench.scores import SCORED
from tallymill.engine.report.gallery import GROUPS, RANDOM, TYPICAL, WORST
from tallymill.runners.parts import naming_damage
from tallymill.runners.plan import Shard
from tallymill.runners.run import Run
from tallymill.runners.score_table import in_order

# The median of a cell is known to a 16,384th, which costs the same memory for any number of images.
BINS = 1 << 14
_COLUMNS = ("item_id", "system", "targets", "cw_nps", "status")
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Cell(NamedTuple):
    """A cell of Table 4 of one system."""

    system: SystemKey
    composition: str
    count_range: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """An image of the gallery: row ``row`` of the manifest of the RUN at place ``run``."""

    group: str
    cell: Cell
    row: int

    @property
    def run(self) -> int:
        """The place of its RUN."""
        return self.cell.system[0]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The scored rows of one shard: ``key`` int64 [R] is the place of the cell, ``row`` int64 [R] that in the RUN."""

    key: NDArray[np.int64]
    cw_nps: NDArray[np.float64]
    hash: NDArray[np.uint64]
    row: NDArray[np.int64]


class _Smallest:
    """Of each cell the ``number`` rows with the smallest (distance, hash)."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._kept: dict[int, list[tuple[float, int, int]]] = {}

    def add(self, rows: _Rows, distance: NDArray[np.float64]) -> None:
        near = np.flatnonzero(distance <= self._farthest(int(rows.key.max()) + 1)[rows.key])
        order = near[np.lexsort((rows.hash[near], distance[near], rows.key[near]))]
        key = rows.key[order]
        first = np.flatnonzero(np.diff(key, prepend=-1))
        rank = np.arange(len(key)) - np.repeat(first, np.diff(np.append(first, len(key))))
        for i in order[rank < self._number].tolist():
            kept = self._kept.setdefault(int(rows.key[i]), [])
            kept.append((float(distance[i]), int(rows.hash[i]), int(rows.row[i])))
        for cell in key[first].tolist():
            self._kept[cell] = sorted(self._kept[cell])[: self._number]

    def _farthest(self, cells: int) -> NDArray[np.float64]:
        """float64 [cells]: the distance up to which a row can still be among those that are kept."""
        limit = np.full(cells, np.inf)
        for cell, kept in self._kept.items():
            if len(kept) == self._number and cell < cells:
                limit[cell] = kept[-1][0]
        return limit

    def of(self, cell: int) -> list[int]:
        """The rows of one cell, the smallest first."""
        return [row for _, _, row in self._kept.get(cell, [])]


class _Medians:
    """Of each cell the median of cw-NPS, to the lower edge of its bin."""

    def __init__(self) -> None:
        self._counts: dict[int, NDArray[np.int64]] = {}

    def add(self, rows: _Rows) -> None:
        bins = (rows.cw_nps * BINS).astype(np.int64)
        for cell in np.unique(rows.key).tolist():
            found = np.bincount(bins[rows.key == cell], minlength=BINS + 1)
            self._counts[cell] = self._counts.get(cell, 0) + found

    def table(self, cells: int) -> NDArray[np.float64]:
        """float64 [cells]."""
        values = np.zeros(cells)
        for cell, counts in self._counts.items():
            total = np.cumsum(counts)
            values[cell] = int(np.searchsorted(total, (total[-1] + 1) // 2)) / BINS
        return values


def choose(runs: Sequence[Run], number: int, *, seed: int = 0, workers: int = 1) -> dict[SystemKey, list[Chosen]]:
    """``number`` images of each group for each system, fewer where it has fewer scored ones.

    Groups are the worst, the typical and random images; an image is chosen once, in the first of these that it belongs
    to. Systems without a scored image have an empty list. ``workers`` threads read.
    """
    if number < 1:
        return {}
    cells: dict[Cell, int] = {}
    systems: dict[SystemKey, list[Chosen]] = {}
    worst, random, medians = _Smallest(number), _Smallest(3 * number), _Medians()
    for rows in _scored_rows(runs, cells, systems, seed, workers):
        worst.add(rows, rows.cw_nps)
        random.add(rows, rows.hash.astype(np.float64))
        medians.add(rows)
    middle, typical = medians.table(len(cells)), _Smallest(2 * number)
    for rows in _scored_rows(runs, cells, systems, seed, workers):
        typical.add(rows, np.abs(rows.cw_nps - middle[rows.key]))
    candidates = {WORST: worst, TYPICAL: typical, RANDOM: random}
    return {system: list(_dealt(system, cells, candidates, number)) for system in systems}


def _dealt(
    system: SystemKey, cells: dict[Cell, int], candidates: dict[str, _Smallest], number: int
) -> Iterator[Chosen]:
    """Round after round one image of each cell, until there are enough."""
    own = sorted((cell for cell in cells if cell.system == system), key=_place)
    taken: set[int] = set()
    for group in GROUPS:
        waiting = {cell: iter(candidates[group].of(cells[cell])) for cell in own}
        left = number
        while left and waiting:
            for cell in list(waiting):
                found = next((place for place in waiting[cell] if place not in taken), None)
                if found is None:
                    del waiting[cell]
                elif left:
                    taken.add(found)
                    left -= 1
                    yield Chosen(group, cell, found)


def _place(cell: Cell) -> tuple[int, str, int]:
    known = cell.composition in COMPOSITIONS
    return (
        COMPOSITIONS.index(cell.composition) if known else len(COMPOSITIONS),
        cell.composition,
        COUNT_RANGES.index(cell.count_range),
    )


def _scored_rows(
    runs: Sequence[Run], cells: dict[Cell, int], systems: dict[SystemKey, list[Chosen]], seed: int, workers: int
) -> Iterator[_Rows]:
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        for place, run in enumerate(runs):
            jobs = ((shard, partial(_read, run, shard)) for shard in run.shards)
            for shard, table in in_order(pool, jobs, ahead=2 * max(workers, 1)):
                for value in pc.unique(table["system"]).to_pylist():
                    systems.setdefault((place, value or None), [])
                scored = pc.equal(table["status"], SCORED).to_numpy()
                if scored.any():
                    yield _rows(
                        table.filter(pa.array(scored)), shard.start + np.flatnonzero(scored), place, cells, seed
                    )


def _rows(scored: pa.Table, places: NDArray[np.int64], run: int, cells: dict[Cell, int], seed: int) -> _Rows:
    rows = scored.combine_chunks()
    return _Rows(_keys(rows, run, cells), rows["cw_nps"].to_numpy(), _hashes(rows["item_id"], seed), places)


def _read(run: Run, shard: Shard) -> pa.Table:
    path = run.path / "scores" / shard.part
    with naming_damage(path), pq.ParquetFile(str(path)) as file:
        optional = [name for name in ("composition",) if name in file.schema_arrow.names]
        return file.read([*_COLUMNS, *optional])


def _keys(rows: pa.Table, run: int, cells: dict[Cell, int]) -> NDArray[np.int64]:
    targets = rows["targets"].combine_chunks()
    lengths = targets.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    requested = targets.flatten().field("requested").to_numpy(zero_copy_only=False)
    most = np.maximum.reduceat(requested, np.concatenate([[0], np.cumsum(lengths)[:-1]])).astype(np.int64)
    ranges = np.clip(range_codes(most), 0, len(COUNT_RANGES) - 1)
    by_number = pa.array((COMPOSITIONS[0], *COMPOSITIONS, MULTIPLE)).take(pa.array(np.minimum(lengths, 3)))
    if "composition" in rows.column_names:
        given = rows["composition"].cast(pa.string()).combine_chunks()
        by_number = pc.coalesce(given, by_number)
    systems, composed = (column.dictionary_encode("encode") for column in (rows["system"].combine_chunks(), by_number))
    codes = [np.asarray(column.indices, np.int64) for column in (systems, composed)]
    joined = (codes[0] * len(composed.dictionary) + codes[1]) * len(COUNT_RANGES) + ranges
    found, inverse = np.unique(joined, return_inverse=True)
    keys = []
    for code in found.tolist():
        rest, count_range = divmod(code, len(COUNT_RANGES))
        system, composition = divmod(rest, len(composed.dictionary))
        name = systems.dictionary[system].as_py() or None
        cell = Cell((run, name), composed.dictionary[composition].as_py(), COUNT_RANGES[count_range])
        keys.append(cells.setdefault(cell, len(cells)))
    return np.array(keys, np.int64)[inverse]


def _hashes(names: pa.ChunkedArray, seed: int) -> NDArray[np.uint64]:
    """A number that follows from an item's name and the seed alone."""
    mixed = hash64(names.combine_chunks()) ^ np.uint64(seed * int(_SPREAD) % (1 << 64))
    mixed = (mixed ^ (mixed >> np.uint64(31))) * _SPREAD
    result: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(29))
    return result
