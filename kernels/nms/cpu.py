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
    threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Run the greedy loop over each segment, several segments at a time when ``threads`` allows."""
    indices = np.empty(len(boxes), np.int64)
    kept_offsets = np.empty(len(offsets), np.int64)
    kept = _native.nms(boxes, scores, offsets, iou_threshold, threads, indices, kept_offsets)
    return indices[:kept], kept_offsets
