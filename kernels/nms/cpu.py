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


def soft_nms(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    offsets: NDArray[np.int64],
    gaussian: bool,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]] | None:
    """The same for soft-NMS (``kernels/csrc/soft_nms.cpp``)."""
    indices, kept_scores = np.empty(scores.size, np.int64), np.empty(scores.size, np.float32)
    ends = np.empty((len(offsets) - 1) * scores.shape[1] + 1, np.int64)
    settings = (gaussian, iou_threshold, sigma, min_score, threads)
    kept = _native.soft_nms(boxes, scores.ravel(), offsets, *settings, indices, ends, kept_scores)
    return None if kept < 0 else (indices[:kept], ends, kept_scores[:kept])
