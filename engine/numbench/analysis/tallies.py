"""Counts by system of what has a name: prompts, error texts, categories that nothing covers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tallymill.engine.numbench.analysis.codes import Names, encoded_strings

_WAITING = 2_000_000
_WAITING_NAMES = 100_000
_SYSTEM_BITS = 8


class PromptUses:
    """How many images each system has of each prompt."""

    def __init__(self) -> None:
        self.names = Names()
        self._keys: NDArray[np.int64] = np.zeros(0, np.int64)
        self._images: NDArray[np.int64] = np.zeros(0, np.int64)
        self._waiting: list[NDArray[np.int64]] = []
        self._size = 0

    def add(self, prompts: pa.Array, prompt: NDArray[np.int64], system: NDArray[np.int64]) -> None:
        """Add images: ``prompt`` int64 [I] into ``prompts``, -1 for none; ``system`` int64 [I]."""
        named = prompt >= 0
        self._waiting.append((prompt[named] + self.names.add(prompts)) << _SYSTEM_BITS | system[named])
        self._size += int(named.sum())
        if self._size > max(_WAITING, len(self._keys)):
            self.settle()

    def settle(self) -> None:
        """Bring equal prompts together."""
        final = self.names.settle()
        keys = np.concatenate([self._keys, *self._waiting])
        weights = np.concatenate([self._images, np.ones(len(keys) - len(self._keys), np.int64)])
        self._waiting, self._size = [], 0
        keys = final[keys >> _SYSTEM_BITS] << _SYSTEM_BITS | keys & ((1 << _SYSTEM_BITS) - 1)
        self._keys, place = np.unique(keys, return_inverse=True)
        self._images = np.zeros(len(self._keys), np.int64)
        np.add.at(self._images, place, weights)

    def of(self, system: int) -> NDArray[np.int64]:
        """The number of images of each prompt that a system has any of; settled."""
        found: NDArray[np.int64] = self._images[self._keys & ((1 << _SYSTEM_BITS) - 1) == system]
        return found


@dataclass(frozen=True, slots=True)
class Met:
    """G names that were met, each of one system: ``system`` and ``images`` int64 [G], ``name`` string [G].

    ``first`` string [G] is the least id of those that a name was met with; null where nobody asks.
    """

    system: NDArray[np.int64]
    name: pa.Array
    images: NDArray[np.int64]
    first: pa.Array

    @classmethod
    def of(
        cls,
        system: NDArray[np.int64],
        name: pa.Array,
        first: pa.Array | None,
        images: NDArray[np.int64] | None = None,
        *,
        least: bool = True,
    ) -> Met:
        """Bring equal names together. ``name`` has no nulls; ``images`` are 1 each where they are not given.

        Of the ids the least stays; with ``least`` false the one that comes first.
        """
        local, words = encoded_strings(name)
        keys = local << _SYSTEM_BITS | system
        images = np.ones(len(keys), np.int64) if images is None else images
        order = np.arange(len(keys))
        if first is None:
            first = pa.nulls(len(keys), pa.string())
        elif least:
            order = np.asarray(pc.array_sort_indices(first), np.int64)
        keys, at, place = np.unique(keys[order], return_index=True, return_inverse=True)
        number = np.zeros(len(keys), np.int64)
        np.add.at(number, place, images[order])
        return cls(
            system=keys & ((1 << _SYSTEM_BITS) - 1),
            name=words.take(pa.array(keys >> _SYSTEM_BITS)),
            images=number,
            first=first.take(pa.array(order[at])),
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """How often a name was met, and the least id of those that it was met with."""

    images: int
    first: str


class Tallies:
    """Tallies by system and name. Every name is counted; of more than ``limit`` of a system the rarest are told as one,
    ``rest``. Memory grows with the number of different names, in Arrow's arrays. Nothing depends on the order in which
    they come but, with ``least`` false, which id is the first.
    """

    def __init__(self, rest: str, limit: int = 10_000, *, least: bool = True) -> None:
        self._rest, self._limit, self._least = rest, limit, least
        self._found = Met.of(np.zeros(0, np.int64), pa.array([], pa.string()), pa.array([], pa.string()))
        self._waiting: list[Met] = []
        self._size = 0

    def add(self, met: Met) -> None:
        """Count names."""
        self._waiting.append(met)
        self._size += len(met.images)
        if self._size > max(_WAITING_NAMES, len(self._found.images)):
            self._settle()

    def of(self, system: int) -> list[tuple[str, Tally]]:
        """The names of a system, the commonest first, then by name; ``rest`` last."""
        self._settle()
        of = pa.array(self._found.system == system)
        table = pa.table({"name": self._found.name, "images": self._found.images, "first": self._found.first})
        table = table.filter(of).sort_by([("images", "descending"), ("name", "ascending")])
        shown, rest = table.slice(0, self._limit), table.slice(self._limit)
        found = [(row["name"], Tally(row["images"], row["first"] or "")) for row in shown.to_pylist()]
        if len(rest):
            number, first = pc.sum(rest["images"]).as_py(), pc.min(rest["first"]).as_py()
            found.append((self._rest, Tally(number, first or "")))
        return found

    def _settle(self) -> None:
        if not self._waiting:
            return
        parts = [self._found, *self._waiting]
        self._waiting, self._size = [], 0
        self._found = Met.of(
            np.concatenate([part.system for part in parts]),
            pa.concat_arrays([part.name for part in parts]),
            pa.concat_arrays([part.first for part in parts]),
            np.concatenate([part.images for part in parts]),
            least=self._least,
        )
