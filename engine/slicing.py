"""Sliced inference: the windows of an image, and which of a window's boxes to believe."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Window(NamedTuple):
    """A rectangle of the image in pixels: [top, bottom) x [left, right)."""

    top: int
    left: int
    bottom: int
    right: int


def windows(height: int, width: int, slices: tuple[int, ...]) -> list[Window]:
    """The whole image first, then k x k overlapping windows for each listed k, row by row.

    Along a side of L pixels a window is ceil(4L / (3k + 1)) long and starts at floor(i (L - side) / (k - 1)), so that
    neighbours share about a quarter of their length.
    """
    found = [Window(0, 0, height, width)]
    for k in slices:
        rows, columns = _spans(height, k), _spans(width, k)
        found += [Window(top, left, bottom, right) for top, bottom in rows for left, right in columns]
    return found


def _spans(length: int, k: int) -> list[tuple[int, int]]:
    side = -(-4 * length // (3 * k + 1))
    starts = [i * (length - side) // (k - 1) for i in range(k)]
    return [(start, start + side) for start in starts]


def inside(boxes: NDArray[np.float32], window: Window, height: int, width: int, edge: float) -> NDArray[np.bool_]:
    """Boxes float32 [P, 4] in window pixels that are not cut by an inner edge of the window: bool [P].

    A box within ``edge`` pixels of an edge that is not the image's own edge is a part of something, and the
    neighbouring window sees the whole of it: without this rule 12 objects were counted as 15.
    """
    keep = np.ones(len(boxes), np.bool_)
    if window.left > 0:
        keep &= boxes[:, 0] > edge
    if window.top > 0:
        keep &= boxes[:, 1] > edge
    if window.right < width:
        keep &= boxes[:, 2] < (window.right - window.left) - edge
    if window.bottom < height:
        keep &= boxes[:, 3] < (window.bottom - window.top) - edge
    return keep
