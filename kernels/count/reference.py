"""Counting and scoring from the equations, in NumPy: the oracle that every other implementation must equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels.nms import reference as suppression

Doubles = NDArray[np.float64]


def calibrate(confidence: NDArray[np.float32], tau: float) -> NDArray[np.float32]:
    """Equation 6 in float64, rounded once; 0 and 1 have no finite logit and stay as they are."""
    rho = confidence.copy()
    between = (confidence > 0) & (confidence < 1)
    p = confidence[between].astype(np.float64)
    # A tiny tau overflows exp on the way to a confidence of 0, which is right.
    with np.errstate(over="ignore"):
        rho[between] = 1 / (1 + np.exp(-np.log(p / (1 - p)) / tau))
    return rho


def threshold(requested: NDArray[np.uint16]) -> Doubles:
    """Equation 7, the branches first, then left to right in float64."""
    n = requested.astype(np.float64)
    return np.where(n <= 3, 0.7, np.where(n >= 10, 0.3, 0.7 - 0.4 * (n - 3) / 7))


def raw_thresholds(thresholds: Doubles, tau: float) -> NDArray[np.float32]:
    """Bisection over the float32 values in [0, 1], which are ordered like their bits."""
    below = np.zeros(len(thresholds), np.uint32)
    reaches = np.full(len(thresholds), np.float32(1).view(np.uint32))
    while (reaches - below > 1).any():
        middle = below + (reaches - below) // 2
        enough = calibrate(middle.view(np.float32), tau) >= thresholds
        reaches = np.where(enough, middle, reaches)
        below = np.where(enough, below, middle)
    raw = np.where(thresholds <= 1, reaches.view(np.float32), np.float32(np.inf))
    return np.where(thresholds <= 0, np.float32(0), raw)


def accumulate(
    confidence: NDArray[np.float32],
    target: NDArray[np.uint8],
    item_offsets: NDArray[np.int64],
    target_offsets: NDArray[np.int64],
    thresholds: Doubles | None,
    tau: float,
    soft: Doubles | None,
    hard: NDArray[np.int64] | None,
) -> None:
    """One box after another, so that the order of the sums is plain to see."""
    rho = calibrate(confidence, tau).astype(np.float64)
    for item in range(len(item_offsets) - 1):
        for box in range(item_offsets[item], item_offsets[item + 1]):
            which = target_offsets[item] + target[box]
            if soft is not None and thresholds is not None and rho[box] >= thresholds[which]:
                soft[which] += rho[box]
            if hard is not None and confidence[box] >= 0.5:
                hard[which] += 1


def score(
    soft: Doubles,
    hard: NDArray[np.int64],
    covering: NDArray[np.uint8],
    requested: NDArray[np.uint16],
    target_offsets: NDArray[np.int64],
) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """Counts per detector, then equation 8 on the soft ones and equation 5 on the hard ones."""
    detectors = np.where(covering > 0, covering, np.nan)
    soft_count, hard_count = soft / detectors, hard / detectors
    return (
        soft_count,
        hard_count,
        precision(soft_count, requested, target_offsets),
        precision(hard_count, requested, target_offsets),
    )


def precision(count: Doubles, requested: NDArray[np.uint16], target_offsets: NDArray[np.int64]) -> Doubles:
    """max(0, 1 - (e1 + ... + ek)/k) of each item, [I]; NaN for no targets and for an unknown count."""
    errors = np.abs(count - requested) / requested
    scores = np.full(len(target_offsets) - 1, np.nan)
    for item in range(len(scores)):
        own = errors[target_offsets[item] : target_offsets[item + 1]].tolist()
        if own:
            # sum() of Python 3.12 compensates for rounding; the score is defined by plain addition.
            total = 0.0
            for error in own:
                total += error
            scores[item] = np.maximum(0.0, 1 - total / len(own))
    return scores


def tally(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    offsets: NDArray[np.int64],
    thresholds: Doubles,
    tau: float,
    iou_threshold: float,
    floor: float,
    threads: int,
) -> tuple[Doubles, NDArray[np.int64]]:
    """Suppression, then accumulation of what it retains, each segment as an item with one target."""
    indices, ends = suppression.nms(boxes, scores, offsets, iou_threshold, floor, threads)
    segment = np.repeat(np.arange(len(thresholds)), np.diff(ends))
    confidence = scores[indices, segment % max(scores.shape[1], 1)]
    soft, hard = np.zeros(len(thresholds)), np.zeros(len(thresholds), np.int64)
    target, each = np.zeros(len(indices), np.uint8), np.arange(len(thresholds) + 1)
    accumulate(confidence, target, ends, each, thresholds, tau, soft, hard)
    return soft, hard
