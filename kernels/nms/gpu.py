"""Suppression in Triton: one program a segment, which stays in registers from the scores to the keep list.

Greedy suppression goes box by box; here the next TILE boxes that still stand are judged at once. Among themselves they
are judged by a fixpoint, which is the greedy answer: after k rounds at least the first k verdicts are final. Those that
stay then suppress the rest of the segment together. IoU is that of the reference to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from tallymill.errors import UsageError
from tallymill.kernels import tensors
from tallymill.kernels.configurations import Configuration
from tallymill.kernels.floats import float_not_above, float_not_below
from tallymill.kernels.nms import device
from tallymill.kernels.nms.device import DeviceKept, DeviceSoftKept

FINE = tl.constexpr(device.FINE)
TOO_LONG = tl.constexpr(device.TOO_LONG)
MISPLACED = tl.constexpr(device.MISPLACED)
NOT_VALID = tl.constexpr(device.NOT_VALID)
LAST = tl.constexpr(0x7FFFFFFFFFFFFFFF)  # sorts behind every box


@triton.jit
def bounds(offsets, image, images, size, longest):
    """Return the first box of an image, how many it has (0 with a fault), and the fault."""
    start, stop = tl.load(offsets + image), tl.load(offsets + image + 1)
    misplaced = (start < 0) | (stop < start) | (stop > size)
    misplaced |= ((image == 0) & (start != 0)) | ((image == images - 1) & (stop != size))
    fault = tl.where(misplaced, MISPLACED, tl.where(stop - start > longest, TOO_LONG, FINE))
    return start, tl.where(fault == FINE, stop - start, 0).to(tl.int32), fault


@triton.jit
def corners(boxes, index, there):
    """Load the corners of the boxes at ``index``; a unit box where there is none."""
    box = boxes + 4 * index
    x1, y1 = tl.load(box, mask=there, other=0.0), tl.load(box + 1, mask=there, other=0.0)
    x2, y2 = tl.load(box + 2, mask=there, other=1.0), tl.load(box + 3, mask=there, other=1.0)
    return x1, y1, x2, y2


@triton.jit
def valid(x1, y1, x2, y2, score):
    """Whether a box and its score may take part; NaN fails every comparison."""
    across = (x1 > float("-inf")) & (x2 > x1) & (x2 < float("inf"))
    down = (y1 > float("-inf")) & (y2 > y1) & (y2 < float("inf"))
    return across & down & (score > float("-inf")) & (score < float("inf"))


@triton.jit
def intersection_over_union(ax1, ay1, ax2, ay2, bx1, by1, bx2, by2):
    """In the order of the reference; NaN where an area overflows."""
    width = tl.maximum(tl.minimum(ax2, bx2) - tl.maximum(ax1, bx1), 0.0)
    height = tl.maximum(tl.minimum(ay2, by2) - tl.maximum(ay1, by1), 0.0)
    common = width * height
    return tl.div_rn(common, (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - common)


@triton.jit
def ranked(score, takes_part, BLOCK: tl.constexpr):
    """Return the lanes by falling score, ties by rising lane, and which of them take part: those first."""
    # Floats are ordered like their bits when the bits below the sign of negative ones are turned over; -0 ties with 0.
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    rising = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    key = ((~rising).to(tl.int64) << 32) | tl.arange(0, BLOCK).to(tl.int64)
    key = tl.sort(tl.where(takes_part, key, LAST))
    return (key & 0x7FFFFFFF).to(tl.int32), key != LAST


@triton.jit
def suppress(boxes, start, lane, takes_part, iou_threshold, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """Return 1 for the boxes ``start + lane``, given in order of rank, that stay, 0 for the others; int32."""
    x1, y1, x2, y2 = corners(boxes, start + lane, takes_part)
    kept = tl.zeros([BLOCK], tl.int32)
    open = takes_part.to(tl.int32)
    left = tl.sum(open, axis=0)
    tile = tl.arange(0, TILE)
    while left > 0:
        # The first TILE boxes that are open are the judges' bench: nothing that stays comes before them.
        place = tl.cumsum(open, axis=0) - 1
        called = (place[None, :] == tile[:, None]) & (open[None, :] > 0)
        pivot = tl.sum(tl.where(called, lane[None, :], 0), axis=1)
        present = tile < left
        px1, py1, px2, py2 = corners(boxes, start + pivot, present)
        iou = intersection_over_union(
            px1[:, None],
            py1[:, None],
            px2[:, None],
            py2[:, None],
            px1[None, :],
            py1[None, :],
            px2[None, :],
            py2[None, :],
        )
        beaten_by = ((iou > iou_threshold) & (tile[:, None] < tile[None, :])).to(tl.int32)
        stays = present.to(tl.int32)
        unsettled = 1
        while unsettled > 0:
            after = present.to(tl.int32) * (1 - tl.max(beaten_by * stays[:, None], axis=0))
            unsettled = tl.max((after != stays).to(tl.int32), axis=0)
            stays = after
        iou = intersection_over_union(
            px1[:, None], py1[:, None], px2[:, None], py2[:, None], x1[None, :], y1[None, :], x2[None, :], y2[None, :]
        )
        beaten = tl.max((iou > iou_threshold).to(tl.int32) * stays[:, None], axis=0)
        judged = open * (place < TILE).to(tl.int32)
        verdict = tl.gather(stays, tl.minimum(tl.maximum(place, 0), TILE - 1), 0)
        kept += judged * verdict
        open = open * (1 - judged) * (1 - beaten)
        left = tl.sum(open, axis=0)
    return kept


@triton.jit(
    do_not_specialize=["images", "size", "categories", "longest", "iou_threshold", "score_threshold"],
)
def _nms(
    boxes,
    scores,
    offsets,
    loose,
    counts,
    status,
    images: tl.int32,
    size: tl.int64,
    categories: tl.int32,
    longest: tl.int32,
    iou_threshold: tl.float32,
    score_threshold: tl.float32,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    segment = tl.program_id(0)
    image = segment // categories
    category = segment - image * categories
    start, length, fault = bounds(offsets, image, images, size, longest)
    lane = tl.arange(0, BLOCK)
    there = lane < length
    score = tl.load(scores + (start + lane) * categories + category, mask=there, other=0.0)
    x1, y1, x2, y2 = corners(boxes, start + lane, there)
    usable = tl.min((valid(x1, y1, x2, y2, score) | (lane >= length)).to(tl.int32), axis=0) > 0
    fault = tl.where(usable, fault, NOT_VALID)

    lane, takes_part = ranked(score, there & usable & (score >= score_threshold), BLOCK)
    kept = suppress(boxes, start, lane, takes_part, iou_threshold, BLOCK, TILE)
    first = start * categories + category.to(tl.int64) * length
    tl.store(loose + first + tl.cumsum(kept, axis=0) - 1, start + lane, mask=kept > 0)
    tl.store(counts + segment, tl.sum(kept, axis=0).to(tl.int64))
    tl.store(status + segment, fault.to(tl.int8))


@triton.jit(
    do_not_specialize=[
        "images", "size", "categories", "longest", "iou_threshold", "sigma", "min_score",
    ],
)  # fmt: skip
def _soft_nms(
    boxes,
    scores,
    offsets,
    loose,
    lowered,
    counts,
    status,
    images: tl.int32,
    size: tl.int64,
    categories: tl.int32,
    longest: tl.int32,
    iou_threshold: tl.float32,
    sigma: tl.float64,
    min_score: tl.float32,
    BLOCK: tl.constexpr,
    GAUSSIAN: tl.constexpr,
):
    segment = tl.program_id(0)
    image = segment // categories
    category = segment - image * categories
    start, length, fault = bounds(offsets, image, images, size, longest)
    lane = tl.arange(0, BLOCK)
    there = lane < length
    score = tl.load(scores + (start + lane) * categories + category, mask=there, other=0.0)
    x1, y1, x2, y2 = corners(boxes, start + lane, there)
    usable = tl.min((valid(x1, y1, x2, y2, score) | (lane >= length)).to(tl.int32), axis=0) > 0
    fault = tl.where(usable, fault, NOT_VALID)

    first = start * categories + category.to(tl.int64) * length
    # Scores from 0 on are ordered like their bits; below them the lowest lane wins.
    after = (BLOCK - 1 - lane).to(tl.int64)
    open = there & usable & (score >= min_score)
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True).to(tl.int64)
    best = tl.max(tl.where(open, (bits << 32) | after, -1), axis=0)
    taken = tl.full((), 0, tl.int32)
    while best >= 0:
        head = BLOCK - 1 - (best & 0x7FFFFFFF).to(tl.int32)
        tl.store(loose + first + taken, start + head)
        tl.store(lowered + first + taken, (best >> 32).to(tl.int32).to(tl.float32, bitcast=True))
        taken += 1
        hx1, hy1, hx2, hy2 = corners(boxes, start + head, True)
        iou = intersection_over_union(hx1, hy1, hx2, hy2, x1, y1, x2, y2)
        iou = tl.where(iou > 0.0, iou, 0.0)  # NaN is none
        if GAUSSIAN:
            exact = iou.to(tl.float64)
            weight = tl.exp(-(exact * exact) / tl.full((), sigma, tl.float64)).to(tl.float32)
        else:
            weight = tl.where(iou >= iou_threshold, 1.0 - iou, 1.0)
        score = score * weight
        open = open & (lane != head) & (score >= min_score)
        bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True).to(tl.int64)
        best = tl.max(tl.where(open, (bits << 32) | after, -1), axis=0)
    tl.store(counts + segment, taken.to(tl.int64))
    tl.store(status + segment, fault.to(tl.int8))


@triton.jit(do_not_specialize=["categories"])
def _close_gaps(loose, offsets, kept_offsets, closed, categories: tl.int32, BLOCK: tl.constexpr):
    segment = tl.program_id(0)
    image = segment // categories
    start, stop = tl.load(offsets + image), tl.load(offsets + image + 1)
    source = start * categories + (segment - image * categories).to(tl.int64) * (stop - start)
    target = tl.load(kept_offsets + segment)
    count = (tl.load(kept_offsets + segment + 1) - target).to(tl.int32)
    for at in range(0, count, BLOCK):
        each = at + tl.arange(0, BLOCK)
        value = tl.load(loose + source + each, mask=each < count, other=0)
        tl.store(closed + target + each, value, mask=each < count)


_SEGMENTS = {"boxes": "*fp32", "scores": "*fp32", "offsets": "*i64"}
_RESULT = {"counts": "*i64", "status": "*i8"}
_SIZES = {"images": "i32", "size": "i64", "categories": "i32", "longest": "i32"}


def _hard(block: int, warps: int, tile: int) -> Configuration:
    return Configuration(
        f"nms up to {block}",
        _nms,
        {**_SEGMENTS, "loose": "*i64", **_RESULT, **_SIZES, "iou_threshold": "fp32", "score_threshold": "fp32"},
        {"BLOCK": block, "TILE": tile},
        num_warps=warps,
        divisible=(*_SEGMENTS, "loose", *_RESULT),
    )


def _soft(block: int, warps: int, gaussian: bool) -> Configuration:
    outputs = {"loose": "*i64", "lowered": "*fp32", **_RESULT}
    settings = {"iou_threshold": "fp32", "sigma": "fp64", "min_score": "fp32"}
    return Configuration(
        f"soft_nms {'gaussian' if gaussian else 'linear'} up to {block}",
        _soft_nms,
        {**_SEGMENTS, **outputs, **_SIZES, **settings},
        {"BLOCK": block, "GAUSSIAN": gaussian},
        num_warps=warps,
        divisible=(*_SEGMENTS, *outputs),
    )


def _closing(kind: str, what: str) -> Configuration:
    return Configuration(
        f"close gaps between {what}",
        _close_gaps,
        {"loose": kind, "offsets": "*i64", "kept_offsets": "*i64", "closed": kind, "categories": "i32"},
        {"BLOCK": 64},
        num_warps=1,
        divisible=("loose", "offsets", "kept_offsets", "closed"),
    )


# The most boxes of a segment, warps, tile: as large as the registers allow.
SHAPES = ((64, 2, 16), (128, 4, 16), (256, 8, 16), (512, 16, 16), (1024, 16, 8), (2048, 16, 4))
SOFT_SHAPES = ((64, 1), (128, 1), (256, 2), (512, 4), (1024, 4), (2048, 8))
HARD = tuple(_hard(*shape) for shape in SHAPES)
LINEAR = tuple(_soft(*shape, False) for shape in SOFT_SHAPES)
GAUSSIAN = tuple(_soft(*shape, True) for shape in SOFT_SHAPES)
INDICES, SCORES = _closing("*i64", "indices"), _closing("*fp32", "scores")
CONFIGURATIONS = (*HARD, *LINEAR, *GAUSSIAN, INDICES, SCORES)


def nms(
    boxes: Any, scores: Any, offsets: Any, iou_threshold: float, score_threshold: float, longest: int | None
) -> DeviceKept:
    """Queue suppression of all segments; nothing here waits for the card."""
    torch = tensors.torch()
    boxes, scores, offsets, longest, configuration = prepared("nms", boxes, scores, offsets, longest, HARD)
    images, (size, categories) = len(offsets) - 1, scores.shape
    loose = torch.empty(size * categories, dtype=torch.int64, device=boxes.device)
    counts = torch.empty(images * categories, dtype=torch.int64, device=boxes.device)
    status = torch.empty(images * categories, dtype=torch.int8, device=boxes.device)
    if len(counts):
        sizes = (images, size, categories, longest)
        limits = (float_not_above(iou_threshold), float_not_below(score_threshold))
        configuration.launch((len(counts),), boxes, scores, offsets, loose, counts, status, *sizes, *limits)
    ends = _ends(counts)
    return DeviceKept(_closed(INDICES, loose, offsets, ends, categories, -1), ends, status)


def soft_nms(
    boxes: Any,
    scores: Any,
    offsets: Any,
    gaussian: bool,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    longest: int | None,
) -> DeviceSoftKept:
    """The same for soft-NMS."""
    torch = tensors.torch()
    configurations = GAUSSIAN if gaussian else LINEAR
    boxes, scores, offsets, longest, configuration = prepared(
        "soft_nms", boxes, scores, offsets, longest, configurations
    )
    images, (size, categories) = len(offsets) - 1, scores.shape
    loose = torch.empty(size * categories, dtype=torch.int64, device=boxes.device)
    lowered = torch.empty(size * categories, dtype=torch.float32, device=boxes.device)
    counts = torch.empty(images * categories, dtype=torch.int64, device=boxes.device)
    status = torch.empty(images * categories, dtype=torch.int8, device=boxes.device)
    if len(counts):
        sizes = (images, size, categories, longest)
        settings = (float(np.float32(iou_threshold)), sigma, float(np.float32(min_score)))
        configuration.launch((len(counts),), boxes, scores, offsets, loose, lowered, counts, status, *sizes, *settings)
    ends = _ends(counts)
    return DeviceSoftKept(
        _closed(INDICES, loose, offsets, ends, categories, -1),
        ends,
        _closed(SCORES, lowered, offsets, ends, categories, float("nan")),
        status,
    )


def prepared(
    operation: str,
    boxes: Any,
    scores: Any,
    offsets: Any,
    longest: int | None,
    configurations: tuple[Configuration, ...],
) -> tuple[Any, Any, Any, int, Configuration]:
    """Check the tensors, scores [N, C] or [N], and choose the block that holds the longest segment.

    Without ``longest``, one image may hold all boxes: to look at the offsets would make the host wait for the card.
    """
    boxes = tensors.tensor("boxes", boxes, "float32", None, 4)
    if getattr(scores, "ndim", 0) == 1:
        scores = scores.unsqueeze(1)
    scores = tensors.tensor("scores", scores, "float32", len(boxes), None)
    offsets = tensors.tensor("offsets", offsets, "int64", None)
    tensors.place(operation, boxes=boxes, scores=scores, offsets=offsets)
    if len(offsets) == 0 or (len(offsets) == 1 and len(boxes)):
        raise ValueError(
            f"offsets: wanted offsets from 0 to the number of boxes, {len(boxes)}, got {len(offsets)} entries"
        )
    longest = len(boxes) if longest is None else longest
    if longest < 0:
        raise ValueError(f"longest: wanted a number of boxes, got {longest}")
    for configuration in configurations:
        if configuration.constexprs["BLOCK"] >= longest:
            return boxes, scores, offsets, min(longest, len(boxes)), configuration
    most = configurations[-1].constexprs["BLOCK"]
    raise UsageError(
        f"{operation}: the gpu implementation takes up to {most} boxes of an image, but longest is {longest}",
        hint="give longest=, the most boxes that an image has, or use impl='cpu'",
    )


def _ends(counts: Any) -> Any:
    """Where each segment's survivors begin and end: int64 [S*C+1]."""
    torch = tensors.torch()
    ends = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=ends[1:])
    return ends


def _closed(configuration: Configuration, loose: Any, offsets: Any, ends: Any, categories: int, filling: float) -> Any:
    """What every segment wrote from its own start, one after another; ``filling`` behind."""
    closed = tensors.torch().full_like(loose, filling)
    if len(ends) > 1:
        configuration.launch((len(ends) - 1,), loose, offsets, ends, closed, categories)
    return closed
