"""The clean image: what was there before is painted over, so that a detector sees the candidates alone.

ABACUS, stage 2. Inpainting is Telea's (2004): classical, and so without a model that could paint an object.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from tallymill.kernels.mask_iou import Masks

RGB = NDArray[np.uint8]


def clean(image: RGB, preserved: Masks, candidates: Masks, margin: int, radius: int) -> RGB:
    """RGB [H, W, 3] without the ``preserved`` instances, grown by a square of ``margin`` pixels; pixels of
    ``candidates`` stay as they are. The image itself where nothing is to be erased.
    """
    erased = union(preserved)
    if not erased.any():
        return image
    grown = np.asarray(cv2.dilate(erased, np.ones((margin, margin), np.uint8)), np.uint8)
    grown[union(candidates) > 0] = 0
    if grown.all():  # nothing is left to paint with: an image that a report shows, for nothing in it is a candidate
        return np.zeros_like(image)
    return np.asarray(cv2.inpaint(np.ascontiguousarray(image), grown, radius, cv2.INPAINT_TELEA), np.uint8)


def union(masks: Masks) -> NDArray[np.uint8]:
    """1 where any of the masks is: uint8 [H, W]."""
    found = np.zeros((masks.height, masks.width), np.uint8)
    for k in range(len(masks)):
        found |= masks[k].to_arrays()[0].view(np.uint8)
    return found
