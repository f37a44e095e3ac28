"""Sums of float64 that do not depend on order, on the number of parts, or on threads: equal to ``math.fsum``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Sums are whole numbers of 2^-FINEST; the smallest float64 is 2^-1074.
FINEST = 1200
# Values are taken apart into pieces of so many bits; 2^26 of these add up exactly in float64.
PIECE_BITS, MAX_VALUES = 26, 1 << 26


def exact_sums(values: NDArray[np.float64], groups: NDArray[Any], number: int) -> list[int]:
    """The exact sum of each group, in units of 2^-1200.

    ``values`` float64 [N], finite, N up to 2^26; ``groups`` integers [N] in 0..number-1. Such sums may be added to one
    another; :func:`rounded` makes a float of one.
    """
    sums = [0] * number
    if len(values) > MAX_VALUES:
        raise ValueError(f"values: wanted at most {MAX_VALUES}, got {len(values)}")
    rest = values
    shift = PIECE_BITS - int(np.frexp(np.abs(values).max(initial=0.0))[1])
    while rest.any():
        pieces = np.trunc(np.ldexp(rest, shift))
        for group, piece in enumerate(np.bincount(groups, pieces, number).tolist()):
            sums[group] += int(piece) << (FINEST - shift)
        rest = rest - np.ldexp(pieces, -shift)  # exact: what is left are the lower bits
        shift += PIECE_BITS
    return sums


def rounded(total: int) -> float:
    """The float nearest to an exact sum. Raises ``OverflowError`` where there is none, as ``math.fsum`` does."""
    return total / (1 << FINEST)


class ExactSums:
    """Exact sums by group that grow part by part, all in arrays: for many groups, where :func:`exact_sums` is slow.

    A sum is held as whole numbers of 2^-(26 j), one array a step j that some value has bits in.
    """

    def __init__(self) -> None:
        self._pieces: dict[int, NDArray[np.int64]] = {}

    def add(self, values: NDArray[np.float64], groups: NDArray[Any], number: int) -> None:
        """Add ``values`` float64 [N], finite, N up to 2^26, to ``groups`` integers [N] in 0..number-1."""
        if len(values) > MAX_VALUES:
            raise ValueError(f"values: wanted at most {MAX_VALUES}, got {len(values)}")
        rest = values
        step = 1 - -(-int(np.frexp(np.abs(values).max(initial=0.0))[1]) // PIECE_BITS)
        while rest.any():
            pieces = np.trunc(np.ldexp(rest, step * PIECE_BITS))
            sums = np.bincount(groups, pieces, number).astype(np.int64)
            before = self._pieces.get(step, np.zeros(0, np.int64))
            longer, shorter = (before, sums) if len(before) > len(sums) else (sums, before)
            longer[: len(shorter)] += shorter
            self._pieces[step] = longer
            rest = rest - np.ldexp(pieces, -step * PIECE_BITS)
            step += 1

    def exact(self, number: int) -> list[int]:
        """The first ``number`` sums, 0 where nothing was added, in units of 2^-1200: see :func:`rounded`."""
        found = [0] * number
        for step, pieces in self._pieces.items():
            for group in np.flatnonzero(pieces[:number]).tolist():
                found[group] += int(pieces[group]) << (FINEST - step * PIECE_BITS)
        return found
