"""Whole numbers by core and attributes that grow shard by shard; no order of shards shows in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one shard: ``core`` int64 [L] into ``cores``, ``attributes`` int64 [L], ``values`` int64 [V, L]."""

    cores: pa.Array
    core: Ints
    attributes: Ints
    values: Ints


class KeyedSums:
    """Rows with a core and attributes, int64 [L] each, and of V ``values`` the sums, int64 [L] each.

    ``bits`` says how wide each attribute is, the last one lowest.
    """

    def __init__(self, bits: dict[str, int], columns: int) -> None:
        self._bits = bits
        self.core: Ints = np.zeros(0, np.int64)
        self.attributes: Ints = np.zeros(0, np.int64)
        self.values: list[Ints] = [np.zeros(0, np.int64)] * columns
        self._waiting: list[tuple[Ints, Ints, Ints]] = []
        self.waiting = 0

    def take(self, part: Part, first: int) -> None:
        """Let a shard's wait; ``first`` is the passing number of the first of its cores."""
        self._waiting.append((part.core + first, part.attributes, part.values))
        self.waiting += len(part.core)

    def gather(self, final: Ints) -> None:
        """Bring equal rows together; they stand by core and attributes then. ``final`` are the numbers of cores."""
        core = final[np.concatenate([self.core, *(core for core, _, _ in self._waiting)])]
        attributes = np.concatenate([self.attributes, *(attributes for _, attributes, _ in self._waiting)])
        waiting = [values for _, _, values in self._waiting]
        self._waiting, self.waiting = [], 0
        order, starts = runs_of(core << sum(self._bits.values()) | attributes)
        first = order[starts]
        self.core, self.attributes = core[first], attributes[first]
        for at in range(len(self.values)):  # one column at a time: memory is the limit
            column = np.concatenate([self.values[at], *(values[at] for values in waiting)])
            self.values[at] = np.add.reduceat(column[order], starts) if len(starts) else column

    def attribute(self, name: str) -> Ints:
        """One attribute of each row: int64 [L]."""
        shift = 0
        for known, bits in reversed(self._bits.items()):
            if known == name:
                return self.attributes >> shift & ((1 << bits) - 1)
            shift += bits
        raise KeyError(name)


def packed(bits: dict[str, int], attributes: dict[str, Ints]) -> Ints:
    """Attributes side by side in one number each."""
    found = np.zeros_like(next(iter(attributes.values())))
    for name, width in bits.items():
        found = found << width | attributes[name]
    return found


def runs_of(keys: Ints) -> tuple[Ints, Ints]:
    """The order that sorts keys, and where in it each distinct key begins."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    return order, np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(keys)])
