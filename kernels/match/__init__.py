"""Optimal one-to-one matching: of boxes by their IoU, and of whatever else by given costs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import arguments, paths
from tallymill.kernels.match import cpu, reference

IMPLEMENTATIONS = ("cpu", *paths.PATHS, "gpu", "reference")


class Matched(NamedTuple):
    """``partner`` int64 [A], each box's partner as an index into ``boxes_b``, -1 without; ``iou`` float32 [A], theirs,
    0 without.
    """

    partner: NDArray[np.int64]
    iou: NDArray[np.float32]


class Assignment(NamedTuple):
    """``column`` int64, each row's column inside its problem, -1 without: [n], [B, n], or of ragged problems [sum of
    rows]. Of each problem (scalars for a single matrix, [B] otherwise): ``total`` float64, the sum of the assigned
    costs in row order; ``complete`` bool, whether min(n, m) pairs were found; ``undefined`` int64, the costs that were
    NaN.
    """

    column: NDArray[np.int64]
    total: NDArray[np.float64]
    complete: NDArray[np.bool_]
    undefined: NDArray[np.int64]


def select(impl: str, device: str = "cpu") -> str:
    """Name the implementation that runs for ``impl`` (auto or one of IMPLEMENTATIONS); UsageError for any other."""
    return arguments.choose("match", impl, device, IMPLEMENTATIONS)


def match(
    boxes_a: NDArray[Any],
    offsets_a: NDArray[Any],
    boxes_b: NDArray[Any],
    offsets_b: NDArray[Any],
    *,
    gate: float = 0.0,
    impl: str = "auto",
    threads: int = 1,
    longest: int | None = None,
) -> Matched:
    """Pair the boxes of two sets so that the sum of IoU is greatest, for each pair of sets.

    ``boxes_a`` float32 [A, 4] and ``boxes_b`` float32 [B, 4], xyxy in pixels; ``offsets_a`` and ``offsets_b`` int64
    [S+1] of the sets among them: set s of one is matched with set s of the other. IoU is evaluated in float32 with
    areas (x2-x1)*(y2-y1). What is below ``gate`` (in [0, 1], compared in float64) becomes 0 before the optimum is
    looked for, and boxes are not paired at IoU 0: the most similar partners overall, not the most pairs. A degenerate
    box has IoU 0 with every box, itself too. The sum is the greatest to within 1e-6 of itself. Where several matchings
    reach it, every path and number of ``threads`` (1 to 256) gives the same one; the reference may give another.

    TypeError and ValueError name the argument that is wrong; coordinates must be finite. UsageError: the machine cannot
    run ``impl``.

    Torch tensors on a GPU give tensors beside them; values are not looked at, and the host waits for nothing. Sets have
    at most 1,024 boxes there. If there may be a longer one going by the lengths of ``boxes_a`` and ``boxes_b``, say by
    ``longest`` that there is none (a smaller bound is faster); sets that are longer all the same may get no
    partners, and IoU NaN. ``threads`` mean nothing there, and ``longest`` nothing elsewhere.
    """
    chosen = select(impl, arguments.device_of(boxes_a))
    gate = arguments.fraction("gate", gate)
    threads = arguments.threads(threads)
    if chosen == "gpu":
        run = arguments.gpu_module("match").match
        return Matched(*run(boxes_a, offsets_a, boxes_b, offsets_b, gate, longest))
    boxes_a = arguments.array("boxes_a", boxes_a, np.float32, None, 4)
    boxes_b = arguments.array("boxes_b", boxes_b, np.float32, None, 4)
    offsets_a = arguments.offsets("offsets_a", offsets_a, len(boxes_a), "boxes")
    offsets_b = arguments.offsets("offsets_b", offsets_b, len(boxes_b), "boxes")
    if len(offsets_a) != len(offsets_b):
        raise ValueError(f"offsets_b: wanted as many sets as offsets_a, {len(offsets_a) - 1}, got {len(offsets_b) - 1}")
    if chosen == "reference":
        _check_finite(boxes_a, boxes_b)
        return Matched(*reference.match(boxes_a, offsets_a, boxes_b, offsets_b, gate, threads))
    paths.require("match", chosen)
    found = cpu.match(boxes_a, offsets_a, boxes_b, offsets_b, gate, threads, chosen)
    if found is None:
        _check_finite(boxes_a, boxes_b)
        raise ValueError("boxes_a: changed while they were read")
    return Matched(*found)


def assign(
    costs: NDArray[Any],
    *,
    rows: NDArray[Any] | None = None,
    columns: NDArray[Any] | None = None,
    maximize: bool = False,
    impl: str = "auto",
    threads: int = 1,
) -> Assignment:
    """Give rows columns of their own so that the total cost is least.

    ``costs`` float32 or float64: one matrix [n, m], a batch [B, n, m], or ragged: [sum of rows*columns], problem after
    problem and row after row, with ``rows`` and ``columns`` int64 [B]. Either side may be the longer one. Solved in
    float64; ``maximize`` looks for the greatest total instead.

    An infinite cost (minus infinity for ``maximize``) forbids the pair; so does NaN, which is counted. If forbidden
    pairs leave no assignment of min(n, m) pairs, the result has as many pairs as there can be, at the least total among
    those, and ``complete`` is False; what is small beside the range of the costs may then be lost in rounding. Where
    several assignments are optimal, every path and number of ``threads`` (1 to 256) gives the same one; the reference
    may give another.

    ValueError: an infinite cost of the wrong sign. TypeError and ValueError name the argument that is wrong.
    UsageError: the machine cannot run ``impl``.

    ``costs`` as a torch tensor on a GPU give tensors beside it, without the host waiting; ``rows`` and ``columns`` stay
    NumPy arrays. Problems have at most 1,024 rows and columns there, totals are summed in another order, an infinite
    cost of the wrong sign is counted as NaN is, and which of several optimal assignments it is may differ.
    """
    chosen = select(impl, arguments.device_of(costs))
    if chosen == "gpu":
        arguments.threads(threads)
        if rows is not None and columns is not None:
            rows, columns = _sizes(rows, columns)
        elif rows is not None or columns is not None:
            raise ValueError("rows, columns: wanted both, or neither")
        return Assignment(*arguments.gpu_module("match").assign(costs, rows, columns, bool(maximize)))
    dtype = np.float32 if getattr(costs, "dtype", None) == np.float32 else np.float64
    flat, shapes = _problems(costs, dtype, rows, columns)
    threads = arguments.threads(threads)
    paths.require("match", chosen)
    run = reference.assign if chosen == "reference" else cpu.assign
    column, total, complete, undefined, refused = run(flat, shapes, bool(maximize), threads, chosen)
    if refused >= 0:
        raise ValueError(f"costs: problem {refused} has a cost of {'' if maximize else '-'}inf, better than any total")
    if costs.ndim == 2:
        return Assignment(column, total[0], complete[0], undefined[0])
    if costs.ndim == 3:
        column = column.reshape(costs.shape[:2])
    return Assignment(column, total, complete, undefined)


def _problems(
    costs: NDArray[Any], dtype: type[np.float32 | np.float64], rows: NDArray[Any] | None, columns: NDArray[Any] | None
) -> tuple[NDArray[Any], cpu.Shapes]:
    """The costs in one piece, how many problems they are, and rows and columns of all or of each."""
    shape = np.shape(costs)
    if rows is None and columns is None and len(shape) in (2, 3):
        checked = arguments.array("costs", costs, dtype, *shape)
        return checked.reshape(-1), (1 if len(shape) == 2 else shape[0], *shape[-2:])
    if rows is None or columns is None:
        raise ValueError("costs: wanted shape [n, m] or [B, n, m], or a flat array with rows and columns")
    rows, columns = _sizes(rows, columns)
    entries = sum(height * width for height, width in zip(rows.tolist(), columns.tolist(), strict=True))  # no overflow
    return arguments.array("costs", costs, dtype, entries), (len(rows), rows, columns)


def _sizes(rows: NDArray[Any], columns: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = arguments.array("rows", rows, np.int64, None)
    columns = arguments.array("columns", columns, np.int64, len(rows))
    for name, sizes in (("rows", rows), ("columns", columns)):
        if (sizes < 0).any():
            raise ValueError(f"{name}: wanted sizes of at least 0, got {sizes.min()} at {int(sizes.argmin())}")
        if sizes.size and int(sizes.max()) > 2**31 - 1:
            raise ValueError(f"{name}: wanted sizes below 2^31, got {sizes.max()} at {int(sizes.argmax())}")
    return rows, columns


def _check_finite(boxes_a: NDArray[np.float32], boxes_b: NDArray[np.float32]) -> None:
    for name, boxes in (("boxes_a", boxes_a), ("boxes_b", boxes_b)):
        finite = np.isfinite(boxes).all(axis=1)
        if not finite.all():
            at = int(finite.argmin())
            raise ValueError(f"{name}: {boxes[at]} at {at} is not finite")
