"""Thresholds are given in float64 and what they are compared with is float32: one rule for what the comparison says.

It says what it would in float64, where 0.7 is more than float32's 0.7. NumPy and Triton would round the threshold to
the nearest float32, which may lie on its other side; compare with the floats here instead. ``csrc/floats.h`` has the
same in C++.
"""

from __future__ import annotations

import numpy as np


def float_not_below(value: float) -> float:
    """The least float32 from ``value`` on: a float32 reaches the one where it reaches the other."""
    near = np.float32(value)
    return float(near if float(near) >= value else np.nextafter(near, np.float32(np.inf)))


def float_not_above(value: float) -> float:
    """The greatest float32 up to ``value``: a float32 passes the one where it passes the other."""
    return -float_not_below(-value)
