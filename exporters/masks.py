"""Masks of a model that segments, from pixels on, against those of the original."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.detectors.base import Detector
from tallymill.engine.detectors.sam3 import Sam3
from tallymill.engine.sessions.base import stack
from tallymill.exporters.gate import EXACT, SMALL, Finding, draw
from tallymill.exporters.pairing import Bounds, strongest
from tallymill.exporters.recipes.parts import Loaded

MOST = 0.01  # of 1 - IoU, over the pixels that are not undecided


def examine_masks(loaded: Loaded, detector: Detector, bounds: Bounds = EXACT) -> list[Finding]:
    """The most confident instances of each category, on drawn pictures at their own size: one finding a category and
    picture, the largest 1 - IoU. Nothing for a model without masks.

    A pixel is undecided where the original's confidence that it belongs is within ``bounds.score`` of one half. An
    instance without a pixel on either side is compared, and equal.
    """
    if loaded.masks is None:
        return []
    if not isinstance(detector, Sam3):
        raise TypeError(f"a detector of the family {detector.spec.family!r} has no masks")
    detector.learn(loaded.categories)
    findings = []
    for size in loaded.pictures or SMALL:
        picture = draw(*size)
        outputs = detector.run(stack([detector.preprocess(picture)]), [np.arange(len(loaded.categories))])
        wanted = loaded.masks(picture, loaded.categories, bounds.score)
        for place, (sure, possible) in enumerate(wanted):
            found = detector.segment(outputs, 0, place, size, 0.0)
            queries = strongest(found.scores)
            off = [outside(found.masks[query], sure[query], possible[query]) for query in queries]
            check = f"picture of {size[1]}x{size[0]}, {loaded.categories[place]!r} against the original"
            findings.append(Finding("whole", check, "masks (1 - IoU)", max(off, default=np.inf), MOST, len(off)))
    return findings


def outside(found: NDArray[np.bool_], sure: NDArray[np.bool_], possible: NDArray[np.bool_]) -> float:
    """1 - IoU of a mask bool [H, W] and the nearest of those that hold all that is ``sure`` and only what is
    ``possible``; 0 where both are empty.
    """
    wrong = (sure & ~found) | (found & ~possible)
    either = (found | sure).sum()
    return float(wrong.sum() / either) if either else 0.0
