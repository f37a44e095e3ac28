"""Matching in C++ (``kernels/csrc/match.cpp``): arrays are allocated here and filled there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import _native

Integers = NDArray[np.int64]


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
    costs: NDArray[Any], rows: Integers, columns: Integers, maximize: bool, threads: int, path: str
) -> tuple[Integers, Any, Integers, Integers | None]:
    """Columns, totals, pairs and NaN counts. With an infinitely good cost, that problem's number in place of totals."""
    starts, row_starts = _starts(rows * columns), _starts(rows)
    column = np.empty(int(rows.sum()), np.int64)
    total = np.empty(len(rows), np.float64)
    pairs, undefined = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    run = _native.assign_f32 if costs.dtype == np.float32 else _native.assign_f64
    refused = run(costs, rows, columns, starts, row_starts, maximize, threads, path, column, total, pairs, undefined)
    return (column, refused, pairs, None) if refused >= 0 else (column, total, pairs, undefined)


def _starts(sizes: Integers) -> Integers:
    starts = np.cumsum(sizes)
    starts -= sizes
    return starts
