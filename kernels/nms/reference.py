"""Suppression from its definition, in NumPy: the oracle that every other implementation must equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.float32]


def valid(boxes: Boxes, scores: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Bool [N]: finite throughout, and wider and higher than nothing; scores [N] or [N, C]."""
    finite = np.isfinite(boxes).all(axis=1) & np.isfinite(scores).all(axis=tuple(range(1, scores.ndim)))
    return finite & (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])


def iou(box: Boxes, others: Boxes) -> Boxes:
    """Intersection over union of one box [4] with each of ``others`` [M, 4], float32 throughout."""
    width = np.maximum(0, np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0]))
    height = np.maximum(0, np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1]))
    area = (box[2] - box[0]) * (box[3] - box[1])
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    intersection = width * height
    # An area beyond float32 makes this NaN, which exceeds no threshold.
    return np.asarray(intersection / (area + areas - intersection), np.float32)


def nms(
    boxes: Boxes,
    scores: NDArray[np.float32],
    offsets: NDArray[np.int64],
    iou_threshold: float,
    score_threshold: float,
    threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Go through each image and category by falling score and keep what overlaps nothing that was kept before."""
    del threads  # part of the shared signature
    indices: list[int] = []
    ends = [0]
    exact = scores.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            for score in exact[start:stop].T:
                taking_part = [i for i in range(stop - start) if score[i] >= score_threshold]
                order = sorted(taking_part, key=lambda i: (-score[i], i))
                indices += [start + i for i in keep(boxes[start:stop], order, iou_threshold)]
                ends.append(len(indices))
    return np.array(indices, np.int64), np.array(ends, np.int64)


def keep(boxes: Boxes, order: list[int], iou_threshold: float) -> list[int]:
    """Return those of ``order`` whose IoU with every earlier one that is kept is at most the threshold."""
    kept: list[int] = []
    for candidate in order:
        # NumPy would round the threshold to float32; the comparison is defined in float64.
        overlap = iou(boxes[candidate], boxes[kept]).astype(np.float64)
        if not (overlap > iou_threshold).any():
            kept.append(candidate)
    return kept


def soft_nms(
    boxes: Boxes,
    scores: NDArray[np.float32],
    offsets: NDArray[np.int64],
    gaussian: bool,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Go through each image and category, taking the best box and lowering the others until none is good enough."""
    del threads  # part of the shared signature
    indices: list[int] = []
    ends = [0]
    lowered: list[np.float32] = []
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            for column in scores[start:stop].T:
                score = column + np.float32(0)  # -0 becomes 0
                left = np.flatnonzero(score >= np.float32(min_score))
                while len(left):
                    best = left[np.argmax(score[left])]  # the first of equal ones
                    indices.append(start + int(best))
                    lowered.append(score[best])
                    left = left[left != best]
                    overlap = np.nan_to_num(iou(boxes[start + best], boxes[start + left]))
                    score[left] *= weights(overlap, gaussian, np.float32(iou_threshold), sigma)
                    left = left[score[left] >= np.float32(min_score)]
                ends.append(len(indices))
    return np.array(indices, np.int64), np.array(ends, np.int64), np.array(lowered, np.float32)


def weights(overlap: Boxes, gaussian: bool, iou_threshold: np.float32, sigma: float) -> Boxes:
    """What scores are multiplied by, float32 [M]."""
    if gaussian:
        return np.exp(-(overlap.astype(np.float64) ** 2) / sigma).astype(np.float32)
    return np.where(overlap >= iou_threshold, 1 - overlap, np.float32(1))
