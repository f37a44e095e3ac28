"""Small numbers for the levels of a factor, and for the ids of millions of prompts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

T = TypeVar("T", bound=Hashable)


class Codes(Generic[T]):
    """Numbers the levels of a factor from 0 as they are met, at most ``limit`` of them; threads may share it.

    Further levels all get the number ``limit``, and ``full`` says that there were any: which levels have a number of
    their own then depends on the order in which they came, so that nothing may be made of them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.full = False
        self._codes: dict[T, int] = {}
        self._lock = Lock()

    def of(self, levels: Sequence[T]) -> NDArray[np.int64]:
        """The number of each level."""
        with self._lock:
            return np.array([self._code(level) for level in levels], np.int64)

    def _code(self, level: T) -> int:
        known = self._codes.get(level)
        if known is not None:
            return known
        if len(self._codes) == self.limit:
            self.full = True
            return self.limit
        return self._codes.setdefault(level, len(self._codes))

    @property
    def levels(self) -> list[T]:
        """The levels by their number."""
        return list(self._codes)


class Names:
    """Distinct strings of many arrays, numbered by Arrow: no Python object a string.

    Strings that are added have passing numbers, which ``settle`` turns into final ones.
    """

    def __init__(self) -> None:
        self._settled: pa.Array = pa.array([], pa.string())
        self._waiting: list[pa.Array] = []
        self._size = 0

    def add(self, strings: pa.Array) -> int:
        """Take in a string array without nulls; its strings have the numbers from the one given on, for now."""
        first = self._size
        self._waiting.append(strings)
        self._size += len(strings)
        return first

    def settle(self) -> NDArray[np.int64]:
        """Number equal strings alike: the final number of every passing one. Final numbers never change again."""
        encoded = pa.chunked_array([self._settled, *self._waiting], pa.string()).combine_chunks().dictionary_encode()
        self._settled, self._waiting = encoded.dictionary, []
        self._size = len(self._settled)
        return np.asarray(encoded.indices, np.int64)

    @property
    def settled(self) -> pa.Array:
        """The strings by their final number."""
        return self._settled


def coded(column: pa.ChunkedArray | pa.Array, codes: Codes[Any]) -> NDArray[np.int64]:
    """The code of each value of a column: int64 [I]. A null is the level None; what is not text is written as text."""
    local, levels = encoded_strings(column)
    return codes.of([*levels.to_pylist(), None])[local]


def encoded_strings(column: pa.ChunkedArray | pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """A column as int64 [I] into its distinct strings; -1 for a null."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_dictionary(array.type):
        array = array.cast(pa.string()).dictionary_encode()
    strings = array.dictionary.cast(pa.string())
    return np.asarray(array.indices.fill_null(-1), np.int64), strings
