"""SSD-MobileNetV2 on the 80 COCO classes: sigmoid scores and boxes of 1,917 anchors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.detectors.base import Candidates, Detector, DetectorSpec
from tallymill.engine.detectors.coco import COCO_80, COCO_IDS, COCO_SYNONYMS
from tallymill.engine.detectors.dense import NOTHING, select, to_pixels
from tallymill.engine.sessions.base import Array, Session

# The model has a column for each of the 90 ids of the annotation files, column k for id k + 1; ten ids are unused.
_COLUMN = np.array(COCO_IDS, np.int64) - 1
_XYXY = np.array([1, 0, 3, 2])  # of ymin, xmin, ymax, xmax


class CocoSsd(Detector):
    """Takes a window of any size; the graph resizes it to 300x300 (bilinear, asymmetric) itself.

    Outputs: ``scores`` float32 [1, 1917, 90], ``boxes`` float32 [1, 1917, 1, 4] as ymin, xmin, ymax, xmax in 0..1
    of the window. As in the original, boxes may reach beyond the window and are not clipped, for they are compared
    with one another (NMS) as the model predicted them; every class is judged by itself.
    """

    def __init__(self, session: Session, name: str = "coco-ssd") -> None:
        super().__init__(session)
        self.spec = DetectorSpec(name=name, family="coco_ssd", labels=COCO_80, synonyms=COCO_SYNONYMS)

    def preprocess(self, window: NDArray[np.uint8]) -> Array:
        """RGB uint8 [H, W, 3] as it is."""
        return np.ascontiguousarray(window)

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
