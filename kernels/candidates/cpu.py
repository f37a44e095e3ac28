"""Candidates in C++ (``kernels/csrc/candidates.cpp``): arrays are allocated here and filled there.

The native pass compares logits with one that no score of the floor lies below; NumPy takes the sigmoid of the few that
are found, so that scores have the bits of the reference. Like selection it runs when a model has just emptied the
caches: it checks its arguments as it goes and only says no, and who then asks why finds out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import _native
from tallymill.kernels.candidates import reference
from tallymill.kernels.candidates.checks import Found, checked

# Most batches have fewer candidates; where there are more, the logits are gone through a second time.
ROOM = 1024
SLACK = 1e-6  # relative; the sigmoid in float32 is off by less
LEAST = float(np.finfo(np.float32).min)


def candidates(
    logits: NDArray[Any],
    boxes: NDArray[Any],
    columns: NDArray[Any],
    edges: NDArray[Any],
    requests: NDArray[Any],
    scale: NDArray[Any],
    floor: float,
    room: int = ROOM,
) -> Found:
    """See the public function; arguments are checked here."""
    given = (logits, boxes, columns, edges, requests, scale)
    try:
        least = logit_below(floor)
        found, best, request = np.empty((room, 4), np.float32), np.empty(room, np.float32), np.empty(room, np.int64)
        saturated, finite = np.empty((2, len(logits)), np.bool_)
        offsets = np.empty(len(edges), np.int64)
        count = _native.candidates(*given, least, found, best, request, saturated, finite, offsets)
    except (TypeError, ValueError):  # not arrays of these types, or strides that are no whole numbers, or no floor
        return candidates(*checked(*given, floor))
    if count < 0:
        return candidates(*checked(*given, floor))
    if count > room:
        return candidates(*given, floor, count)
    scores = reference.sigmoid(best[:count])
    if count and float(scores.min()) < floor:  # so close to the floor that only the score itself can tell
        return reference.candidates(*checked(*given, floor))
    return found[:count], scores, request[:count], saturated, finite, offsets


def logit_below(floor: float) -> float:
    """A logit that is below all, and not by much, whose score reaches the floor; ValueError where that is none."""
    if not 0 <= floor <= 1:
        raise ValueError
    if floor < 1e-30:  # where the sigmoid's steps are coarse
        return LEAST
    near = floor * (1 - SLACK)
    return math.log(near / (1 - near)) - 1e-5  # which rounding to float32 does not undo
