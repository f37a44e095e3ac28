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
