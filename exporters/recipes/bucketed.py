"""What recipes of models with a graph a size of image have in common."""

from __future__ import annotations

from collections.abc import Sequence

from tallymill.engine.detectors.buckets import Size, name
from tallymill.errors import UsageError

_LARGE = 512 * 512


def pictures(buckets: Sequence[Size]) -> tuple[Size, ...]:
    """Heights and widths of pictures that try every bucket: one that is enlarged and fills it, and one that is made
    smaller and, where the bucket is oblong, does not.
    """
    found = []
    for scale, oblong in ((0.4, 1.0), (1.28, 0.8)):
        for size in buckets:
            longest = oblong * max(size) if size[0] != size[1] else max(size)
            found.append((round(scale * min(size[0], longest)), round(scale * min(size[1], longest))))
    return tuple(dict.fromkeys(found))


def require_levels(buckets: Sequence[Size], stride: int = 64) -> None:
    """Raises ``UsageError`` for a size of which the coarsest level, one place each ``stride`` pixels, is one place:
    a group norm over it has nothing to compare, and torch cannot export it.
    """
    for size in buckets:
        if max(size) <= stride:
            raise UsageError(f"--buckets {name(size)}: too small, a side has to be above {stride}")


def batches(size: Size) -> tuple[int, ...]:
    """Batches that the gate tries: of large images fewer, for five of 800x800 take 12 GB and minutes on two cores."""
    return (1, 2, 5) if size[0] * size[1] <= _LARGE else (1, 2, 3)
