"""Co-DETR (arXiv 2211.12860), with the DINO head of mmdetection, as an ONNX file that its user made.

What the file must take and give is in docs/detectors.md. Preparation and decoding are those of mmdetection: an image is
resized with OpenCV and without a mask; the best pairs of query and class go through soft-NMS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.base import Candidates, Detector, Found
from tallymill.engine.detectors.buckets import Size
from tallymill.engine.detectors.closed import Closed, best
from tallymill.engine.detectors.graphs import Graphs
from tallymill.engine.detectors.pixels import Normalise, place
from tallymill.engine.sessions.base import Array, TensorSpec
from tallymill.kernels.floats import float_not_below
from tallymill.kernels.nms import soft_nms, valid

ANY = "image"  # the part that takes images of any size


@dataclass(frozen=True, slots=True)
class CoDetrNumbers:
    """``shortest`` and ``longest``: what a resized image's sides are held to; ``buckets``: height and width of each
    graph, empty when one takes any; ``padding``: the level of grey around an image in its bucket, or None for what
    normalisation makes 0; ``soft_nms``: the IoU from which scores are lowered, or None for no suppression;
    ``least``: soft-NMS ends at this score; ``labels``, ``top``: see ``Closed``.
    """

    shortest: int
    longest: int
    buckets: tuple[tuple[int, int], ...]
    padding: int | None
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    labels: tuple[str, ...]
    top: int
    soft_nms: float | None
    least: float


class CoDetr(Closed):
    """Parts ``image-HxW``, one a bucket, or ``image``: float32 [B, 3, H, W] -> logits and boxes (see ``Closed``);
    boxes are fractions of the graph's input, padding included.
    """

    tensors = False
    inputs = (TensorSpec("image", "float32", (None, 3, None, None)),)

    def __init__(self, bundle: Bundle, name: str, *, batch: int | None = None, threads: int = 1) -> None:
        self.numbers = numbers = bundle.read(CoDetrNumbers)
        self._graphs = Graphs(bundle, ANY, numbers.buckets, threads=threads, any_size=True)
        first = self._graphs.first
        shape = first.inputs[0].shape if first.inputs else None
        fixed = shape[0] if shape else None
        if fixed not in (None, 1):
            raise bundle.error(f"its graph takes {fixed} images a call; it must take 1, or any number")
        super().__init__(bundle, first, name, fixed or batch or self._graphs.batch, numbers.labels, numbers.top)
        self._normalise = Normalise(numbers.mean, numbers.std)

    def _sizes(self, height: int, width: int) -> tuple[Size, Size]:
        """Of a window: what it is resized to, and what the graph takes."""
        resized = rule(height, width, self.numbers.shortest, self.numbers.longest)
        return resized, self._graphs.frame(*resized)

    def preprocess(self, window: NDArray[np.uint8]) -> dict[str, Array]:
        """RGB uint8 [H, W, 3] -> image float32, in the upper left of its bucket."""
        height, width, _ = window.shape
        (height, width), frame = self._sizes(height, width)
        image: Array = cv2.resize(window, (width, height), interpolation=cv2.INTER_LINEAR)
        if (height, width) == frame:
            return {"image": self._normalise(image)}
        if self.numbers.padding is None:
            return {"image": place(self._normalise(image), frame)[0]}
        padded = np.full((*frame, 3), self.numbers.padding, np.uint8)
        padded[:height, :width] = image
        return {"image": self._normalise(padded)}

    def open_others(self) -> None:
        """See ``Detector.open_others``."""
        self._graphs.open_others()

    def run(self, inputs: Mapping[str, Array], asked: Sequence[NDArray[np.int64]]) -> dict[str, Array]:
        """See ``Detector.run``; images of one call are of one size."""
        del asked
        height, width = inputs["image"].shape[2:]
        return self._graphs.of((height, width)).run(inputs)

    def read(
        self,
        outputs: Mapping[str, Array],
        sizes: Sequence[tuple[int, int]],
        asked: Sequence[NDArray[np.int64]],
        floor: float,
    ) -> Found:
        """See ``Detector.read``: on the host, for soft-NMS follows."""
        return Detector.read(self, outputs, sizes, asked, floor)

    def decode(
        self,
        outputs: Mapping[str, Array],
        index: int,
        size: tuple[int, int],
        classes: NDArray[np.int64],
        floor: float,
    ) -> Candidates:
        """See ``Detector.decode``; boxes are clipped to the graph's input as in mmdetection, and candidates of a class
        come by falling score, which soft-NMS has lowered.
        """
        resized, frame = self._sizes(*size)
        logits, fractions = outputs["logits"][index], outputs["boxes"][index]
        found = best(logits, fractions, self.numbers.top, frame, classes, floor, min(floor, self.numbers.least))
        limit = np.array([frame[1], frame[0]] * 2, np.float32)
        scale = np.array([size[1] / resized[1], size[0] / resized[0]] * 2, np.float32)
        boxes = np.clip(found.boxes, 0, limit) * scale
        return lowered(
            Candidates(boxes, found.scores, found.request, found.saturated), len(classes), self.numbers, floor
        )


def rule(height: int, width: int, shortest: int, longest: int) -> Size:
    """Size of an image after ``Resize`` of mmdetection: as large as no limit forbids, both sides to the nearest."""
    scale = min(longest / max(height, width), shortest / min(height, width))
    return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))


def lowered(found: Candidates, classes: int, numbers: CoDetrNumbers, floor: float) -> Candidates:
    """Candidates after soft-NMS, class by class, that still reach the floor. Degenerate boxes stay out of it and as
    they are, for they are counted and dropped later.
    """
    floor = float_not_below(floor)
    if numbers.soft_nms is None:
        keep = found.scores >= floor
        return Candidates(found.boxes[keep], found.scores[keep], found.request[keep], found.saturated)
    usable = valid(found.boxes, found.scores)
    boxes, scores, request = found.boxes[usable], found.scores[usable], found.request[usable]
    edges = np.searchsorted(request, np.arange(classes + 1)).astype(np.int64)
    kept = soft_nms(boxes, scores, edges, iou_threshold=numbers.soft_nms, min_score=numbers.least)
    reach = kept.scores >= floor
    taken = kept.indices[reach]
    bad = np.flatnonzero(~usable & (found.scores >= floor))
    return Candidates(
        np.concatenate([boxes[taken], found.boxes[bad]]),
        np.concatenate([kept.scores[reach], found.scores[bad]]),
        np.concatenate([request[taken], found.request[bad]]),
        found.saturated,
    )
