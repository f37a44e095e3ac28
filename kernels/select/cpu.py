"""Selection in C++ (``kernels/csrc/select.cpp``): arrays are allocated here and filled there.

These functions run when a model has just emptied the caches and every step in Python is slow. So the native pass
checks its arguments as it goes and only says no; who then asks why finds out, or gets copies that it takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import _native
from tallymill.kernels.select.reference import Found, checked, checked_map

# Most images have fewer candidates; where there are more, the scores are gone through a second time.
ROOM = 256


def select(scores: NDArray[Any], classes: NDArray[Any], floor: float, room: int = ROOM) -> Found:
    """All entries of the asked rows that are at least the floor."""
    request, cell, kept = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.float32)
    try:
        count = _native.select(scores, classes, floor, request, cell, kept)
    except TypeError:  # not an array of this type, or with strides that are no whole numbers
        return select(*checked(scores, classes, floor))
    if count < 0:
        return select(*checked(scores, classes, floor))
    if count > room:
        return select(scores, classes, floor, count)
    return request[:count], cell[:count], kept[:count]


def select_peaks(scores: NDArray[Any], classes: NDArray[Any], floor: float, width: int, room: int = ROOM) -> Found:
    """Those of them that no neighbour exceeds."""
    request, cell, kept = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.float32)
    try:
        count = _native.select_peaks(scores, classes, floor, width, request, cell, kept)
    except TypeError:  # as above
        return select_peaks(*checked_map(scores, classes, floor, width))
    if count < 0:
        return select_peaks(*checked_map(scores, classes, floor, width))
    if count > room:
        return select_peaks(scores, classes, floor, width, count)
    return request[:count], cell[:count], kept[:count]
