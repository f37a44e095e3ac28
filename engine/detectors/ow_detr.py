"""OW-DETR (arXiv 2112.01513): a Deformable DETR whose last column answers for whatever is none of its classes.

An image is resized by the rule of the DETR line, padded to the bucket that holds it, and masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.buckets import Buckets
from tallymill.engine.detectors.closed import Closed
from tallymill.engine.detectors.graphs import Graphs
from tallymill.engine.detectors.parts import Normalise, parts_for
from tallymill.engine.sessions.base import Array, TensorSpec


@dataclass(frozen=True, slots=True)
class OwDetrNumbers:
    """``shortest`` and ``longest``: of a resized image's sides; ``buckets``: height and width of each graph;
    ``labels``: what the columns of the logits name; ``fallback``: the label of what is unknown; ``top``: pairs of query
    and class that are kept.
    """

    shortest: int
    longest: int
    buckets: tuple[tuple[int, int], ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    labels: tuple[str, ...]
    fallback: str | None
    top: int


class OwDetr(Closed):
    """Parts ``image-HxW``, one a bucket: image float32 [B, 3, H, W] and mask bool [B, H, W], True on the image ->
    logits and boxes (see ``Closed``).
    """

    inputs = (TensorSpec("image", "float32", (None, 3, None, None)), TensorSpec("mask", "bool", (None, None, None)))

    def __init__(self, bundle: Bundle, name: str, *, batch: int | None = None, threads: int = 1) -> None:
        self.numbers = numbers = bundle.read(OwDetrNumbers)
        self._graphs = Graphs(bundle, "image", numbers.buckets, threads=threads)
        super().__init__(
            bundle, self._graphs.first, name, batch or self._graphs.batch, numbers.labels, numbers.top, numbers.fallback
        )
        self._normalise = Normalise(numbers.mean, numbers.std)

    def preprocess(self, window: Array) -> dict[str, Array]:
        """RGB uint8 [H, W, 3] -> image float32 and mask bool of its bucket."""
        height, width, _ = window.shape
        height, width = Buckets.rule(height, width, self.numbers.shortest, self.numbers.longest)
        bucket = self._graphs.frame(height, width)
        parts = parts_for(window)
        image, mask = parts.place(self._normalise(parts.resize(window, height, width, "bilinear")), bucket)
        return {"image": image, "mask": mask}

    def open_others(self) -> None:
        """See ``Detector.open_others``."""
        self._graphs.open_others()

    def run(self, inputs: Mapping[str, Array], asked: Sequence[NDArray[np.int64]]) -> dict[str, Array]:
        """See ``Detector.run``; images of one call are of one bucket."""
        del asked
        height, width = inputs["image"].shape[2:]
        return self._graphs.of((height, width)).run(inputs)
