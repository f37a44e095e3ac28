"""Which images of one or several RUNs a report shows: the worst, the typical and random ones of every system.

They are dealt in turn over the cells of Table 4 (composition and count range), so that every cell is seen. Two passes
over the scores, part by part, keep a few candidates a cell: memory does not grow with the RUN. Nothing depends on the
order of rows: ties are broken by a hash of the item's name and the seed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.types import is_nested, is_string

from tallymill.engine.manifests.hashing import hash64
from tallymill.engine.numbench.analysis.codes import encoded_strings
from tallymill.engine.numbench.analysis.gather import SystemKey
from tallymill.engine.numbench.analysis.images import MULTIPLE
from tallymill.engine.numbench.factors import COMPOSITIONS, COUNT_RANGES, range_codes
from tallymill.engine.numbench.scores import SCORED
from tallymill.engine.report.gallery import GROUPS, RANDOM, TYPICAL, WORST
from tallymill.runners.numbench.analyse_shard import grouped
from tallymill.runners.parts import naming_damage
from tallymill.runners.plan import Shard
from tallymill.runners.run import Run
from tallymill.runners.score_table import in_order

# The median of a cell is known to a 16,384th, which costs the same memory for any number of images.
BINS = 1 << 14
# So many images at once that what is done for each group costs little, and memory too.
_AT_ONCE = 1 << 15
_COLUMNS = ("item_id", "system", "targets.list.element.requested", "cw_nps", "status")
_ENCODED, _TOLD = ("system", "status"), ("composition",)
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
    """Scored rows: ``key`` int64 [R] is the place of the cell, ``row`` int64 [R] that in the RUN."""

    key: NDArray[np.int64]
    cw_nps: NDArray[np.float64]
    hash: NDArray[np.uint64]
    row: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Group:
    """Some shards as a thread read them: the systems that have rows, the cells that have scored ones, and these.

    The keys of ``rows`` are places in ``cells``.
    """

    systems: list[SystemKey]
    cells: list[Cell]
    rows: _Rows


class _Smallest:
    """Of each cell the ``number`` rows with the smallest (distance, hash)."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._kept: dict[int, list[tuple[float, int, int]]] = {}
        # By cell what a row must not exceed to be among those that are kept.
        self._distance = np.zeros(0)
        self._hash = np.zeros(0, np.uint64)

    def add(self, rows: _Rows, distance: NDArray[np.float64], cells: int) -> None:
        self._grow(cells)
        near = np.flatnonzero(distance <= self._distance[rows.key])
        key = rows.key[near]
        # Where many are as far as the last that is kept (scores of 0 are), the hash leaves few of them.
        near = near[(distance[near] < self._distance[key]) | (rows.hash[near] <= self._hash[key])]
        order = near[np.lexsort((rows.hash[near], distance[near], rows.key[near]))]
        key = rows.key[order]
        first = np.flatnonzero(np.diff(key, prepend=-1))
        rank = np.arange(len(key)) - np.repeat(first, np.diff(np.append(first, len(key))))
        for i in order[rank < self._number].tolist():
            kept = self._kept.setdefault(int(rows.key[i]), [])
            kept.append((float(distance[i]), int(rows.hash[i]), int(rows.row[i])))
        for cell in key[first].tolist():
            kept = self._kept[cell] = sorted(self._kept[cell])[: self._number]
            if len(kept) == self._number:
                self._distance[cell], self._hash[cell] = kept[-1][:2]

    def _grow(self, cells: int) -> None:
        new = cells - len(self._distance)
        if new > 0:
            self._distance = np.append(self._distance, np.full(new, np.inf))
            self._hash = np.append(self._hash, np.full(new, np.iinfo(np.uint64).max))

    def of(self, cell: int) -> list[int]:
        """The rows of one cell, the smallest first."""
        return [row for _, _, row in self._kept.get(cell, [])]


