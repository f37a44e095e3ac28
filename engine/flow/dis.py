"""Dense inverse search (Kroeger and others, arXiv 1603.03590), as OpenCV has it: an optical flow without weights."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from tallymill.engine.padding import check

FAMILY = "dis"
LEAST = 64  # pixels of a side: smaller images leave the coarsest scale without a patch


class Dis:
    """The preset ``fast``; the flow between equal images is 0."""

    def __init__(self) -> None:
        self._search: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)

    def flow(self, first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Where each pixel of ``first`` is in ``second``: RGB uint8 [H, W, 3] twice -> float32 [H, W, 2], x and y in
        pixels. Sides under 64 pixels are continued with their last pixels. Raises ``ValueError`` for images of two
        sizes.
        """
        for image in (first, second):
            check(image)
        if first.shape != second.shape:
            raise ValueError(f"two images of one size, not {list(first.shape[:2])} and {list(second.shape[:2])}")
        height, width = first.shape[:2]
        found = self._search.calc(_gray(first), _gray(second), None)
        return np.ascontiguousarray(found[:height, :width])


def _gray(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    gray = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY)
    down, right = (max(LEAST - side, 0) for side in image.shape[:2])
    return np.asarray(cv2.copyMakeBorder(gray, 0, down, 0, right, cv2.BORDER_REPLICATE), np.uint8)
