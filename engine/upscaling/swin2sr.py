"""Swin2SR (arXiv 2209.11345): an image with each side twice as long, or as many times as the model was trained for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.graphs import Graphs
from tallymill.engine.detectors.parts import Normalise
from tallymill.engine.padding import check, extend
from tallymill.errors import ModelError

FAMILY = "swin2sr"


@dataclass(frozen=True, slots=True)
class Swin2SrNumbers:
    """``buckets``: sizes that graphs have; ``scale``: how many times longer sides become."""

    buckets: tuple[tuple[int, int], ...]
    scale: int


class Swin2Sr:
    """A bundle of the family ``swin2sr``. Parts: ``image-HxW`` for each bucket, of float32 [B, 3, H, W] in [0, 1] ->
    enlarged float32 [B, 3, scale H, scale W].
    """

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        """Raises ``ModelError`` when the bundle is of another family, or says too little."""
        if bundle.family != FAMILY:
            raise bundle.error(f"is of the family {bundle.family!r}, not {FAMILY!r}")
        numbers = bundle.read(Swin2SrNumbers)
        self.scale = numbers.scale
        self._name = bundle.name
        self._graphs = Graphs(bundle, "image", numbers.buckets, threads=threads)
        self._normalise = Normalise((0, 0, 0), (1, 1, 1))

    def upscale(self, image: Any) -> Any:
        """RGB uint8 [H, W, 3] -> uint8 [scale H, scale W, 3].

        The image is mirrored below and to the right up to the smallest bucket that holds it; the original does so up to
        the next multiple of its window. A tensor of torch on the bundle's device gives a tensor. Raises ``ModelError``
        where no bucket holds the image, or what comes out is not finite.
        """
        check(image)
        height, width = image.shape[:2]
        bucket = self._graphs.frame(height, width)
        padded = extend(image, (0, bucket[0] - height), (0, bucket[1] - width), "symmetric")
        found = self._graphs.of(bucket).run({"image": self._normalise(padded)[None]})["enlarged"][0]
        found = found[:, : self.scale * height, : self.scale * width]
        if not bool(abs(found).max() < float("inf")):
            raise ModelError(f"{self._name}: what became of an image of {height} x {width} is not finite")
        return _levels(found)


def _levels(found: Any) -> Any:
    """Float32 [3, H, W] -> uint8 [H, W, 3]: held to [0, 1], rounded to the nearest level."""
    if isinstance(found, np.ndarray):
        return np.moveaxis(np.rint(found.clip(0, 1) * np.float32(255)).astype(np.uint8), 0, 2)
    return found.clamp(0, 1).mul(255).round().byte().permute(1, 2, 0)
