"""Matching in C++ (``kernels/csrc/match.cpp``): arrays are allocated here and filled there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import _native

Integers = NDArray[np.int64]
# How many problems, and the rows and columns of all of them or of each.
Shapes = tuple[int, Any, Any]


def match(
    boxes_a: NDArray[np.float32],
    offsets_a: Integers,
    boxes_b: NDArray[np.float32],
    offsets_b: Integers,
    gate: float,
    threads: int,
    path: str,
) -> tuple[Integers, NDArray[np.float32]] | None:
    """Partners and IoU; None when a coordinate is not finite."""
    partner = np.empty(len(boxes_a), np.int64)
    iou = np.empty(len(boxes_a), np.float32)
    refused = _native.match(boxes_a, offsets_a, boxes_b, offsets_b, gate, threads, path, partner, iou)
    return (partner, iou) if refused < 0 else None


def assign(
    costs: NDArray[Any], shapes: Shapes, maximize: bool, threads: int, path: str
) -> tuple[Integers, NDArray[np.float64], NDArray[np.bool_], Integers, int]:
    """Columns, totals, completeness, NaN counts, and -1 or a problem with an infinitely good cost."""
    problems, rows, columns = shapes
    total, complete = np.empty(problems, np.float64), np.empty(problems, np.bool_)
    undefined = np.empty(problems, np.int64)
    single = costs.dtype == np.float32
    if isinstance(rows, int):
        column = np.empty(problems * rows, np.int64)
        dense = _native.assign_dense_f32 if single else _native.assign_dense_f64
        refused = dense(costs, rows, columns, maximize, threads, path, column, total, complete, undefined)
    else:
        column = np.empty(int(rows.sum()), np.int64)
        starts, row_starts = _starts(rows * columns), _starts(rows)
        ragged = _native.assign_ragged_f32 if single else _native.assign_ragged_f64
        refused = ragged(
            costs, rows, columns, starts, row_starts, maximize, threads, path, column, total, complete, undefined
        )
    return column, total, complete, undefined, refused


def _starts(sizes: Integers) -> Integers:
    starts = np.cumsum(sizes)
    starts -= sizes
    return starts
