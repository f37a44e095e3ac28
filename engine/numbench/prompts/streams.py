"""Random numbers that are the same in every version of NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallymill.errors import UsageError


class Stream:
    """The raw output of PCG64 for a seed and a purpose, and orders made of it.

    NumPy keeps the raw output of its bit generators for ever, but not what ``Generator`` makes of it; hence no
    ``shuffle`` or ``integers`` here. Streams of different purposes are independent, so that a change in how one thing
    is drawn moves nothing else.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence([require_seed(seed), *purpose.encode()]))

    def keys(self, *shape: int) -> NDArray[np.uint64]:
        """Random 64-bit numbers."""
        return self._bits.random_raw(int(np.prod(shape))).reshape(shape)

    def order(self, n: int) -> NDArray[np.int64]:
        """A random order of 0 .. n-1."""
        return np.argsort(self.keys(n), kind="stable")

    def order_within(self, *groups: NDArray[np.integer]) -> NDArray[np.int64]:
        """Positions sorted by ``groups`` (the first one is the major key), in random order inside a group."""
        return np.lexsort((self.keys(len(groups[0])), *groups[::-1]))

    def below(self, limit: int, n: int) -> NDArray[np.int64]:
        """``n`` numbers of 0 .. limit-1 (uniform to within limit / 2**64)."""
        return (self.keys(n) % np.uint64(limit)).astype(np.int64)


def require_seed(seed: int) -> int:
    """A whole number that is not negative, or a ``UsageError``."""
    if type(seed) is not int or seed < 0:
        raise UsageError(f"seed = {seed!r}: must be a whole number, 0 or more")
    return seed
