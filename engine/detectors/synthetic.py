"""A detector that looks at no image: its boxes follow from the item's id alone, so that the engine can be measured."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.batch import ItemBatch
from tallymill.engine.clock import StageClock
from tallymill.engine.detectors.base import DetectorSpec
from tallymill.engine.proposer import DetectOptions, RawBoxes

BOXES_AN_ITEM = 13
SIDE = 1024


class Synthetic:
    """Covers every category and gives ``BOXES_AN_ITEM`` boxes an item, spread over its targets."""

    def __init__(self, name: str) -> None:
        self.spec = DetectorSpec(name=name, family="synthetic", labels=(), needs_pixels=False, open_vocabulary=True)
        self._salt = np.uint64(zlib.crc32(name.encode()))

    def propose(
        self, batch: ItemBatch, classes: NDArray[np.int64], options: DetectOptions, clock: StageClock
    ) -> RawBoxes:
        """See ``Proposer``. Deterministic in (detector name, item id)."""
        del classes  # it covers everything
        with clock("model"):
            items = np.flatnonzero(batch.ok & (np.diff(batch.targets.offsets) > 0))
            ids = batch.rows.column("item_id").to_pylist()
            seeds = np.array([zlib.crc32(ids[i].encode()) for i in items], np.uint64)
            draws = _uniform(seeds[:, None], np.arange(6 * BOXES_AN_ITEM, dtype=np.uint64) ^ self._salt)
            x, y, w, h, score, pick = draws.reshape(len(items), 6, BOXES_AN_ITEM).transpose(1, 0, 2)
            count = np.diff(batch.targets.offsets)[items, None]
            segment = batch.targets.offsets[items, None] + np.floor(pick * count).astype(np.int64)
            left, top = x * (SIDE - 128), y * (SIDE - 128)
            boxes = np.stack([left, top, left + 8 + 120 * w, top + 8 + 120 * h], axis=-1).astype(np.float32)
            scores = (options.floor + (1 - options.floor) * score).astype(np.float32)
        unseen = items[batch.sizes[items, 0] == 0]  # no other detector has looked at the image
        batch.sizes[unseen] = SIDE
        return RawBoxes(
            segment=segment.reshape(-1),
            boxes=boxes.reshape(-1, 4),
            scores=scores.reshape(-1),
            errors=list(batch.errors),
            saturated=np.zeros(len(batch), np.bool_),
        )


def _uniform(seeds: NDArray[np.uint64], index: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Well-mixed numbers in [0, 1) from pairs of integers (multiply-xorshift finaliser): float64, broadcast shape."""
    with np.errstate(over="ignore"):
        mixed = seeds * np.uint64(0x9E3779B97F4A7C15) + (index + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
