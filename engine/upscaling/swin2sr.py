"""Swin2SR (arXiv 2209.11345): an image with each side twice as long, or as many times as the model was trained for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tallymill.engine.arrays import is_array
from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.buckets import Buckets, Size
from tallymill.engine.detectors.graphs import Graphs
from tallymill.engine.detectors.parts import Normalise
from tallymill.engine.padding import check, extend
from tallymill.errors import ModelError

FAMILY = "swin2sr"
OVERLAP = 32  # pixels that neighbouring tiles share at least: four of the model's windows


@dataclass(frozen=True, slots=True)
class Swin2SrNumbers:
    """``buckets``: sizes that graphs have; ``scale``: how many times longer sides become."""

    buckets: tuple[tuple[int, int], ...]
    scale: int


@dataclass(frozen=True, slots=True)
class Tile:
    """Along one side: pixels ``start`` to ``stop`` are looked at, and those from ``first`` to ``last`` are kept."""

    start: int
    stop: int
    first: int
    last: int


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
        self._buckets = Buckets(numbers.buckets).sizes  # from the smallest to the largest
        self._normalise = Normalise((0, 0, 0), (1, 1, 1))

    def upscale(self, image: Any) -> Any:
        """RGB uint8 [H, W, 3] -> uint8 [scale H, scale W, 3].

        The image is mirrored below and to the right up to the smallest bucket that holds it; the original does so up to
        the next multiple of its window. An image that no bucket holds is enlarged in tiles of the largest, spread
        evenly along each side that is too long with at least ``OVERLAP`` pixels in common (half a tile, of a bucket
        under twice that); what two tiles share is cut in its middle. A tensor of torch on the bundle's device gives a
        tensor. Raises ``ModelError`` where what comes out is not finite.
        """
        check(image)
        height, width = image.shape[:2]
        bucket = next((each for each in self._buckets if height <= each[0] and width <= each[1]), None)
        if bucket is not None:
            return self._enlarged(image, bucket)
        bucket = self._buckets[-1]
        rows = []
        for down in _tiles(height, bucket[0]):
            parts = [self._tile(image, down, across, bucket) for across in _tiles(width, bucket[1])]
            rows.append(_joined(parts, 1))
        return _joined(rows, 0)

    def _tile(self, image: Any, down: Tile, across: Tile, bucket: Size) -> Any:
        """What is kept of one tile, enlarged."""
        found = self._enlarged(image[down.start : down.stop, across.start : across.stop], bucket)
        kept = [
            slice(self.scale * (side.first - side.start), self.scale * (side.last - side.start))
            for side in (down, across)
        ]
        return found[kept[0], kept[1]]

    def _enlarged(self, image: Any, bucket: Size) -> Any:
        """An image that a bucket holds."""
        height, width = image.shape[:2]
        padded = extend(image, (0, bucket[0] - height), (0, bucket[1] - width), "symmetric")
        found = self._graphs.of(bucket).run({"image": self._normalise(padded)[None]})["enlarged"][0]
        found = found[:, : self.scale * height, : self.scale * width]
        if not bool(abs(found).max() < float("inf")):
            raise ModelError(f"{self._name}: what became of an image of {height} x {width} is not finite")
        return _levels(found)


def _tiles(length: int, side: int) -> Iterator[Tile]:
    """A side of an image, cut in tiles."""
    overlap = min(OVERLAP, side // 2)
    number = 1 if length <= side else -(-(length - overlap) // (side - overlap))
    starts = [k * (length - side) // (number - 1) for k in range(number)] if number > 1 else [0]
    cuts = [0, *((before + side + after) // 2 for before, after in pairwise(starts)), length]
    for start, first, last in zip(starts, cuts[:-1], cuts[1:], strict=True):
        yield Tile(start, min(start + side, length), first, last)


def _joined(parts: list[Any], axis: int) -> Any:
    if is_array(parts[0]):
        return np.concatenate(parts, axis=axis)
    import torch

    return torch.cat(parts, dim=axis)


def _levels(found: Any) -> Any:
    """Float32 [3, H, W] -> uint8 [H, W, 3]: held to [0, 1], rounded to the nearest level."""
    if isinstance(found, np.ndarray):
        return np.moveaxis(np.rint(found.clip(0, 1) * np.float32(255)).astype(np.uint8), 0, 2)
    return found.clamp(0, 1).mul(255).round().byte().permute(1, 2, 0)
