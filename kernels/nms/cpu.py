"""Suppression in C++ (``kernels/csrc/nms.cpp``): arrays are allocated here and filled there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import _native


def valid(boxes: NDArray[np.float32], scores: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Bool [N]: finite throughout, and wider and higher than nothing."""
    usable = np.empty(len(boxes), np.bool_)
    _native.nms_valid(boxes, scores, usable)
    return usable


def nms(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    offsets: NDArray[np.int64],
    iou_threshold: float,
    score_threshold: float,
    threads: int,
    path: str,
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Run the greedy loop over each segment, several images at a time when ``threads`` allows; None when a box or score
    is not valid.
    """
    indices = np.empty(scores.size, np.int64)
    kept_offsets = np.empty((len(offsets) - 1) * scores.shape[1] + 1, np.int64)
    kept = _native.nms(
        boxes, scores.ravel(), offsets, iou_threshold, score_threshold, threads, path, indices, kept_offsets
    )
    return None if kept < 0 else (indices[:kept], kept_offsets)
