"""Candidates in Triton, in two kernels: the best logit of every box and request, then the boxes that reach the floor.

A program takes a block of boxes of one request, in both kernels. The second knows where its candidates go from the
counts that the first left, so that their order is that of the reference, whichever program is first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import triton
import triton.language as tl

from tallymill.errors import UsageError
from tallymill.kernels import tensors
from tallymill.kernels.candidates import reference
from tallymill.kernels.candidates.checks import Asked, asked
from tallymill.kernels.configurations import Configuration
from tallymill.kernels.floats import float_not_below

BLOCK = 256
MOST = 2**31 - 1  # candidates are counted in 32 bits
KINDS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}


# What is asked is one array of int32: the window of every request, the edges, the first requests of windows, the bits
# of the scales, and the columns.
@triton.jit(do_not_specialize=["windows", "requested", "length", "width", "least"])
def _find(
    logits,
    asked,
    best,
    counts,
    faults,
    windows: tl.int32,
    requested: tl.int32,
    length: tl.int32,
    width: tl.int32,
    least: tl.float32,
    BLOCK: tl.constexpr,
):
    """The best logit of a block of boxes, how many reach the least, and whether one is a fault."""
    request = tl.program_id(0)
    window = tl.load(asked + request).to(tl.int64)
    edges = asked + requested + request
    columns = asked + 2 * requested + 5 * windows + 2
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = lane < length
    row = logits + (window * length + lane) * width
    greatest = tl.full([BLOCK], float("-inf"), tl.float32)
    fault = tl.zeros([BLOCK], tl.int32)
    for place in range(tl.load(edges), tl.load(edges + 1)):
        value = tl.load(row + tl.load(columns + place), mask=there, other=float("-inf")).to(tl.float32)
        fault |= tl.where(value < float("inf"), 0, 1)  # NaN is below nothing
        greatest = tl.maximum(greatest, value)
    tl.store(best + request.to(tl.int64) * length + lane, greatest, mask=there)
    reached = tl.sum((greatest >= least).to(tl.int32), axis=0)
    tl.store(counts + request * tl.num_programs(1) + tl.program_id(1), reached)
    tl.atomic_max(faults + window, tl.max(fault, axis=0), sem="relaxed")


@triton.jit
def saturated_in(best, counts, first, last, blocks, length, least, BLOCK: tl.constexpr):
    """1 where every box reaches the least logit for one of the requests ``first`` to ``last``, else 0."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for at in range(first * blocks, last * blocks, BLOCK):
        total += tl.load(counts + at + lane, mask=at + lane < last * blocks, other=0)
    every = (tl.sum(total, axis=0) >= length).to(tl.int32)
    if every > 0:  # seldom: else some box is left over without a look
        for at in range(0, length, BLOCK):
            reached = (at + lane >= length).to(tl.int32)
            for request in range(first, last):
                row = best + request * length.to(tl.int64)
                logit = tl.load(row + at + lane, mask=at + lane < length, other=0.0)
                reached |= (logit >= least).to(tl.int32)
            every = tl.minimum(every, tl.min(reached, axis=0))
    return every


