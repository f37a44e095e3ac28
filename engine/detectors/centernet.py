"""CenterNet on the 80 COCO classes: a heat map a class, and the distances to a box's sides at every cell."""

from __future__ import annotations

from collections.abc import Mapping

import cv2
import numpy as np
from numpy.typing import NDArray

from tallymill.engine.detectors.base import Candidates, Detector, DetectorSpec
from tallymill.engine.detectors.coco import COCO_80, COCO_SYNONYMS
from tallymill.engine.detectors.dense import NOTHING, select_peaks, to_pixels
from tallymill.engine.sessions.base import Array, Session, TensorSpec

SIDE = 512
STRIDE = 4
CELLS = SIDE // STRIDE
_SIDE = np.float32(SIDE)
_OUTWARD = np.array([-1, -1, 1, 1], np.float32)


def _corners() -> NDArray[np.float32]:
    """Upper left corner of every cell, as x, y, x, y in pixels of the 512: float32 [16384, 4]."""
    y, x = np.divmod(np.arange(CELLS * CELLS), CELLS)
    return np.stack([x, y, x, y], axis=1).astype(np.float32) * STRIDE


_CORNERS = _corners()


class CenterNet(Detector):
    """Takes windows warped to 512x512, RGB, 0..255; one window a call, for a batch is slower on a CPU.

    Outputs: ``heat`` float32 [1, 80, 128, 128], sigmoided; ``sides`` float32 [1, 4, 128, 128], distances from the
    cell's corner (4x, 4y) to left, top, right, bottom in pixels of the 512. A cell is a candidate of a class when no
    neighbour in its 3x3 surroundings is hotter (arXiv 1904.07850, section 4). The original keeps the hundred best
    over all classes; this keeps all at or above the floor. As in the original, boxes are not clipped.
    """

    inputs = (TensorSpec("image", "uint8", (1, SIDE, SIDE, 3)),)
    outputs = (
        TensorSpec("heat", "float32", (1, len(COCO_80), CELLS, CELLS)),
        TensorSpec("sides", "float32", (1, 4, CELLS, CELLS)),
    )

    def __init__(self, session: Session, name: str = "centernet") -> None:
        super().__init__(session, DetectorSpec(name=name, family="centernet", labels=COCO_80, synonyms=COCO_SYNONYMS))

    def preprocess(self, window: NDArray[np.uint8]) -> dict[str, Array]:
        """RGB uint8 [H, W, 3] -> RGB uint8 [512, 512, 3]; bilinear, aspect ratio not kept."""
        warped: Array = cv2.resize(window, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
        return {"image": warped}

    def decode(
        self,
        outputs: Mapping[str, Array],
        index: int,
        size: tuple[int, int],
        classes: NDArray[np.int64],
        floor: float,
    ) -> Candidates:
        """See ``Detector.decode``; candidates of a class are in cell order, row after row."""
        heat, sides = outputs["heat"][index], outputs["sides"][index]
        request, cell, scores = select_peaks(heat.reshape(len(COCO_80), -1), classes, floor, CELLS)
        if not len(cell):
            return NOTHING
        boxes = sides.reshape(4, -1).take(cell, 1).T * _OUTWARD + _CORNERS.take(cell, 0)
        return Candidates(boxes * (to_pixels(size) / _SIDE), scores, request)
