"""Selection from its definition, in NumPy: the oracle that every other implementation must equal."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import arguments

Found = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]


class NonFiniteError(ValueError):
    """An asked score is NaN or infinite."""


def checked(
    scores: NDArray[Any], classes: NDArray[Any], floor: float
) -> tuple[NDArray[np.float32], NDArray[np.int64], float]:
    """Return copies that every implementation takes; TypeError or ValueError names the argument that is wrong."""
    scores = arguments.array("scores", scores, np.float32, None, None).copy()
    classes = arguments.array("classes", classes, np.int64, None).copy()
    arguments.within("classes", classes, 0, len(scores) - 1, f"[0, {len(scores) - 1}]")
    if not -np.inf < floor < np.inf:
        raise ValueError(f"floor: wanted a finite number, got {floor}")
    broken = np.argwhere(~np.isfinite(scores[classes]))
    if len(broken):
        row, cell = classes[broken[0, 0]], broken[0, 1]
        raise NonFiniteError(f"scores: wanted finite numbers, got {scores[row, cell]} in row {row}, cell {cell}")
    return scores, classes, float(floor)


def checked_map(
    scores: NDArray[Any], classes: NDArray[Any], floor: float, width: int
) -> tuple[NDArray[np.float32], NDArray[np.int64], float, int]:
    """The same for rows that are maps of ``width``."""
    scores, classes, floor = checked(scores, classes, floor)
    if not (width >= 1 and scores.shape[1] % width == 0):
        raise ValueError(f"width: wanted a positive divisor of the {scores.shape[1]} cells, got {width}")
    return scores, classes, floor, int(width)


def select(scores: NDArray[Any], classes: NDArray[Any], floor: float) -> Found:
    """All entries of the asked rows that are at least the floor, row after row."""
    scores, classes, floor = checked(scores, classes, floor)
    asked = scores[classes]
    # NumPy would round the floor to float32; the comparison is defined in float64.
    request, cell = np.nonzero(asked.astype(np.float64) >= floor)
    return request, cell, asked[request, cell]


def select_peaks(scores: NDArray[Any], classes: NDArray[Any], floor: float, width: int) -> Found:
    """The same, and then only those that are the greatest of their surroundings."""
    scores, classes, floor, width = checked_map(scores, classes, floor, width)
    request, cell, kept = select(scores, classes, floor)
    height = scores.shape[1] // width
    maps = scores[classes].reshape(len(classes), height, width)
    # Cells outside the map exceed nothing.
    framed = np.pad(maps, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    shifted = [framed[:, y : y + height, x : x + width] for y in range(3) for x in range(3)]
    greatest = np.maximum.reduce(shifted).reshape(len(classes), scores.shape[1])
    peak = kept == greatest[request, cell]
    return request[peak], cell[peak], kept[peak]
