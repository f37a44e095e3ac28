"""Counting and scoring in C++ (``kernels/csrc/count.cpp``): arrays are allocated here and filled there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import _native

Doubles = NDArray[np.float64]

misplaced = _native.count_misplaced
accumulate = _native.count_accumulate


def calibrate(confidence: NDArray[np.float32], tau: float) -> NDArray[np.float32]:
    """Equation 6."""
    rho = np.empty_like(confidence)
    _native.count_calibrate(confidence, tau, rho)
    return rho


def score(
    soft: Doubles,
    hard: NDArray[np.int64],
    covering: NDArray[np.uint8],
    requested: NDArray[np.uint16],
    target_offsets: NDArray[np.int64],
) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """Equations 5 and 8."""
    soft_count, hard_count = np.empty_like(soft), np.empty_like(soft)
    cw_nps, b_nps = np.empty(len(target_offsets) - 1), np.empty(len(target_offsets) - 1)
    _native.count_score(soft, hard, covering, requested, target_offsets, soft_count, hard_count, cw_nps, b_nps)
    return soft_count, hard_count, cw_nps, b_nps
