"""Confirmation: two detectors look at the clean image, each for itself, and an instance counts where both see it.

ABACUS, stage 3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels.match import match

Boxes = NDArray[np.float32]


def votes(
    candidates: Boxes, boxes: Boxes, confidence: NDArray[np.float32], sure: float, least: float
) -> NDArray[np.bool_]:
    """Whether a detector saw each candidate, [N, 4]: it has a box [P, 4] with ``confidence`` >= ``sure`` that overlaps
    the candidate's by an IoU of ``least`` (above 0) or more. Bool [N].
    """
    seen = boxes[confidence >= sure]
    number, most = len(candidates), len(seen)
    # Each candidate beside all boxes is a matching of its own: the best of them is its partner, if it is good enough.
    sets = np.arange(number + 1, dtype=np.int64)
    partner = match(candidates, sets, np.tile(seen, (number, 1)), sets * most, gate=least).partner
    return np.asarray(partner >= 0, np.bool_)
