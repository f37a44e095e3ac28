"""Counting and scoring in C++ (``calibration.cpp``, ``rescore.cpp`` and ``count.cpp`` in ``kernels/csrc``): arrays are
allocated here and filled there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import _native
from tallymill.kernels.floats import float_not_below

Doubles = NDArray[np.float64]

MAX_RISING_TAU = 2**20  # up to this temperature rho rises with p

misplaced = _native.count_misplaced


def calibrate(confidence: NDArray[np.float32], tau: float) -> NDArray[np.float32]:
    """Equation 6."""
    rho = np.empty_like(confidence)
    _native.count_calibrate(confidence, tau, rho)
    return rho


def raw_thresholds(thresholds: Doubles, tau: float) -> NDArray[np.float32]:
    """The inverse of equation 6, by bisection."""
    raw = np.empty(len(thresholds), np.float32)
    _native.count_raw_thresholds(thresholds, tau, raw)
    return raw


def accumulate(
    confidence: NDArray[np.float32],
    target: NDArray[np.uint8],
    item_offsets: NDArray[np.int64],
    target_offsets: NDArray[np.int64],
    thresholds: Doubles | None,
    tau: float,
    soft: Doubles | None,
    hard: NDArray[np.int64] | None,
    threads: int,
) -> bool:
    """Check and count in one pass over the boxes; False, and nothing added, when a box is not as it should be."""
    new_soft = None if soft is None else soft.copy()
    new_hard = None if hard is None else hard.copy()
    if not _native.count_accumulate(
        confidence, target, item_offsets, target_offsets, thresholds, tau, new_soft, new_hard, threads
    ):
        return False
    if soft is not None and new_soft is not None:
        soft[:] = new_soft
    if hard is not None and new_hard is not None:
        hard[:] = new_hard
    return True


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


def tally(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    offsets: NDArray[np.int64],
    thresholds: Doubles,
    tau: float,
    iou_threshold: float,
    floor: float,
    threads: int,
) -> tuple[Doubles, NDArray[np.int64]] | None:
    """Suppress and count (``kernels/csrc/tally.cpp``); None when a box or score is not valid."""
    soft, hard = np.empty(len(thresholds)), np.empty(len(thresholds), np.int64)
    least = np.full(len(thresholds), np.float32(float_not_below(floor)))
    if tau <= MAX_RISING_TAU:
        # A lower confidence adds to neither count, and those above it are suppressed by none that is lower.
        distinct, which = np.unique(thresholds, return_inverse=True)
        np.maximum(least, np.minimum(raw_thresholds(distinct, tau), np.float32(0.5))[which], out=least)
    done = _native.count_tally(
        boxes, scores.ravel(), offsets, iou_threshold, tau, least, thresholds, threads, soft, hard
    )
    return (soft, hard) if done else None
