"""SSD-MobileNetV2 on the 80 COCO classes: sigmoid scores and boxes of 1,917 anchors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.detectors.base import Candidates, Detector, DetectorSpec
from tallymill.engine.detectors.coco import COCO_80, COCO_IDS, COCO_SYNONYMS
from tallymill.engine.detectors.dense import NOTHING, select, to_pixels
from tallymill.engine.sessions.base import Array, Session, TensorSpec

# The model has a column for each of the 90 ids of the annotation files, column k for id k + 1; ten ids are unused.
_COLUMN = np.array(COCO_IDS, np.int64) - 1
_XYXY = np.array([1, 0, 3, 2])  # of ymin, xmin, ymax, xmax

SIDE = 300


class CocoSsd(Detector):
    """Takes windows warped to 300x300, RGB, 0..255, not rounded; one window a call.

    Outputs: ``scores`` float32 [1, 1917, 90], ``boxes`` float32 [1, 1917, 1, 4] as ymin, xmin, ymax, xmax in 0..1
    of the window. As in the original, boxes may reach beyond the window and are not clipped, for they are compared
    with one another (NMS) as the model predicted them; every class is judged by itself.
    """

    inputs = (TensorSpec("image", "float32", (1, SIDE, SIDE, 3)),)
    outputs = (TensorSpec("scores", "float32", (1, None, 90)), TensorSpec("boxes", "float32", (1, None, 1, 4)))

    def __init__(self, session: Session, name: str = "coco-ssd") -> None:
        super().__init__(session, DetectorSpec(name=name, family="coco_ssd", labels=COCO_80, synonyms=COCO_SYNONYMS))

    def preprocess(self, window: NDArray[np.uint8]) -> dict[str, Array]:
        """RGB uint8 [H, W, 3] -> RGB float32 [300, 300, 3]; see ``warp``."""
        return {"image": warp(window)}

    def decode(
        self,
        outputs: Mapping[str, Array],
        index: int,
        size: tuple[int, int],
        classes: NDArray[np.int64],
        floor: float,
    ) -> Candidates:
        """See ``Detector.decode``; candidates of a class are in anchor order."""
        request, anchor, scores = select(outputs["scores"][index].T, _COLUMN.take(classes), floor)
        if not len(anchor):
            return NOTHING
        corners = outputs["boxes"][index].reshape(-1, 4).take(anchor, 0)
        return Candidates(corners.take(_XYXY, 1) * to_pixels(size), scores, request)


def warp(window: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Bilinear to 300x300 as the model was trained with: RGB uint8 [H, W, 3] -> float32 [300, 300, 3].

    Pixel i of the output lies at i * (size / 300) of the window, so the first pixels coincide and the centres do not
    (which OpenCV does not offer), and nothing is smoothed when it shrinks. Only the pixels that are needed are read,
    so a large window takes no more memory than a small one.
    """
    height, width = window.shape[:2]
    upper, lower, down = _neighbours(height)
    left, right, along = _neighbours(width)
    if window.strides[2] != 1:
        window = np.ascontiguousarray(window)
    pixels = window.view("V3")[..., 0]  # the three bytes of a pixel are fetched as one
    rows = np.concatenate([upper, lower])[:, None]
    start, end = pixels[rows, left].view(np.uint8), pixels[rows, right].view(np.uint8)
    across = np.subtract(end, start, dtype=np.float32)  # [600, 900]
    across *= np.repeat(along, 3)
    across += start
    warped = across[SIDE:] - across[:SIDE]
    warped *= down[:, None]
    warped += across[:SIDE]
    image: NDArray[np.float32] = warped.reshape(SIDE, SIDE, 3)
    return image


def _neighbours(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """For each of 300 pixels along a side of ``size``: the pixels before and after, and how far it is between them."""
    place = np.arange(SIDE) * (size / SIDE)
    before = place.astype(np.int64)
    return before, np.minimum(before + 1, size - 1), (place - before).astype(np.float32)
