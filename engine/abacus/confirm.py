"""Confirmation: two detectors look at the clean image, each for itself, and an instance counts where both see it.

ABACUS, stage 3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.float32]


def votes(
    candidates: Boxes, boxes: Boxes, confidence: NDArray[np.float32], sure: float, least: float
) -> NDArray[np.bool_]:
    """Whether a detector saw each candidate, [N, 4]: it has a box [P, 4] with ``confidence`` >= ``sure`` that overlaps
    the candidate's by an IoU of ``least`` or more. Bool [N].
    """
    overlap = box_iou(candidates, boxes[confidence >= sure])
    return np.asarray(overlap.max(axis=1, initial=0.0) >= least, np.bool_)


def box_iou(a: Boxes, b: Boxes) -> NDArray[np.float64]:
    """IoU of xyxy boxes [N, 4] and [M, 4]: float64 [N, M], 0 with a box that has no area."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    shared = np.clip(sides, 0, None).prod(axis=2)
    areas = [np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1) for boxes in (a, b)]
    whole = areas[0][:, None] + areas[1][None] - shared
    found: NDArray[np.float64] = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    return found
