"""RAFT (arXiv 2003.12039): two images are compared everywhere at an eighth of their size, and a flow is updated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.buckets import Buckets, Size
from tallymill.engine.detectors.graphs import Graphs
from tallymill.engine.detectors.parts import Normalise
from tallymill.engine.padding import Ends, check, extend
from tallymill.errors import ModelError

FAMILY = "raft"
ANY = "flow"  # the part that takes images of all sizes
LEAST, STEP = 128, 8  # pixels: of a side, below which the coarsest comparison has nothing to look at; of its multiples


@dataclass(frozen=True, slots=True)
class RaftNumbers:
    """``buckets``: sizes that graphs have, or none for one of all sizes; ``mean`` and ``std``: of values in [0, 1]."""

    buckets: tuple[tuple[int, int], ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class Raft:
    """A bundle of the family ``raft``. Parts: ``flow``, or ``flow-HxW`` for each bucket, of two images float32
    [B, 3, H, W] -> flow float32 [B, 2, H, W].
    """

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        """Raises ``ModelError`` when the bundle is of another family, or says too little."""
        if bundle.family != FAMILY:
            raise bundle.error(f"is of the family {bundle.family!r}, not {FAMILY!r}")
        numbers = bundle.read(RaftNumbers)
        self._name = bundle.name
        self._graphs = Graphs(bundle, ANY, numbers.buckets, threads=threads, any_size=True)
        self._normalise = Normalise(numbers.mean, numbers.std)

    def flow(self, first: Any, second: Any) -> Any:
        """Where each pixel of ``first`` is in ``second``: RGB uint8 [H, W, 3] twice -> float32 [H, W, 2], x and y in
        pixels, so that what is at (x, y) in ``first`` is at (x, y) + flow in ``second``.

        Images that are tensors of torch on the bundle's device give a tensor. Raises ``ValueError`` for images of two
        sizes, ``ModelError`` where a bucket holds them not, or what comes out is not finite.
        """
        for image in (first, second):
            check(image)
        if first.shape != second.shape:
            raise ValueError(f"two images of one size, not {list(first.shape[:2])} and {list(second.shape[:2])}")
        height, width = first.shape[:2]
        size = size_of(height, width, self._graphs.buckets)
        rows, columns = ends_of(height, size[0]), ends_of(width, size[1])
        inputs = {
            key: self._normalise(extend(image, rows, columns, "edge"))[None]
            for key, image in (("first", first), ("second", second))
        }
        found = self._graphs.of(size).run(inputs)["flow"][0]
        found = found[:, rows[0] : rows[0] + height, columns[0] : columns[0] + width]
        if not bool(abs(found).max() < float("inf")):
            raise ModelError(f"{self._name}: the flow between two images of {height} x {width} is not finite")
        return np.moveaxis(found, 0, 2) if isinstance(found, np.ndarray) else found.permute(1, 2, 0)


def size_of(height: int, width: int, buckets: Buckets | None) -> Size:
    """What an image is padded to: its bucket, or the least sides that the model takes."""
    if buckets is not None:
        return buckets.of(height, width)
    up, across = (max(LEAST, -(-side // STEP) * STEP) for side in (height, width))
    return up, across


def ends_of(length: int, wanted: int) -> Ends:
    """Half of the missing pixels on either side, as the authors' evaluation pads."""
    missing = wanted - length
    return missing // 2, missing - missing // 2
