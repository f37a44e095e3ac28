"""Which images of one or several RUNs a report shows: the worst, the typical and random ones of every system.

They are dealt in turn over the cells of Table 4 (composition and count range), so that every cell is seen. Two passes
over the scores, part by part, keep of each cell a few candidates, and for its median two bytes an image and at most
131 kB. Nothing depends on the order of rows: ties are broken by a hash of the item's name and the seed.
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
from tallymill.runners.numbench.gallery_cells import CellRows, Medians, Smallest
from tallymill.runners.parts import naming_damage
from tallymill.runners.plan import Shard
from tallymill.runners.run import Run
from tallymill.runners.score_table import in_order

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
class _Group:
    """Some shards as a thread read them: the systems that have rows, the cells that have scored ones, and these.

    The keys of ``rows`` are places in ``cells``.
    """

    systems: list[SystemKey]
    cells: list[Cell]
    rows: CellRows


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
    worst, random, medians = Smallest(number), Smallest(3 * number), Medians()
    for rows in _scored_rows(runs, reader, cells, systems, workers):
        worst.add(rows, rows.cw_nps, len(cells))
        random.add(rows, rows.hash.astype(np.float64), len(cells))
        medians.add(rows)
    middle, typical = medians.table(len(cells)), Smallest(2 * number)
    for rows in _scored_rows(runs, reader, cells, systems, workers):
        typical.add(rows, np.abs(rows.cw_nps - middle[rows.key]), len(cells))
    candidates = {WORST: worst, TYPICAL: typical, RANDOM: random}
    return {system: list(_dealt(system, cells, candidates, number)) for system in systems}


def _dealt(system: SystemKey, cells: dict[Cell, int], candidates: dict[str, Smallest], number: int) -> Iterator[Chosen]:
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
) -> Iterator[CellRows]:
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
        # Of a shard without the word its place is -1, as that of a row without any status is.
        scored = np.flatnonzero((status == words.index(SCORED).as_py()) & (status >= 0))
        systems: list[SystemKey] = [(place, name or None) for name in [*names.to_pylist(), None]]
        met = [systems[code] for code in _distinct(system)[0].tolist()]
        if not len(scored):
            nothing = np.zeros(0, np.int64)
            return _Group(met, [], CellRows(nothing, np.zeros(0), np.zeros(0, np.uint64), nothing))
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
        return _Group(met, cells, CellRows(key, rows["cw_nps"].to_numpy(), hashes, shards[0].start + scored))

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
