"""CenterNet on the 80 COCO classes: a heat map a class, and the distances to a box's sides at every cell."""

from __future__ import annotations

from collections.abc import Mapping

import cv2
import numpy as np
from numpy.typing import NDArray

from tallymill.engine.detectors.base import Candidates, Detector, DetectorSpec
from tallymill.engine.detectors.coco import COCO_80, COCO_SYNONYMS
from tallymill.engine.detectors.dense import select
from tallymill.engine.sessions.base import Array, Session

SIDE = 512
STRIDE = 4
CELLS = SIDE // STRIDE
_NEIGHBOURS = np.ones((3, 3), np.uint8)


class CenterNet(Detector):
    """Takes windows warped to 512x512, RGB, 0..255; one window a call, for a batch is slower on a CPU.

    Outputs: ``heat`` float32 [1, 80, 128, 128], sigmoided; ``sides`` float32 [1, 4, 128, 128], distances from the
    cell's corner (4x, 4y) to left, top, right, bottom in pixels of the 512. A cell is a candidate of a class when no
    neighbour in its 3x3 surroundings is hotter (arXiv 1904.07850, section 4). The original keeps the hundred best
    over all classes; this keeps all at or above the floor. As in the original, boxes are not clipped.
    """

    def __init__(self, session: Session, name: str = "centernet") -> None:
        super().__init__(session)
        self.spec = DetectorSpec(name=name, family="centernet", labels=COCO_80, synonyms=COCO_SYNONYMS)

    def preprocess(self, window: NDArray[np.uint8]) -> Array:
        """RGB uint8 [H, W, 3] -> RGB uint8 [512, 512, 3]; bilinear, aspect ratio not kept."""
        warped: Array = cv2.resize(window, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
        return warped

    def decode(
        self,
        outputs: Mapping[str, Array],
        index: int,
        size: tuple[int, int],
        classes: NDArray[np.int64],
        floor: float,
    ) -> Candidates:
        """See ``Detector.decode``; candidates of a class are in cell order, row after row."""
        heat = outputs["heat"][index][classes]
        scores = heat.reshape(len(classes), CELLS * CELLS)
        request, cell = select(scores, floor)
        peak = np.zeros(len(cell), np.bool_)
        for position in np.unique(request):
            here = request == position
            # dilate leaves cells outside the map out of the maximum, as the original's pooling does
            hottest = cv2.dilate(heat[position], _NEIGHBOURS).ravel()
            peak[here] = scores[position, cell[here]] == hottest[cell[here]]
        request, cell = request[peak], cell[peak]
        boxes = _boxes(outputs["sides"][index].reshape(4, -1)[:, cell], cell)
        height, width = size
        scale = np.array([width, height, width, height], np.float32) / np.float32(SIDE)
        return Candidates(boxes * scale, scores[request, cell], request)


def _boxes(sides: NDArray[np.float32], cell: NDArray[np.int64]) -> NDArray[np.float32]:
    """Distances [4, P] at the cells [P] -> boxes [P, 4] xyxy in pixels of the 512."""
    y, x = np.divmod(cell, CELLS)
    corner = np.stack([x, y, x, y]).astype(np.float32) * STRIDE
    boxes: NDArray[np.float32] = (corner + sides * np.array([[-1], [-1], [1], [1]], np.float32)).T
    return boxes
