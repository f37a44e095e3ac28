"""Counting and scoring in Triton. All sums are taken in stored order, in float64, so that results are those of the CPU
to the bit.

The host does not wait for the card, and so values are not checked on it: an item whose values break the contract gets
NaN for soft counts and scores, and hard counts far below 0.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tallymill.kernels import tensors
from tallymill.kernels.configurations import Configuration
from tallymill.kernels.count import device
from tallymill.kernels.count.device import DeviceTally
from tallymill.kernels.floats import float_not_above, float_not_below
from tallymill.kernels.nms import gpu as suppression
from tallymill.kernels.nms.gpu import NOT_VALID, bounds, corners, ranked, suppress, valid

FAULTY = tl.constexpr(device.FAULTY)
MOST_EXACT = tl.constexpr(1024)  # this many calibrated confidences from LEAST_EXACT on have an exact sum in float64
LEAST_EXACT = tl.constexpr(2.0**-20)
MAX_RISING_TAU = 2**20  # up to this temperature rho rises with p


@triton.jit
def calibrated(p, tau):
    """Equation 6, in float64 and rounded once; 0 and 1 map to themselves."""
    between = (p > 0.0) & (p < 1.0)
    wide = tl.where(between, p, 0.5).to(tl.float64)
    rho = 1.0 / (1.0 + tl.exp(-tl.log(wide / (1.0 - wide)) / tau))
    return tl.where(between, rho.to(tl.float32), p)


@triton.jit
def threshold_for(n):
    """Equation 7 of int32 n, the branches first, then left to right in float64."""
    wide = n.to(tl.float64)
    between = 0.7 - 0.4 * (wide - 3.0) / 7.0
    return tl.where(n <= 3, tl.full((), 0.7, tl.float64), tl.where(n >= 10, tl.full((), 0.3, tl.float64), between))


@triton.jit(do_not_specialize=["tau", "size"])
def _calibrate(confidence, rho, tau: tl.float64, size: tl.int64, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    p = tl.load(confidence + at, mask=at < size, other=0.0)
    # What is no confidence is NaN.
    p = tl.where((p >= 0.0) & (p <= 1.0), p, float("nan"))
    tl.store(rho + at, calibrated(p, tl.full((), tau, tl.float64)), mask=at < size)


@triton.jit(do_not_specialize=["size"])
def _threshold(requested, thresholds, size: tl.int64, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    n = tl.load(requested + at, mask=at < size, other=1).to(tl.int32)
    tl.store(thresholds + at, tl.where(n > 0, threshold_for(n), float("nan")), mask=at < size)


@triton.jit
def _own(offsets, item, items, there, size):
    """Where the entries of each item begin and end, held within the arrays, and whether they did so by themselves."""
    start = tl.load(offsets + item, mask=there, other=0)
    stop = tl.load(offsets + item + 1, mask=there, other=0)
    right = (start >= 0) & (start <= stop) & (stop <= size)
    right &= ((item != 0) | (start == 0)) & ((item != items - 1) | (stop == size))
    start = tl.minimum(tl.maximum(start, 0), size)
    return start, tl.minimum(tl.maximum(stop, start), size), right | (item >= items)


@triton.jit(do_not_specialize=["items", "boxes", "targets", "tau"])
def _accumulate(
    confidence,
    target,
    item_offsets,
    target_offsets,
    thresholds,
    soft,
    hard,
    items: tl.int64,
    boxes: tl.int64,
    targets: tl.int64,
    tau: tl.float64,
    BLOCK: tl.constexpr,
    SOFT: tl.constexpr,
    HARD: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = item < items
    first, last, right = _own(item_offsets, item, items, there, boxes)
    first_target, last_target, targets_right = _own(target_offsets, item, items, there, targets)
    right &= targets_right
    last = tl.where(right, last, first)
    most = tl.max(last - first, axis=0)

    for which in range(tl.max(last_target - first_target, axis=0)):
        own = first_target + which
        asked = own < last_target
        threshold = tl.full([BLOCK], 2.0, tl.float64)
        sum = tl.zeros([BLOCK], tl.float64)
        count = tl.zeros([BLOCK], tl.int64)
        if SOFT:
            threshold = tl.load(thresholds + own, mask=asked, other=2.0)
            sum = tl.load(soft + own, mask=asked, other=0.0)
        if HARD:
            count = tl.load(hard + own, mask=asked, other=0)
        sound = right
        for k in range(most):
            at = first + k
            inside = at < last
            p = tl.load(confidence + at, mask=inside, other=0.0)
            place = tl.load(target + at, mask=inside, other=0).to(tl.int64)
            sound = sound & (((p >= 0.0) & (p <= 1.0) & (first_target + place < last_target)) | (at >= last))
            counts = inside & (place == which)
            if SOFT:
                rho = calibrated(p, tl.full((), tau, tl.float64)).to(tl.float64)
                sum += tl.where(counts & (rho >= threshold), rho, 0.0)
            if HARD:
                count += (counts & (p >= 0.5)).to(tl.int64)
        if SOFT:
            sound_threshold = sound & (threshold >= 0.0) & (threshold <= 1.0)
            tl.store(soft + own, tl.where(sound_threshold, sum, float("nan")), mask=asked)
        if HARD:
            tl.store(hard + own, tl.where(sound, count, FAULTY), mask=asked)


@triton.jit(do_not_specialize=["items", "targets"])
def _score(
    soft,
    hard,
    covering,
    requested,
    target_offsets,
    soft_count,
    hard_count,
    cw_nps,
    b_nps,
    items: tl.int64,
    targets: tl.int64,
    BLOCK: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = item < items
    first, last, right = _own(target_offsets, item, items, there, targets)
    most = tl.max(last - first, axis=0)
    soft_errors = tl.zeros([BLOCK], tl.float64)
    hard_errors = tl.zeros([BLOCK], tl.float64)
    nan = tl.full([BLOCK], float("nan"), tl.float64)
    for which in range(most):
        own = first + which
        asked = own < last
        detectors = tl.load(covering + own, mask=asked, other=1).to(tl.int32)
        wanted = tl.load(requested + own, mask=asked, other=1).to(tl.int32)
        some = (detectors > 0) & (wanted > 0)
        divisor = tl.where(detectors > 0, detectors, 1).to(tl.float64)
        n = tl.where(wanted > 0, wanted, 1).to(tl.float64)
        sum = tl.load(soft + own, mask=asked, other=0.0)
        count = tl.load(hard + own, mask=asked, other=0)
        by_sum = tl.where(some & (sum >= 0.0), sum / divisor, nan)
        by_count = tl.where(some & (count >= 0), count.to(tl.float64) / divisor, nan)
        tl.store(soft_count + own, by_sum, mask=asked)
        tl.store(hard_count + own, by_count, mask=asked)
        soft_errors += tl.where(asked, tl.abs(by_sum - n) / n, 0.0)
        hard_errors += tl.where(asked, tl.abs(by_count - n) / n, 0.0)
    k = (last - first).to(tl.float64)
    scored = right & (last > first)
    tl.store(cw_nps + item, tl.where(scored, _precision(soft_errors, k), nan), mask=there)
    tl.store(b_nps + item, tl.where(scored, _precision(hard_errors, k), nan), mask=there)


@triton.jit
def _precision(errors, k):
    """Equation 8 of the sum of errors; NaN stays."""
    precision = 1.0 - errors / tl.where(k > 0.0, k, 1.0)
    return tl.where(precision < 0.0, 0.0, precision)


@triton.jit(
    do_not_specialize=["images", "size", "categories", "longest", "iou_threshold", "floor", "tau", "rising"],
)
def _tally(
    boxes,
    scores,
    offsets,
    wanted,
    soft,
    hard,
    status,
    images: tl.int32,
    size: tl.int64,
    categories: tl.int32,
    longest: tl.int32,
    iou_threshold: tl.float32,
    floor: tl.float32,
    tau: tl.float64,
    rising: tl.int32,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    REQUESTED: tl.constexpr,
):
    segment = tl.program_id(0)
    image = segment // categories
    start, length, fault = bounds(offsets, image, images, size, longest)
    if REQUESTED:
        n = tl.load(wanted + segment).to(tl.int32)
        threshold = tl.where(n > 0, threshold_for(n), float("nan"))
    else:
        threshold = tl.load(wanted + segment)

    lane = tl.arange(0, BLOCK)
    there = lane < length
    p = tl.load(scores + (start + lane) * categories + (segment - image * categories), mask=there, other=0.0)
    x1, y1, x2, y2 = corners(boxes, start + lane, there)
    sound = (valid(x1, y1, x2, y2, p) & (p >= 0.0) & (p <= 1.0)) | (lane >= length)
    usable = tl.min(sound.to(tl.int32), axis=0) > 0
    fault = tl.where(usable & (threshold >= 0.0) & (threshold <= 1.0), fault, NOT_VALID)

    rho = calibrated(p, tl.full((), tau, tl.float64))
    # Where rho rises with p, a box that counts nowhere cannot change whether one that counts is retained.
    matters = (p >= 0.5) | (rho.to(tl.float64) >= threshold) | (rising == 0)
    lane, takes_part = ranked(p, there & usable & (p >= floor) & matters, BLOCK)
    kept = suppress(boxes, start, lane, takes_part, iou_threshold, BLOCK, TILE) > 0

    source = tl.where(takes_part, lane, 0)
    p, rho = tl.gather(p, source, 0), tl.gather(rho, source, 0).to(tl.float64)
    adds = kept & (rho >= threshold)
    value = tl.where(adds, rho, 0.0)
    terms = tl.sum(adds.to(tl.int32), axis=0)
    sum = tl.sum(value, axis=0)
    if (terms > MOST_EXACT) | (tl.min(tl.where(adds, rho, 1.0), axis=0) < LEAST_EXACT):
        # The order matters here: one after another.
        sum = sum * 0.0
        place = tl.cumsum(adds.to(tl.int32), axis=0) - 1
        for k in range(terms):
            sum += tl.sum(tl.where(place == k, value, 0.0), axis=0)
    good = fault == 0
    tl.store(soft + segment, tl.where(good, sum, float("nan")))
    tl.store(hard + segment, tl.where(good, tl.sum((kept & (p >= 0.5)).to(tl.int64), axis=0), FAULTY))
    tl.store(status + segment, fault.to(tl.int8))


_BLOCK = 128


def _simple(
    name: str, kernel: Any, pointers: dict[str, str], numbers: dict[str, str], **constants: Any
) -> Configuration:
    constants = {"BLOCK": _BLOCK, **constants}
    return Configuration(name, kernel, {**pointers, **numbers}, constants, num_warps=4, divisible=tuple(pointers))


def _accumulating(soft: bool, hard: bool) -> Configuration:
    ragged = {"confidence": "*fp32", "target": "*u8", "item_offsets": "*i64", "target_offsets": "*i64"}
    # item_offsets stand in for what is not given.
    counts = {"thresholds": "*fp64" if soft else "*i64", "soft": "*fp64" if soft else "*i64", "hard": "*i64"}
    numbers = {"items": "i64", "boxes": "i64", "targets": "i64", "tau": "fp64"}
    name = "accumulate" + " soft" * soft + " hard" * hard
    return _simple(name, _accumulate, {**ragged, **counts}, numbers, SOFT=soft, HARD=hard)


def _tallying(block: int, warps: int, tile: int, by_request: bool) -> Configuration:
    inputs = {"boxes": "*fp32", "scores": "*fp32", "offsets": "*i64", "wanted": "*u16" if by_request else "*fp64"}
    outputs = {"soft": "*fp64", "hard": "*i64", "status": "*i8"}
    sizes = {"images": "i32", "size": "i64", "categories": "i32", "longest": "i32"}
    settings = {"iou_threshold": "fp32", "floor": "fp32", "tau": "fp64", "rising": "i32"}
    return Configuration(
        f"tally by {'request' if by_request else 'threshold'} up to {block}",
        _tally,
        {**inputs, **outputs, **sizes, **settings},
        {"BLOCK": block, "TILE": tile, "REQUESTED": by_request},
        num_warps=warps,
        divisible=(*inputs, *outputs),
    )


CALIBRATE = _simple("calibrate", _calibrate, {"confidence": "*fp32", "rho": "*fp32"}, {"tau": "fp64", "size": "i64"})
THRESHOLD = _simple("threshold", _threshold, {"requested": "*u16", "thresholds": "*fp64"}, {"size": "i64"})
ACCUMULATE = {(s, h): _accumulating(s, h) for s, h in ((True, True), (True, False), (False, True))}
SCORE = _simple(
    "score",
    _score,
    {
        "soft": "*fp64", "hard": "*i64", "covering": "*u8", "requested": "*u16", "target_offsets": "*i64",
        "soft_count": "*fp64", "hard_count": "*fp64", "cw_nps": "*fp64", "b_nps": "*fp64",
    },
    {"items": "i64", "targets": "i64"},
)  # fmt: skip
TALLY = {
    by_request: tuple(_tallying(block, warps, tile, by_request) for block, warps, tile in suppression.SHAPES)
    for by_request in (True, False)
}
CONFIGURATIONS = (CALIBRATE, THRESHOLD, *ACCUMULATE.values(), SCORE, *TALLY[True], *TALLY[False])


def calibrate(confidence: Any, tau: float) -> Any:
    """Equation 6."""
    confidence = tensors.tensor("confidence", confidence, "float32", None)
    tensors.place("count", confidence=confidence)
    rho = tensors.torch().empty_like(confidence)
    _over(CALIBRATE, len(rho), confidence, rho, tau, len(rho))
    return rho


def threshold(requested: Any) -> Any:
    """Equation 7."""
    torch = tensors.torch()
    requested = tensors.tensor("requested", requested, "uint16", None)
    tensors.place("count", requested=requested)
    thresholds = torch.empty(len(requested), dtype=torch.float64, device=requested.device)
    _over(THRESHOLD, len(thresholds), requested, thresholds, len(thresholds))
    return thresholds


def accumulate(
    confidence: Any,
    target: Any,
    item_offsets: Any,
    target_offsets: Any,
    thresholds: Any,
    tau: float,
    soft: Any,
    hard: Any,
) -> None:
    """Equations 5 and 8, the sums: one item a lane, which goes through its boxes once for each target."""
    confidence = tensors.tensor("confidence", confidence, "float32", None)
    target = tensors.tensor("target", target, "uint8", len(confidence))
    given = {"soft": soft, "hard": hard}
    kinds = {"soft": "float64", "hard": "int64"}
    outputs = {name: _output(name, value, kinds[name]) for name, value in given.items() if value is not None}
    if not outputs:
        raise TypeError("soft, hard: wanted at least one of them, got None for both")
    targets = len(next(iter(outputs.values())))
    if len(outputs) == 2 and len(outputs["hard"]) != targets:
        raise ValueError(f"hard: wanted shape [{targets}], got [{len(outputs['hard'])}]")
    if soft is not None:
        outputs["thresholds"] = tensors.tensor("thresholds", thresholds, "float64", targets)
    item_offsets = tensors.tensor("item_offsets", item_offsets, "int64", None)
    target_offsets = tensors.tensor("target_offsets", target_offsets, "int64", len(item_offsets))
    _reach(item_offsets, "item_offsets", len(confidence), "boxes")
    _reach(target_offsets, "target_offsets", targets, "targets")
    ragged = {
        "confidence": confidence,
        "target": target,
        "item_offsets": item_offsets,
        "target_offsets": target_offsets,
    }
    tensors.place("count", **ragged, **outputs)
    items = len(item_offsets) - 1
    counts = (outputs.get(name, item_offsets) for name in ("thresholds", "soft", "hard"))
    configuration = ACCUMULATE["soft" in outputs, "hard" in outputs]
    _over(configuration, items, *ragged.values(), *counts, items, len(confidence), targets, tau)


def score(soft: Any, hard: Any, covering: Any, requested: Any, target_offsets: Any) -> tuple[Any, ...]:
    """Equations 5 and 8: one item a lane."""
    torch = tensors.torch()
    soft = tensors.tensor("soft", soft, "float64", None)
    hard = tensors.tensor("hard", hard, "int64", len(soft))
    covering = tensors.tensor("covering", covering, "uint8", len(soft))
    requested = tensors.tensor("requested", requested, "uint16", len(soft))
    target_offsets = tensors.tensor("target_offsets", target_offsets, "int64", None)
    _reach(target_offsets, "target_offsets", len(soft), "targets")
    tensors.place("count", soft=soft, hard=hard, covering=covering, requested=requested, target_offsets=target_offsets)
    items = len(target_offsets) - 1
    # Targets that no item owns keep NaN.
    counts = [torch.full_like(soft, float("nan")) for _ in range(2)]
    scores = [torch.empty(items, dtype=torch.float64, device=soft.device) for _ in range(2)]
    inputs = (soft, hard, covering, requested, target_offsets)
    _over(SCORE, items, *inputs, *counts, *scores, items, len(soft))
    return (*counts, *scores)


def tally(
    boxes: Any,
    scores: Any,
    offsets: Any,
    requested: Any,
    thresholds: Any,
    tau: float,
    iou_threshold: float,
    floor: float,
    longest: int | None,
) -> DeviceTally:
    """Suppress and count in one kernel: what survives is never stored."""
    torch = tensors.torch()
    by_request = thresholds is None
    boxes, scores, offsets, longest, configuration = suppression.prepared(
        "tally", boxes, scores, offsets, longest, TALLY[by_request]
    )
    images, (size, categories) = len(offsets) - 1, scores.shape
    given = ("requested", requested, "uint16") if by_request else ("thresholds", thresholds, "float64")
    wanted = tensors.tensor(*given, images, categories)
    tensors.place("tally", boxes=boxes, **{given[0]: wanted})
    soft, hard, status = (
        torch.empty((images, categories), dtype=dtype, device=boxes.device)
        for dtype in (torch.float64, torch.int64, torch.int8)
    )
    if status.numel():
        least = float_not_below(floor)
        settings = (float_not_above(iou_threshold), least, tau, int(tau <= MAX_RISING_TAU))
        sizes = (images, size, categories, longest)
        arrays = (boxes, scores, offsets, wanted, soft, hard, status)
        configuration.launch((images * categories,), *arrays, *sizes, *settings)
    return DeviceTally(soft, hard, status)


def _over(configuration: Configuration, lanes: int, *arguments: Any) -> None:
    """Launch with one lane each."""
    if lanes:
        configuration.launch((triton.cdiv(lanes, configuration.constexprs["BLOCK"]),), *arguments)


def _output(name: str, value: Any, kind: str) -> Any:
    """Check a tensor that is written in place."""
    if tensors.tensor(name, value, kind, None) is not value:
        raise ValueError(f"{name}: wanted a contiguous, aligned tensor, because it is changed in place")
    return value


def _reach(offsets: Any, name: str, end: int, what: str) -> None:
    if len(offsets) == 0 or (len(offsets) == 1 and end):
        raise ValueError(f"{name}: wanted offsets from 0 to the number of {what}, {end}, got {len(offsets)} entries")
