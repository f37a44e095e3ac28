"""Assignment in Triton: one program a problem, columns across the lanes, everything but the costs in registers.

Both kernels share :func:`_solve`, which lets one row in after another along a shortest augmenting path (Jonker and
Volgenant 1987, Crouse 2016, "On implementing 2D rectangular assignment algorithms"). The smaller side of a problem
gives the rows. The path search is Dijkstra's: it looks at one row at a time, whose reduced costs all lanes update at
once, and takes the nearest column. All duals are float64, so that totals are those of the CPU.

Forbidden pairs cost infinity. Where a row cannot be let in, because the columns that it reaches are all taken by rows
that can go nowhere else, one of these rows is left out: the one whose leaving costs least. It is as if each row had a
column of its own with the same immense cost; these columns, and the immense cost in the duals of rows and columns that
compete so (``closed``), are never written down.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from tallymill.errors import UsageError
from tallymill.kernels import tensors
from tallymill.kernels.configurations import Configuration


@triton.jit
def _pick(values, lane, at):
    """The value of one lane; 0 where no lane has that number."""
    return tl.sum(tl.where(lane == at, values, 0), axis=0)


@triton.jit
def _solve(costs_of: tl.constexpr, source, rows, BLOCK: tl.constexpr):
    """Return the row that each column gets, int32 [BLOCK], -1 for none. There are at least as many columns as ``rows``.

    ``costs_of(source, row, lane)`` is float64 [BLOCK], infinite where a pair is forbidden and in lanes beyond the
    columns, never NaN.
    """
    infinity = float("inf")
    lane = tl.arange(0, BLOCK)
    holder = tl.full([BLOCK], -1, tl.int32)
    potential = tl.zeros([BLOCK], tl.float64)  # the dual of a column
    dual = tl.zeros([BLOCK], tl.float64)  # the dual of the row that has the column
    closed = tl.zeros([BLOCK], tl.int32)  # only rows that compete for these columns reach them at no immense cost
    for row in range(0, rows):
        nearest = tl.full([BLOCK], infinity, tl.float64)  # length of the shortest path to a column
        before = tl.full([BLOCK], -1, tl.int32)  # the column before it on that path; -1 is the new row itself
        done = tl.zeros([BLOCK], tl.int32)
        here = row
        came_from = -1
        length = tl.full((), 0.0, tl.float64)  # of the path to the row that is looked at, less its dual
        leave = tl.full((), 0.0, tl.float64)  # the least length at which a row can be left out
        leave_at = -1  # that row's column; -1 is the new row itself
        end = -2
        while end == -2:
            path = length + costs_of(source, here, lane) - potential
            shorter = (done == 0) & (path < nearest)
            nearest = tl.where(shorter, path, nearest)
            before = tl.where(shorter, came_from, before)
            open_ends = tl.where((done | closed) != 0, infinity, nearest)
            length = tl.min(open_ends, axis=0)
            stuck = length == infinity
            if stuck:
                open_ends = tl.where(done != 0, infinity, nearest)
                length = tl.min(open_ends, axis=0)
            if stuck and leave <= length:
                end = leave_at
                length = leave
            else:
                # Of equally near columns, a free one, and then the first.
                key = tl.min(tl.where(open_ends == length, ((holder + 1) << 12) | lane, 0x7FFFFFFF), axis=0)
                column = key & 0xFFF
                here = (key >> 12) - 1
                if here < 0:
                    end = column
                else:
                    done = tl.where(lane == column, 1, done)
                    came_from = column
                    length -= _pick(dual, lane, column)
                    if length < leave:
                        leave = length
                        leave_at = column
        change = tl.where(done != 0, length - nearest, 0.0)
        dual += change
        potential -= change
        if end == leave_at:
            closed = closed | done
        # Each column of the path is handed the row of the one before it.
        while end >= 0:
            previous = _pick(before, lane, end)
            passed = tl.where(previous < 0, row, _pick(holder, lane, previous))
            passed_dual = tl.where(previous < 0, length, _pick(dual, lane, previous))
            holder = tl.where(lane == end, passed, holder)
            dual = tl.where(lane == end, passed_dual, dual)
            end = previous
    return holder


@triton.jit
def _given_costs(source, row, lane):
    first, row_step, lane_step, lanes, sign = source
    cost = tl.load(first + row * row_step + lane * lane_step, mask=lane < lanes, other=0.0).to(tl.float64) * sign
    # Of the infinities, one forbids a pair; the other one and NaN have no meaning, and forbid it too.
    return tl.where((lane < lanes) & (tl.abs(cost) < float("inf")), cost, float("inf"))


@triton.jit(do_not_specialize=["problems", "sign"])
def _assign(costs, layout, column, total, pairs, undefined, problems: tl.int32, sign: tl.float64, BLOCK: tl.constexpr):
    problem = tl.program_id(0)
    height, width = tl.load(layout + problem).to(tl.int32), tl.load(layout + problems + problem).to(tl.int32)
    first = costs + tl.load(layout + 2 * problems + problem)
    first_row = tl.load(layout + 3 * problems + problem)
    lane = tl.arange(0, BLOCK)
    upright = height <= width
    few, many = tl.minimum(height, width), tl.maximum(height, width)
    row_step, lane_step = tl.where(upright, width, 1), tl.where(upright, 1, width)
    source = (first, row_step, lane_step, many, tl.full((), sign, tl.float64))
    holder = _solve(_given_costs, source, few, BLOCK)

    taken = holder >= 0
    cost = tl.load(first + holder * row_step + lane * lane_step, mask=taken, other=0.0).to(tl.float64)
    unknown = tl.zeros([BLOCK], tl.int32)
    for row in range(0, few):
        entry = tl.load(first + row * row_step + lane * lane_step, mask=lane < many, other=0.0).to(tl.float64) * sign
        unknown += ((entry != entry) | (entry == float("-inf"))).to(tl.int32)
    tl.store(total + problem, tl.sum(cost, axis=0))
    tl.store(pairs + problem, tl.sum(taken.to(tl.int32), axis=0))
    tl.store(undefined + problem, tl.sum(unknown, axis=0).to(tl.int64))
    at = tl.where(upright, holder, lane)
    tl.store(column + first_row + at, tl.where(upright, lane, holder).to(tl.int64), mask=taken)


@triton.jit
def _iou(ax1, ay1, ax2, ay2, bx1, by1, bx2, by2):
    """IoU in float32, 0 where neither box has an extent."""
    width = tl.maximum(tl.minimum(ax2, bx2) - tl.maximum(ax1, bx1), 0.0)
    height = tl.maximum(tl.minimum(ay2, by2) - tl.maximum(ay1, by1), 0.0)
    common = width * height
    either = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - common
    return tl.div_rn(common, tl.where(common > 0.0, either, 1.0))


@triton.jit
def _iou_costs(source, row, lane):
    few_boxes, x1, y1, x2, y2, gate, lanes = source
    box = few_boxes + 4 * row
    iou = _iou(tl.load(box), tl.load(box + 1), tl.load(box + 2), tl.load(box + 3), x1, y1, x2, y2).to(tl.float64)
    return tl.where(lane < lanes, tl.where(iou >= gate, -iou, 0.0), float("inf"))


@triton.jit(do_not_specialize=["gate"])
def _match(a_boxes, a_offsets, b_boxes, b_offsets, partner, iou, gate: tl.float64, BLOCK: tl.constexpr):
    problem = tl.program_id(0)
    a_first, b_first = tl.load(a_offsets + problem), tl.load(b_offsets + problem)
    height = (tl.load(a_offsets + problem + 1) - a_first).to(tl.int32)
    width = (tl.load(b_offsets + problem + 1) - b_first).to(tl.int32)
    lane = tl.arange(0, BLOCK)
    upright = height <= width
    few, many = tl.minimum(height, width), tl.maximum(height, width)
    if many > BLOCK:
        # More than the caller said there were; the host cannot know.
        few = 0
        for row in range(0, height, BLOCK):
            tl.store(iou + a_first + row + lane, float("nan"), mask=row + lane < height)
    a, b = a_boxes + 4 * a_first, b_boxes + 4 * b_first
    if upright:
        few_boxes, many_boxes = a, b
    else:
        few_boxes, many_boxes = b, a
    box = many_boxes + 4 * lane
    real = lane < many
    x1, y1 = tl.load(box, mask=real, other=0.0), tl.load(box + 1, mask=real, other=0.0)
    x2, y2 = tl.load(box + 2, mask=real, other=0.0), tl.load(box + 3, mask=real, other=0.0)
    wide_gate = tl.full((), gate, tl.float64)
    holder = _solve(_iou_costs, (few_boxes, x1, y1, x2, y2, wide_gate, many), few, BLOCK)

    own = few_boxes + 4 * holder
    taken = holder >= 0
    ox1, oy1 = tl.load(own, mask=taken, other=0.0), tl.load(own + 1, mask=taken, other=0.0)
    ox2, oy2 = tl.load(own + 2, mask=taken, other=0.0), tl.load(own + 3, mask=taken, other=0.0)
    overlap = _iou(ox1, oy1, ox2, oy2, x1, y1, x2, y2)
    taken = taken & (overlap > 0.0) & (overlap.to(tl.float64) >= wide_gate)
    at = a_first + tl.where(upright, holder, lane)
    tl.store(partner + at, b_first + tl.where(upright, lane, holder), mask=taken)
    tl.store(iou + at, overlap, mask=taken)


# Lanes, and the warps that hold them: eight lanes a thread are too many registers.
BLOCKS = {32: 1, 64: 1, 128: 1, 256: 2, 512: 4, 1024: 8}
LONGEST = max(BLOCKS)  # boxes, rows or columns of a problem


def _assign_configuration(block: int, costs: str) -> Configuration:
    signature = {"costs": f"*{costs}", "layout": "*i64", "column": "*i64", "total": "*fp64", "pairs": "*i32"}
    signature |= {"undefined": "*i64", "problems": "i32", "sign": "fp64"}
    pointers = tuple(name for name, kind in signature.items() if kind.startswith("*"))
    name = f"assign, {costs}, {block} lanes"
    return Configuration(name, _assign, signature, {"BLOCK": block}, BLOCKS[block], divisible=pointers)


def _match_configuration(block: int) -> Configuration:
    signature = {"a_boxes": "*fp32", "a_offsets": "*i64", "b_boxes": "*fp32", "b_offsets": "*i64"}
    signature |= {"partner": "*i64", "iou": "*fp32", "gate": "fp64"}
    pointers = tuple(name for name, kind in signature.items() if kind.startswith("*"))
    name = f"match, {block} lanes"
    return Configuration(name, _match, signature, {"BLOCK": block}, BLOCKS[block], divisible=pointers)


_ASSIGN = {(costs, block): _assign_configuration(block, costs) for costs in ("fp32", "fp64") for block in BLOCKS}
_MATCH = {block: _match_configuration(block) for block in BLOCKS}
CONFIGURATIONS = (*_MATCH.values(), *_ASSIGN.values())


def match(boxes_a: Any, offsets_a: Any, boxes_b: Any, offsets_b: Any, gate: float, longest: int | None) -> Any:
    """Partners and IoU, beside the boxes."""
    torch = tensors.torch()
    boxes_a = tensors.tensor("boxes_a", boxes_a, "float32", None, 4)
    offsets_a = tensors.tensor("offsets_a", offsets_a, "int64", None)
    boxes_b = tensors.tensor("boxes_b", boxes_b, "float32", None, 4)
    offsets_b = tensors.tensor("offsets_b", offsets_b, "int64", len(offsets_a))
    device = tensors.place("match", boxes_a=boxes_a, offsets_a=offsets_a, boxes_b=boxes_b, offsets_b=offsets_b)
    partner = torch.full((len(boxes_a),), -1, dtype=torch.int64, device=device)
    iou = torch.zeros(len(boxes_a), dtype=torch.float32, device=device)
    if len(offsets_a) > 1 and len(boxes_a) and len(boxes_b):
        every = max(len(boxes_a), len(boxes_b))
        block = _block("match", every if longest is None else min(every, longest))
        _MATCH[block].launch((len(offsets_a) - 1,), boxes_a, offsets_a, boxes_b, offsets_b, partner, iou, gate)
    return partner, iou


def assign(costs: Any, rows: NDArray[np.int64] | None, columns: NDArray[np.int64] | None, maximize: bool) -> Any:
    """Columns, totals, what is complete and counts of NaN, beside the costs and in the shapes of ``Assignment``."""
    torch = tensors.torch()
    kind = "float32" if getattr(costs, "dtype", None) == torch.float32 else "float64"
    if rows is None or columns is None:
        costs = tensors.tensor("costs", costs, kind, *(None,) * (2 if getattr(costs, "ndim", 3) == 2 else 3))
        device = tensors.place("assign", costs=costs)
        problems, n, m = costs.shape if costs.ndim == 3 else (1, *costs.shape)
        layout = _dense_layout(problems, n, m, device)
        longest, shape = max(n, m), [problems, n]
    else:
        sizes = rows * columns
        costs = tensors.tensor("costs", costs, kind, int(sizes.sum()))
        device = tensors.place("assign", costs=costs)
        layout = _sent([rows, columns, np.cumsum(sizes) - sizes, np.cumsum(rows) - rows], device)
        problems, longest = len(rows), max(rows.max(initial=0), columns.max(initial=0))
        shape = [int(rows.sum())]
    column = torch.full(shape, -1, dtype=torch.int64, device=device)
    total = torch.empty(problems, dtype=torch.float64, device=device)
    pairs = torch.empty(problems, dtype=torch.int32, device=device)
    undefined = torch.empty(problems, dtype=torch.int64, device=device)
    configuration = _ASSIGN["fp32" if kind == "float32" else "fp64", _block("assign", longest)]
    if problems:
        outputs = (column, total, pairs, undefined)
        configuration.launch((problems,), costs, layout, *outputs, problems, -1.0 if maximize else 1.0)
    complete = pairs == torch.minimum(layout[0], layout[1])
    if costs.ndim == 2:
        return column[0], total[0], complete[0], undefined[0]
    return column, total, complete, undefined


def _dense_layout(problems: int, n: int, m: int, device: Any) -> Any:
    """Int64 [4, B]: rows, columns, and where each problem starts among the costs and among the rows."""
    torch = tensors.torch()
    layout = torch.arange(problems, dtype=torch.int64, device=device).repeat(4, 1)
    layout[0], layout[1] = n, m
    layout[2] *= n * m
    layout[3] *= n
    return layout


def _sent(lengths: list[NDArray[np.int64]], device: Any) -> Any:
    """The same of ragged problems, whose lengths the host knows; it does not wait until they have arrived."""
    layout = tensors.torch().from_numpy(np.stack(lengths))
    return layout.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else layout


def _block(operation: str, longest: int) -> int:
    """The least number of lanes that holds the larger side of every problem."""
    for block in BLOCKS:
        if longest <= block:
            return block
    raise UsageError(
        f"{operation}: a problem on a GPU has at most {LONGEST} rows and columns, and there may be {longest}",
        hint="give the length of the longest problem as longest=, or use impl='cpu'",
    )
