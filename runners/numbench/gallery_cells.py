"""What a gallery keeps of the scored rows of each cell: the nearest to something, and the median of their scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# The median of a cell is known to a 16,384th. That costs two bytes an image, and where there are more than so many of a
# cell 131 kB for any number of them.
BINS = 1 << 14
_FEW = 1 << 15


@dataclass(frozen=True, slots=True)
class CellRows:
    """Scored rows: ``key`` int64 [R] is the place of the cell, ``row`` int64 [R] that in the RUN."""

    key: NDArray[np.int64]
    cw_nps: NDArray[np.float64]
    hash: NDArray[np.uint64]
    row: NDArray[np.int64]


class Smallest:
    """Of each cell the ``number`` rows with the smallest (distance, hash)."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._kept: dict[int, list[tuple[float, int, int]]] = {}
        # By cell what a row must not exceed to be among those that are kept.
        self._distance = np.zeros(0)
        self._hash = np.zeros(0, np.uint64)

    def add(self, rows: CellRows, distance: NDArray[np.float64], cells: int) -> None:
        """Consider rows, with their ``distance`` float64 [R]; there are ``cells`` cells so far."""
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


class Medians:
    """Of each cell the median of cw-NPS, to the lower edge of its bin.

    A cell of few images keeps the bin of each, two bytes; one of more keeps how many are in each bin.
    """

    def __init__(self) -> None:
        self._few: dict[int, bytearray] = {}
        self._many: dict[int, NDArray[np.int64]] = {}

    def add(self, rows: CellRows) -> None:
        """Count rows."""
        order = np.argsort(rows.key, kind="stable")
        key, bins = rows.key[order], (rows.cw_nps[order] * BINS).astype(np.uint16)
        first = np.flatnonzero(np.diff(key, prepend=-1))
        for cell, start, stop in zip(key[first].tolist(), first, np.append(first[1:], len(key)), strict=True):
            if cell in self._many:
                np.add.at(self._many[cell], bins[start:stop], 1)
                continue
            few = self._few.setdefault(cell, bytearray())
            few += bins[start:stop].tobytes()
            if len(few) > _FEW * bins.itemsize:
                self._many[cell] = np.bincount(np.frombuffer(self._few.pop(cell), np.uint16), minlength=BINS + 1)

    def table(self, cells: int) -> NDArray[np.float64]:
        """The medians, float64 [cells]; 0 of a cell without rows."""
        values = np.zeros(cells)
        for cell, few in self._few.items():
            bins = np.frombuffer(few, np.uint16)
            middle = (len(bins) - 1) // 2
            values[cell] = int(np.partition(bins, middle)[middle]) / BINS
        for cell, counts in self._many.items():
            total = np.cumsum(counts)
            values[cell] = int(np.searchsorted(total, (total[-1] + 1) // 2)) / BINS
        return values
