"""NanoDet on the 80 COCO classes: sigmoid scores and a distribution over distances to the four sides of each cell."""

from __future__ import annotations

from collections.abc import Mapping

import cv2
import numpy as np
from numpy.typing import NDArray

from tallymill.engine.detectors.base import Candidates, Detector, DetectorSpec
from tallymill.engine.detectors.coco import COCO_80, COCO_SYNONYMS
from tallymill.engine.detectors.dense import NOTHING, select, to_pixels
from tallymill.engine.sessions.base import Array, Session, TensorSpec

SIDE = 416
STRIDES = (8, 16, 32)
BINS = 11

# Blue, green, red, in 0..255.
_MEAN = np.array([103.53, 116.28, 123.675], np.float32)
_RECIPROCAL_STD = 1 / np.array([57.375, 57.12, 58.395], np.float32)


def _cells(stride: int) -> NDArray[np.float32]:
    """Centre x, y, x, y of every cell, rows from top to bottom, and the stride outwards: float32 [n*n, 2, 4]."""
    y, x = (np.mgrid[: SIDE // stride, : SIDE // stride].reshape(2, -1) + 0.5) * stride
    outwards = np.full_like(x, stride)
    return np.stack([x, y, x, y, -outwards, -outwards, outwards, outwards], 1).astype(np.float32).reshape(-1, 2, 4)


_CELLS = [_cells(stride) for stride in STRIDES]
_BIN = np.arange(BINS, dtype=np.float32)
_SIDE, _ZERO, _ONE = np.float32(SIDE), np.float32(0), np.float32(1)


class NanoDet(Detector):
    """Takes windows warped to 416x416, BGR, normalised; shapes are fixed, so one window a call.

    Outputs for each stride s of 8, 16, 32 with n = 416/s: ``scores_s`` float32 [1, 80, n*n], ``distances_s`` float32
    [1, 44, n*n] (left, top, right, bottom; 11 logits each). A distance is the expectation over the bins 0..10 of
    their softmax, in strides, from the cell's centre (Generalized Focal Loss, arXiv 2006.04388). As in
    the original, boxes are clipped to the window.
    """

    inputs = (TensorSpec("image", "float32", (1, 3, SIDE, SIDE)),)
    outputs = tuple(
        TensorSpec(f"{kind}_{stride}", "float32", (1, rows, (SIDE // stride) ** 2))
        for kind, rows in (("scores", len(COCO_80)), ("distances", 4 * BINS))
        for stride in STRIDES
    )

    def __init__(self, session: Session, name: str = "nanodet") -> None:
        super().__init__(session, DetectorSpec(name=name, family="nanodet", labels=COCO_80, synonyms=COCO_SYNONYMS))

    def preprocess(self, window: NDArray[np.uint8]) -> dict[str, Array]:
        """RGB uint8 [H, W, 3] -> normalised BGR float32 [3, 416, 416]; bilinear, aspect ratio not kept."""
        warped = cv2.resize(window, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
        planes = np.empty((3, SIDE, SIDE), np.float32)
        for plane, colour, mean, scale in zip(planes, (2, 1, 0), _MEAN, _RECIPROCAL_STD, strict=True):
            np.subtract(warped[..., colour], mean, out=plane)
            plane *= scale
        return {"image": planes}

    def decode(
        self,
        outputs: Mapping[str, Array],
        index: int,
        size: tuple[int, int],
        classes: NDArray[np.int64],
        floor: float,
    ) -> Candidates:
        """See ``Detector.decode``; candidates of a class are in cell order, stride 8 first."""
        levels = []
        for cells, stride in zip(_CELLS, STRIDES, strict=True):
            request, cell, scores = select(outputs[f"scores_{stride}"][index], classes, floor)
            if len(cell):
                logits = outputs[f"distances_{stride}"][index].take(cell, 1)
                levels.append((request, scores, logits, cells.take(cell, 0)))
        if not levels:
            return NOTHING
        requests, confidences, columns, places = zip(*levels, strict=True)
        boxes = _boxes(np.concatenate(columns, 1), np.concatenate(places)) * to_pixels(size)
        request, scores = np.concatenate(requests), np.concatenate(confidences)
        if len(classes) > 1:  # from level after level to class after class
            order = request.argsort(kind="stable")
            boxes, scores, request = boxes.take(order, 0), scores.take(order), request.take(order)
        return Candidates(boxes, scores, request)


def _boxes(logits: NDArray[np.float32], cells: NDArray[np.float32]) -> NDArray[np.float32]:
    """Distance logits [44, P] and cells [P, 2, 4] -> boxes [P, 4] xyxy as fractions of the window, clipped to it."""
    logits = logits.reshape(4, BINS, -1)
    weights = np.ascontiguousarray(np.exp(logits - logits.max(axis=1, keepdims=True)).transpose(2, 0, 1))
    distances = (weights @ _BIN) / weights.sum(axis=2)
    corners = (distances * cells[:, 1] + cells[:, 0]) / _SIDE
    clipped: NDArray[np.float32] = np.minimum(np.maximum(corners, _ZERO), _ONE)
    return clipped
