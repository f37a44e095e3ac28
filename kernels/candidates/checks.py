"""What has to be true of the arguments of every implementation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import arguments

Found = tuple[
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.int64],
    NDArray[np.bool_],
    NDArray[np.bool_],
    NDArray[np.int64],
]


class Asked(NamedTuple):
    """What is asked of B windows, checked: see :func:`tallymill.kernels.candidates.candidates`."""

    columns: NDArray[np.int32]
    edges: NDArray[np.int32]
    requests: NDArray[np.int32]
    scale: NDArray[np.float32]
    floor: float


def checked(
    logits: NDArray[Any],
    boxes: NDArray[Any],
    columns: NDArray[Any],
    edges: NDArray[Any],
    requests: NDArray[Any],
    scale: NDArray[Any],
    floor: float,
) -> tuple[Any, ...]:
    """Return arrays that every implementation takes; TypeError or ValueError names the argument that is wrong."""
    logits = arguments.array("logits", logits, np.float32, None, None, None)
    boxes = arguments.array("boxes", boxes, np.float32, *logits.shape[:2], 4)
    return logits, boxes, *asked(logits.shape[0], logits.shape[2], columns, edges, requests, scale, floor)


def asked(
    windows: int,
    width: int,
    columns: NDArray[Any],
    edges: NDArray[Any],
    requests: NDArray[Any],
    scale: NDArray[Any],
    floor: float,
) -> Asked:
    """Check what is asked of logits [``windows``, N, ``width``]."""
    columns = arguments.array("columns", columns, np.int32, None)
    arguments.within("columns", columns, 0, width - 1, f"[0, {width - 1}]")
    edges = arguments.offsets_of(np.int32, "edges", edges, len(columns), "columns")
    without = edges[1:] == edges[:-1]
    if without.any():
        raise ValueError(f"edges: request {int(without.argmax())} has no column that answers it")
    requests = arguments.array("requests", requests, np.int32, windows + 1)
    requests = arguments.offsets_of(np.int32, "requests", requests, len(edges) - 1, "requests")
    scale = arguments.array("scale", scale, np.float32, windows, 4)
    if not np.isfinite(scale).all():
        raise ValueError("scale: wanted finite numbers")
    return Asked(columns, edges, requests, scale, arguments.fraction("floor", floor))