class _Medians:
    """Of each cell the median of cw-NPS, to the lower edge of its bin."""

    def __init__(self) -> None:
        self._counts = np.zeros((0, BINS + 1), np.int64)

    def add(self, rows: _Rows, cells: int) -> None:
        if cells > len(self._counts):
            self._counts = np.pad(self._counts, ((0, cells - len(self._counts)), (0, 0)))
        bins = (rows.cw_nps * BINS).astype(np.int64)
        np.add.at(self._counts.reshape(-1), rows.key * (BINS + 1) + bins, 1)

    def table(self) -> NDArray[np.float64]:
        """float64 [cells]."""
        values = np.zeros(len(self._counts))
        for cell, counts in enumerate(self._counts):
            total = np.cumsum(counts)
            values[cell] = int(np.searchsorted(total, (total[-1] + 1) // 2)) / BINS
        return values


def choose(
    runs: Sequence[Run],
    number: int,
    *,
    seed: int = 0,
    workers: int = 1,
    compositions: Collection[str] | None = None,
) -> dict[SystemKey, list[Chosen]]:
    """``number`` images of each group for each system, fewer where it has fewer scored ones.

    Groups are the worst, the typical and random images; an image is chosen once, in the first of these that it belongs
    to. Systems without a scored image have an empty list. ``workers`` threads read. Where a RUN calls a composition
    something else than ``compositions``, the number of targets names it; without them every word stands.
    """
    if number < 1:
        return {}
    cells: dict[Cell, int] = {}
    systems: dict[SystemKey, list[Chosen]] = {}
    reader = _Reader(seed, compositions)
    worst, random, medians = _Smallest(number), _Smallest(3 * number), _Medians()
    for rows in _scored_rows(runs, reader, cells, systems, workers):
        worst.add(rows, rows.cw_nps, len(cells))
        random.add(rows, rows.hash.astype(np.float64), len(cells))
        medians.add(rows, len(cells))
    middle, typical = medians.table(), _Smallest(2 * number)
    for rows in _scored_rows(runs, reader, cells, systems, workers):
        typical.add(rows, np.abs(rows.cw_nps - middle[rows.key]), len(cells))
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
    runs: Sequence[Run], reader: _Reader, cells: dict[Cell, int], systems: dict[SystemKey, list[Chosen]], workers: int
) -> Iterator[_Rows]:
    """The scored rows of all RUNs, in their order; new systems and cells are entered."""
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        for place, run in enumerate(runs):
            groups = grouped(run.shards, _AT_ONCE)
            jobs = ((shards[0], partial(reader.read, run, place, shards)) for shards in groups)
            for _, group in in_order(pool, jobs, ahead=2 * max(workers, 1)):
                for system in group.systems:
                    systems.setdefault(system, [])
                if group.cells:
                    keys = np.array([cells.setdefault(cell, len(cells)) for cell in group.cells], np.int64)
                    yield replace(group.rows, key=keys[group.rows.key])


class _Reader:
    """Reads shards; threads may share it."""

    def __init__(self, seed: int, compositions: Collection[str] | None) -> None:
        self._seed, self._compositions = seed, compositions

    def read(self, run: Run, place: int, shards: Sequence[Shard]) -> _Group:
        """Shards that lie one behind the other, of the RUN at ``place``."""
        tables = [_table(run.path / "scores" / shard.part) for shard in shards]
        table = pa.concat_tables(tables, promote_options="default").unify_dictionaries()
        system, names = encoded_strings(table["system"])
        status, words = encoded_strings(table["status"])
        scored = np.flatnonzero(status == words.index(SCORED).as_py())
        systems: list[SystemKey] = [(place, name or None) for name in [*names.to_pylist(), None]]
        met = [systems[code] for code in _distinct(system)[0].tolist()]
        if not len(scored):
            nothing = np.zeros(0, np.int64)
            return _Group(met, [], _Rows(nothing, np.zeros(0), np.zeros(0, np.uint64), nothing))
        rows = table if len(scored) == len(table) else table.take(pa.array(scored))
        composition, compositions, most = self._targets(rows)
        joined = (system[scored] % len(systems) * len(compositions) + composition) * len(COUNT_RANGES) + most
        found, key = _distinct(joined)
        cells = []
        for code in found.tolist():
            rest, count_range = divmod(code, len(COUNT_RANGES))
            of, word = divmod(rest, len(compositions))
            cells.append(Cell(systems[of], compositions[word], COUNT_RANGES[count_range]))
        hashes = _hashes(rows["item_id"].combine_chunks(), self._seed)
        return _Group(met, cells, _Rows(key, rows["cw_nps"].to_numpy(), hashes, shards[0].start + scored))

    def _targets(self, rows: pa.Table) -> tuple[NDArray[np.int64], list[str], NDArray[np.int64]]:
        """The composition of each row as a place in the list, and its count range by the largest count."""
        targets = rows["targets"].combine_chunks()
        lengths = np.asarray(targets.value_lengths(), np.int64)
        requested = targets.flatten().field("requested").to_numpy(zero_copy_only=False)
        most = np.maximum.reduceat(requested, np.concatenate([[0], np.cumsum(lengths)[:-1]])).astype(np.int64)
        ranges = np.clip(range_codes(most), 0, len(COUNT_RANGES) - 1)
        words = [COMPOSITIONS[0], *COMPOSITIONS, MULTIPLE]
        by_number = np.minimum(lengths, 3)
        if "composition" not in rows.column_names:
            return by_number, words, ranges
        told, others = encoded_strings(rows["composition"])
        known = [w is not None and (self._compositions is None or w in self._compositions) for w in others.to_pylist()]
        use = np.array([*known, False])[told]
        return np.where(use, told + len(words), by_number), [*words, *others.to_pylist()], ranges


def _table(path: Path) -> pa.Table:
    with naming_damage(path):
        metadata = pq.read_metadata(str(path))
        schema = metadata.schema.to_arrow_schema()
        told = [name for name in _TOLD if name in schema.names and not is_nested(schema.field(name).type)]
        encoded = [name for name in (*_ENCODED, *told) if is_string(schema.field(name).type)]
        with pq.ParquetFile(str(path), metadata=metadata, read_dictionary=encoded) as file:
            return file.read([*_COLUMNS, *told], use_threads=False)


def _distinct(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different numbers as they come, and of each number its place among them."""
    encoded = pa.array(codes).dictionary_encode()
    return encoded.dictionary.to_numpy(), np.asarray(encoded.indices, np.int64)


def _hashes(names: pa.Array, seed: int) -> NDArray[np.uint64]:
    """A number that follows from an item's name and the seed alone."""
    mixed = hash64(names) ^ np.uint64(seed * int(_SPREAD) % (1 << 64))
    mixed = (mixed ^ (mixed >> np.uint64(31))) * _SPREAD
    result: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(29))
    return result
