"""What was asked for under an id: so that two RUNs whose ids mean different things are not taken for one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.manifests.hashing import hash64
from tallymill.engine.numbench.analysis.codes import Names, encoded_strings

UInt64s = NDArray[np.uint64]
_RUN_BITS = 8
_WAITING = 2_000_000
_COUNT, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFF51AFD7ED558CCD)


def asked_of(category: pa.Array, count: NDArray[np.int64], offsets: NDArray[np.int64]) -> UInt64s:
    """A hash of the targets of each item, whatever their order: uint64 [I], 0 where it has none or their counts are 0.

    ``category`` string [T], ``count`` int64 [T], 0 where it is not known; ``offsets`` int64 [I+1].
    """
    code, words = encoded_strings(category)
    known = (code >= 0) & (count > 0)
    found = np.zeros(len(offsets) - 1, np.uint64)
    if not known.any():
        return found
    hashes = hash64(words)[code] + count.astype(np.uint64) * _COUNT
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _MIX
    hashes ^= hashes >> np.uint64(29)
    some = np.diff(offsets) > 0
    starts = offsets[:-1][some]
    sums = np.add.reduceat(hashes, starts)
    found[some] = np.where(np.logical_and.reduceat(known, starts), np.maximum(sums, 1), 0)
    return found


@dataclass(frozen=True, slots=True)
class Asked:
    """What the images of some shards of one RUN ask for by id: ``name`` int64 [G] into ``names``, distinct strings;
    the least and the greatest hash (see ``asked_of``) of each: uint64 [G]."""

    run: int
    names: pa.Array
    name: NDArray[np.int64]
    least: UInt64s
    most: UInt64s

    @classmethod
    def of(cls, run: int, names: pa.Array, name: NDArray[np.int64], asked: UInt64s) -> Asked:
        """Of images: ``name`` int64 [I], -1 where there is none; ``asked`` uint64 [I], 0 where it is not known."""
        known = (name >= 0) & (asked > 0)
        return cls(run, names, *_joined(name[known], asked[known], asked[known]))


class AskedByRun:
    """The same of whole RUNs."""

    def __init__(self) -> None:
        self._names = Names()
        self._keys: NDArray[np.int64] = np.zeros(0, np.int64)
        self._least: UInt64s = np.zeros(0, np.uint64)
        self._most: UInt64s = np.zeros(0, np.uint64)
        self._waiting: list[tuple[NDArray[np.int64], UInt64s, UInt64s]] = []
        self._size = 0

    def add(self, part: Asked) -> None:
        """Add some shards of a RUN."""
        name = part.name + self._names.add(part.names)
        self._waiting.append((name << _RUN_BITS | part.run, part.least, part.most))
        self._size += len(name)
        if self._size > max(_WAITING, len(self._keys)):
            self.settle()

    def settle(self) -> None:
        """Bring equal ids together."""
        final = self._names.settle()
        keys, least, most = (
            np.concatenate(columns)
            for columns in zip((self._keys, self._least, self._most), *self._waiting, strict=True)
        )
        self._waiting, self._size = [], 0
        keys = final[keys >> _RUN_BITS] << _RUN_BITS | keys & ((1 << _RUN_BITS) - 1)
        self._keys, self._least, self._most = _joined(keys, least, most)

    @property
    def mixed(self) -> int:
        """Ids that ask for several things within one RUN."""
        return len(np.unique(self._keys[self._least != self._most] >> _RUN_BITS))

    def clashes(self) -> list[tuple[str, int, int]]:
        """Ids that ask for one thing in one RUN and another in another, each with the first two such RUNs."""
        name, run = self._keys >> _RUN_BITS, self._keys & ((1 << _RUN_BITS) - 1)
        one = self._least == self._most
        name, run, asked = name[one], run[one], self._least[one]
        # By name and then RUN: each is compared with the first RUN that has the name.
        first = np.maximum.accumulate(np.where(np.diff(name, prepend=-1) != 0, np.arange(len(name)), 0))
        other = np.flatnonzero(asked != asked[first])
        _, at = np.unique(name[other], return_index=True)
        other = other[at]
        words = self._names.settled.take(pa.array(name[other])).to_pylist()
        return sorted(zip(words, run[first[other]].tolist(), run[other].tolist(), strict=True))


def _joined(keys: NDArray[np.int64], least: UInt64s, most: UInt64s) -> tuple[NDArray[np.int64], UInt64s, UInt64s]:
    """Distinct keys in order, with the least and the greatest of theirs."""
    order = np.argsort(keys, kind="stable")
    keys, least, most = keys[order], least[order], most[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1) != 0)
    if not len(starts):
        return keys, least, most
    return keys[starts], np.minimum.reduceat(least, starts), np.maximum.reduceat(most, starts)
