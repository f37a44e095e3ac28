"""What recipes of models with a graph a size of image have in common."""

from __future__ import annotations

from collections.abc import Sequence

from tallymill.engine.detectors.buckets import Size

_LARGE = 512 * 512


def pictures(buckets: Sequence[Size]) -> tuple[Size, ...]:
    """Heights and widths of pictures that try every bucket: one that fills it, and of oblong ones one that does not."""
    full = [(round(0.4 * height), round(0.4 * width)) for height, width in buckets]
    part = [tuple(round(side * 0.8) if side == max(size) else side for side in size) for size in full]
    return tuple(dict.fromkeys([*full, *((h, w) for h, w in part if h != w)]))


def batches(size: Size) -> tuple[int, ...]:
    """Batches that the gate tries: of large images fewer, for five of 800x800 take 12 GB and minutes on two cores."""
    return (1, 2, 5) if size[0] * size[1] <= _LARGE else (1, 2, 3)
