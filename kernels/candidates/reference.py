"""Candidates from their definition, in NumPy: the oracle that every other implementation must equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels.candidates.checks import Found


def candidates(
    logits: NDArray[np.float32],
    boxes: NDArray[np.float32],
    columns: NDArray[np.int32],
    edges: NDArray[np.int32],
    requests: NDArray[np.int32],
    scale: NDArray[np.float32],
    floor: float,
) -> Found:
    """Window after window; arguments are checked."""
    windows, length = logits.shape[:2]
    saturated, finite = np.zeros(windows, np.bool_), np.ones(windows, np.bool_)
    counts = np.zeros(len(edges) - 1, np.int64)
    corners, scores, request = [np.empty((0, 4), np.float32)], [np.empty(0, np.float32)], [np.empty(0, np.int64)]
    for window in range(windows):
        first, last = requests[window : window + 2].tolist()
        best = np.empty((last - first, length), np.float32)
        for place in range(first, last):
            answering = columns[edges[place] : edges[place + 1]]
            best[place - first] = logits[window][:, answering].max(axis=1)  # NaN where any is NaN
        finite[window] = (best < np.inf).all()
        if not finite[window] or best.size == 0:
            continue
        score = sigmoid(best)
        # NumPy would round the floor to float32; the comparison is defined in float64.
        reached = (score.astype(np.float64) >= floor) & (best > -np.inf)
        saturated[window] = reached.any(axis=0).all()
        counts[first:last] = reached.sum(axis=1)
        at, query = np.nonzero(reached)
        corners.append(to_corners(boxes[window, query]) * scale[window])
        scores.append(score[at, query])
        request.append(first + at)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return np.concatenate(corners), np.concatenate(scores), np.concatenate(request), saturated, finite, offsets


def sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / (1 + exp(-x)) in float32, without overflow; of what is not NaN."""
    small = np.exp(-np.abs(logits))
    found: NDArray[np.float32] = np.where(logits >= 0, np.float32(1), small) / (1 + small)
    return found


def to_corners(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Boxes [P, 4] as centre x, centre y, width, height -> x1, y1, x2, y2."""
    half = boxes[:, 2:] * np.float32(0.5)
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
