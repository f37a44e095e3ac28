"""What detectors with one score for every cell and class have in common."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.detectors.base import NOTHING
from tallymill.errors import ModelError
from tallymill.kernels import select as kernel
from tallymill.kernels.select import NonFiniteError, Selected

__all__ = ["NOTHING", "select", "select_peaks", "to_pixels"]


def select(scores: NDArray[np.float32], classes: NDArray[np.int64], floor: float) -> Selected:
    """``kernels.select.select``; raises ``ModelError`` when an asked score is not finite."""
    try:
        return kernel.select(scores, classes, floor)
    except NonFiniteError:
        raise ModelError("non-finite scores") from None


def select_peaks(scores: NDArray[np.float32], classes: NDArray[np.int64], floor: float, width: int) -> Selected:
    """``kernels.select.select_peaks``; raises ``ModelError`` when an asked score is not finite."""
    try:
        return kernel.select_peaks(scores, classes, floor, width)
    except NonFiniteError:
        raise ModelError("non-finite scores") from None


def to_pixels(size: tuple[int, int]) -> NDArray[np.float32]:
    """(height, width) of a window -> float32 [4], what takes xyxy as fractions of the window to its pixels."""
    height, width = size
    return np.array([width, height, width, height], np.float32)