@triton.jit
def places_in(asked, counts, faults, requested, blocks, own, BLOCK: tl.constexpr):
    """How many candidates come before the block of boxes ``own``, and how many there are in all."""
    before, total = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
    for at in range(0, requested * blocks, BLOCK):
        each = at + tl.arange(0, BLOCK)
        there = each < requested * blocks
        window = tl.load(asked + each // blocks, mask=there, other=0)
        fine = there & (tl.load(faults + window, mask=there, other=1) == 0)
        count = tl.load(counts + each, mask=fine, other=0)
        before += tl.where(each < own, count, 0)
        total += count
    return tl.sum(before, axis=0), tl.sum(total, axis=0)


@triton.jit
def sigmoid(logit):
    """In float32, without overflow."""
    small = tl.exp(-tl.abs(logit))
    return tl.div_rn(tl.where(logit >= 0, 1.0, small), 1.0 + small)


@triton.jit(do_not_specialize=["windows", "requested", "length", "capacity", "least", "floor"])
def _write(
    boxes,
    asked,
    best,
    counts,
    faults,
    found,
    scores,
    request,
    offsets,
    saturated,
    finite,
    windows: tl.int32,
    requested: tl.int32,
    length: tl.int32,
    capacity: tl.int64,
    least: tl.float32,
    floor: tl.float32,
    BLOCK: tl.constexpr,
):
    """The candidates of a block of boxes; the first block of a request also says what is true of a window."""
    own, block, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    firsts = asked + 2 * requested + 1
    if (own < windows) & (block == 0):
        fault = tl.load(faults + own)
        every = saturated_in(
            best, counts, tl.load(firsts + own), tl.load(firsts + own + 1), blocks, length, least, BLOCK
        )
        tl.store(finite + own, (fault == 0).to(tl.int8))
        tl.store(saturated + own, tl.where(fault == 0, every, 0).to(tl.int8))
    before, total = places_in(asked, counts, faults, requested, blocks, own * blocks + block, BLOCK)
    lane = tl.arange(0, BLOCK)
    if own < requested:
        window = tl.load(asked + own).to(tl.int64)
        at = block * BLOCK + lane
        there = at < length
        logit = tl.load(best + own.to(tl.int64) * length + at, mask=there, other=float("-inf"))
        chosen = there & (logit >= least) & (tl.load(faults + window) == 0)
        place = before.to(tl.int64) + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        kept = chosen & (place < capacity)
        # The card's exp may be off by a step where the reference's reaches the floor.
        tl.store(scores + place, tl.maximum(sigmoid(logit), floor), mask=kept)
        tl.store(request + place, (own + tl.zeros([BLOCK], tl.int32)).to(tl.int64), mask=kept)
        box = boxes + (window * length + at) * 4
        x, y = tl.load(box, mask=kept, other=0.0), tl.load(box + 1, mask=kept, other=0.0)
        half_width = tl.load(box + 2, mask=kept, other=0.0) * 0.5
        half_height = tl.load(box + 3, mask=kept, other=0.0) * 0.5
        scale = firsts + windows + 1 + window * 4
        corner = found + place * 4
        tl.store(corner, (x - half_width) * tl.load(scale).to(tl.float32, bitcast=True), mask=kept)
        tl.store(corner + 1, (y - half_height) * tl.load(scale + 1).to(tl.float32, bitcast=True), mask=kept)
        tl.store(corner + 2, (x + half_width) * tl.load(scale + 2).to(tl.float32, bitcast=True), mask=kept)
        tl.store(corner + 3, (y + half_height) * tl.load(scale + 3).to(tl.float32, bitcast=True), mask=kept)
        if block == 0:
            tl.store(offsets + own, before.to(tl.int64))
            if own == 0:
                tl.store(offsets + requested, total.to(tl.int64))
    # What is left of the room, shared out over all programs.
    first = total.to(tl.int64) + (own * blocks + block) * BLOCK
    for at in range(first, capacity, tl.num_programs(0) * blocks * BLOCK):
        behind = at + lane < capacity
        nothing = tl.full([BLOCK], float("nan"), tl.float32)
        tl.store(scores + at + lane, nothing, mask=behind)
        tl.store(request + at + lane, tl.full([BLOCK], -1, tl.int64), mask=behind)
        for side in range(4):
            tl.store(found + (at + lane) * 4 + side, nothing, mask=behind)


_BETWEEN = {"best": "*fp32", "counts": "*i32", "faults": "*i32"}
_SIZES = {"windows": "i32", "requested": "i32", "length": "i32"}


def _finding(kind: str) -> Configuration:
    pointers = {"logits": KINDS[kind], "asked": "*i32", **_BETWEEN}
    return Configuration(
        f"best of {kind}",
        _find,
        {**pointers, **_SIZES, "width": "i32", "least": "fp32"},
        {"BLOCK": BLOCK},
        divisible=tuple(pointers),
    )


def _writing() -> Configuration:
    found = {"found": "*fp32", "scores": "*fp32", "request": "*i64", "offsets": "*i64"}
    pointers = {"boxes": "*fp32", "asked": "*i32", **_BETWEEN, **found, "saturated": "*i8", "finite": "*i8"}
    return Configuration(
        "write",
        _write,
        {**pointers, **_SIZES, "capacity": "i64", "least": "fp32", "floor": "fp32"},
        {"BLOCK": BLOCK},
        divisible=tuple(pointers),
    )


FIND = {kind: _finding(kind) for kind in KINDS}
WRITE = _writing()
CONFIGURATIONS = (*FIND.values(), WRITE)


def candidates(
    logits: Any,
    boxes: Any,
    columns: Any,
    edges: Any,
    requests: Any,
    scale: Any,
    floor: float,
    capacity: int | None,
) -> tuple[Any, ...]:
    """Queue both kernels; only without ``capacity`` the host waits, for the number of candidates."""
    torch = tensors.torch()
    kind = str(getattr(logits, "dtype", None)).removeprefix("torch.")
    logits = tensors.tensor("logits", logits, kind if kind in KINDS else "float32", None, None, None)
    windows, length, width = logits.shape
    boxes = tensors.tensor("boxes", boxes, "float32", windows, length, 4)
    device = tensors.place("candidates", logits=logits, boxes=boxes)
    question = asked(windows, width, columns, edges, requests, scale, floor)
    requested, blocks = len(question.edges) - 1, triton.cdiv(length, BLOCK)
    if requested * length > MOST:
        raise UsageError(
            f"candidates: {requested} requests of {length} boxes are more than the gpu implementation counts, {MOST}",
            hint="ask fewer windows at a time",
        )
    room = requested * length if capacity is None else capacity
    outputs = _outputs(room, requested, windows, device)
    if requested and length:
        sent = _sent(question, device)
        best = torch.empty(requested * length, dtype=torch.float32, device=device)
        counts = torch.empty(requested * blocks, dtype=torch.int32, device=device)
        faults = torch.zeros(windows, dtype=torch.int32, device=device)
        between, sizes, least = (best, counts, faults), (windows, requested, length), least_logit(question.floor)
        FIND[kind].launch((requested, blocks), logits, sent, *between, *sizes, width, least)
        grid = (max(requested, windows), blocks)
        floor = float_not_below(question.floor)
        WRITE.launch(grid, boxes, sent, *between, *outputs, *sizes, room, least, floor)
    else:
        for output, value in zip(outputs, (np.nan, np.nan, -1, 0, 0, 1), strict=True):
            output.fill_(value)
    found, scores, request, offsets, saturated, finite = outputs
    if capacity is None:
        there = int(offsets[-1])
        found, scores, request = found[:there], scores[:there], request[:there]
    return found, scores, request, saturated.view(torch.bool), finite.view(torch.bool), offsets


@lru_cache(maxsize=64)
def least_logit(floor: float) -> float:
    """The least finite float32 whose score, by the reference's sigmoid, reaches the floor: found by bisection."""
    low, high = (_rank(np.finfo(np.float32).min), _rank(np.float32(200.0)))  # of which the latter's score is 1
    while low < high:
        middle = (low + high) // 2
        if float(reference.sigmoid(np.array([_ranked(middle)]))[0]) >= floor:
            high = middle
        else:
            low = middle + 1
    return float(_ranked(low))


def _rank(value: np.float32) -> int:
    """Neighbouring floats have neighbouring ranks."""
    bits = int(value.view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF)


def _ranked(rank: int) -> np.float32:
    size = np.int32(abs(rank)).view(np.float32)
    return np.float32(size if rank >= 0 else -size)


def _outputs(room: int, requested: int, windows: int, device: Any) -> tuple[Any, ...]:
    torch = tensors.torch()
    return (
        torch.empty((room, 4), dtype=torch.float32, device=device),
        torch.empty(room, dtype=torch.float32, device=device),
        torch.empty(room, dtype=torch.int64, device=device),
        torch.empty(requested + 1, dtype=torch.int64, device=device),
        torch.empty(windows, dtype=torch.int8, device=device),
        torch.empty(windows, dtype=torch.int8, device=device),
    )


def _sent(question: Asked, device: Any) -> Any:
    """What is asked, in one copy that the host does not wait for."""
    windows = np.repeat(np.arange(len(question.scale), dtype=np.int32), np.diff(question.requests))
    scale = question.scale.view(np.int32).ravel()
    parts = (windows, question.edges, question.requests, scale, question.columns)
    packed = tensors.torch().from_numpy(np.concatenate(parts))
    return packed.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else packed
