"""Matching by the textbook Hungarian method, in NumPy: the oracle for the totals of every other implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels.nms.reference import iou as iou_of

Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]


def match(
    boxes_a: NDArray[np.float32],
    offsets_a: Integers,
    boxes_b: NDArray[np.float32],
    offsets_b: Integers,
    gate: float,
    threads: int,
) -> tuple[Integers, NDArray[np.float32]]:
    """The matrix of similarities of each pair of sets, and the assignment that makes most of it."""
    del threads  # part of the shared signature
    partner = np.full(len(boxes_a), -1, np.int64)
    iou = np.zeros(len(boxes_a), np.float32)
    for start_a, stop_a, start_b, stop_b in zip(
        offsets_a[:-1], offsets_a[1:], offsets_b[:-1], offsets_b[1:], strict=True
    ):
        similarity = similarities(boxes_a[start_a:stop_a], boxes_b[start_b:stop_b], gate)
        for row, column in enumerate(cheapest(-similarity.astype(np.float64))):
            if column >= 0 and similarity[row, column] > 0:
                partner[start_a + row] = start_b + column
                iou[start_a + row] = similarity[row, column]
    return partner, iou


def similarities(boxes_a: NDArray[np.float32], boxes_b: NDArray[np.float32], gate: float) -> NDArray[np.float32]:
    """IoU float32 [A, B]; 0 for degenerate boxes and for what does not reach the gate."""
    similarity = np.zeros((len(boxes_a), len(boxes_b)), np.float32)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for row, box in enumerate(boxes_a):
            similarity[row] = iou_of(box, boxes_b)
    proper_a, proper_b = ((b[:, 2] > b[:, 0]) & (b[:, 3] > b[:, 1]) for b in (boxes_a, boxes_b))
    counts = proper_a[:, None] & proper_b & (similarity > 0) & (similarity.astype(np.float64) >= gate)
    return np.where(counts, similarity, np.float32(0))


def assign(
    costs: NDArray[Any], shapes: tuple[int, Any, Any], maximize: bool, threads: int, path: str
) -> tuple[Integers, Doubles, NDArray[np.bool_], Integers, int]:
    """Each problem by itself; last, -1 or a problem with an infinitely good cost."""
    del threads, path  # part of the shared signature
    problems, *sizes = shapes
    columns, totals, complete, undefined = [np.empty(0, np.int64)], [], [], []
    start, refused = 0, -1
    for problem, (height, width) in enumerate(zip(*(np.broadcast_to(size, problems) for size in sizes), strict=True)):
        given = costs[start : start + height * width].reshape(height, width).astype(np.float64)
        start += height * width
        cost = -given if maximize else given
        if (cost == -np.inf).any():
            refused = problem
        column = cheapest(np.where(np.isfinite(cost), cost, np.inf))
        assigned = np.flatnonzero(column >= 0)
        total = 0.0
        for row in assigned:
            total += float(given[row, column[row]])
        columns.append(column)
        totals.append(total)
        complete.append(len(assigned) == min(height, width))
        undefined.append(int(np.isnan(cost).sum()))
    return (
        np.concatenate(columns),
        np.array(totals, np.float64),
        np.array(complete, np.bool_),
        np.array(undefined, np.int64),
        refused,
    )


def cheapest(cost: Doubles) -> Integers:
    """Each row's column, or -1: the most pairs of finite cost, and the least total among those."""
    finite = np.isfinite(cost)
    if not finite.any():
        return np.full(len(cost), -1, np.int64)
    if len(cost) > cost.shape[1]:
        row = cheapest(cost.T)
        column = np.full(len(cost), -1, np.int64)
        column[row[row >= 0]] = np.flatnonzero(row >= 0)
        return column
    # One forbidden pair costs more than any assignment without: the least total has as few of them as can be.
    least, most = cost[finite].min(), cost[finite].max()
    scale = most - least or 1.0
    column = hungarian(np.where(finite, (cost - least) / scale, len(cost) + 1.0))
    return np.where(finite[np.arange(len(cost)), column], column, -1)


def hungarian(cost: Doubles) -> Integers:
    """Each row's column at the least total, for finite costs of no more rows than columns.

    One row after another finds the cheapest way to a free column, by Dijkstra's algorithm over costs less the prices of
    row and column; the prices then change so that all pairs keep costing 0 and no cost becomes negative.
    """
    rows, columns = cost.shape
    row_price, column_price = np.zeros(rows), np.zeros(columns + 1)
    row_of = np.full(columns + 1, -1)  # the last column stands for "none": the row that looks is paired with it
    for start in range(rows):
        row_of[columns] = start
        here, reached_from = columns, np.full(columns, columns)
        distance, settled = np.full(columns, np.inf), np.zeros(columns + 1, bool)
        while row_of[here] >= 0:
            settled[here] = True
            row = row_of[here]
            net = cost[row] - row_price[row] - column_price[:columns]
            shorter = ~settled[:columns] & (net < distance)
            distance[shorter], reached_from[shorter] = net[shorter], here
            here = int(np.where(settled[:columns], np.inf, distance).argmin())
            step = distance[here]
            row_price[row_of[settled]] += step
            column_price[settled] -= step
            distance[~settled[:columns]] -= step
        while here != columns:
            row_of[here] = row_of[reached_from[here]]
            here = reached_from[here]
    column = np.empty(rows, np.int64)
    for j in range(columns):
        if row_of[j] >= 0:
            column[row_of[j]] = j
    return column
