"""Sliced inference: the windows of an image, and which of a window's boxes to believe."""

from __future__ import annotations

from math import nan
from typing import NamedTuple

from tallymill.engine.arrays import Array


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


def inner(window: Window, height: int, width: int, edge: float) -> tuple[float, float, float, float]:
    """What the sides of a box must not reach, xyxy in window pixels: NaN where the image itself ends.

    A box within ``edge`` pixels of an edge that is not the image's own edge is a part of something, and the
    neighbouring window sees the whole of it: without this rule 12 objects were counted as 15.
    """
    return (
        edge if window.left > 0 else nan,
        edge if window.top > 0 else nan,
        (window.right - window.left) - edge if window.right < width else nan,
        (window.bottom - window.top) - edge if window.bottom < height else nan,
    )


def inside(boxes: Array, limits: Array) -> Array:
    """Boxes float32 [P, 4] in window pixels that an inner edge does not cut: bool [P].

    ``limits`` float32 [P, 4] is what ``inner`` gives for the window of each; both are arrays, or both tensors.
    """
    free = limits != limits
    low = (boxes[:, :2] > limits[:, :2]) | free[:, :2]
    high = (boxes[:, 2:] < limits[:, 2:]) | free[:, 2:]
    return (low & high).all(1)
