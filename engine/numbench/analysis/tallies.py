"""Counts by system of what has a name: prompts, error texts, categories that nothing covers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.numbench.analysis.codes import Names

_WAITING = 2_000_000
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


@dataclass(slots=True)
class Tally:
    """How often a name was met, and the least id of those that it was met with."""

    images: int
    first: str

    def add(self, images: int, first: str) -> None:
        """Count more of them."""
        self.images += images
        self.first = min(self.first, first)


class Tallies:
    """Tallies by system and name. Of more than ``limit`` names of a system those that sort last are one, ``rest``.

    Which names those are does not depend on the order in which they came.
    """

    def __init__(self, rest: str, limit: int = 10_000) -> None:
        self._rest, self._limit = rest, limit
        self._found: dict[int, dict[str, Tally]] = {}
        self._over: dict[int, Tally] = {}

    def add(self, met: Iterable[tuple[int, str, str]]) -> None:
        """Count names: (system, name, id) each."""
        for system, name, item in met:
            found = self._found.setdefault(system, {})
            tally = found.get(name)
            if tally is None:
                found[name] = Tally(1, item)
            else:
                tally.add(1, item)
            if len(found) > 2 * self._limit:
                self._prune(system)

    def of(self, system: int) -> list[tuple[str, Tally]]:
        """The names of a system, the commonest first; ``rest`` last."""
        self._prune(system)
        found = sorted(self._found.get(system, {}).items(), key=lambda pair: (-pair[1].images, pair[0]))
        return found + ([(self._rest, self._over[system])] if system in self._over else [])

    def _prune(self, system: int) -> None:
        # Once so many names sort before one, they always will: it can be let go, and is if it comes again.
        found = self._found.get(system, {})
        for name in sorted(found)[self._limit :]:
            gone = found.pop(name)
            if system in self._over:
                self._over[system].add(gone.images, gone.first)
            else:
                self._over[system] = gone
