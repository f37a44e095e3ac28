"""Counting and scoring: from one detector's retained boxes to cw-NPS and b-NPS (equations 5 to 8)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import arguments
from tallymill.kernels import nms as suppression
from tallymill.kernels.count import cpu, reference

IMPLEMENTATIONS = ("cpu", "gpu", "reference")
MAX_RISING_TAU = 2**20


class Scores(NamedTuple):
    """``soft_count`` and ``hard_count`` float64 [T], objects per detector; ``cw_nps`` and ``b_nps`` float64 [I]."""

    soft_count: NDArray[np.float64]
    hard_count: NDArray[np.float64]
    cw_nps: NDArray[np.float64]
    b_nps: NDArray[np.float64]


class Tally(NamedTuple):
    """``soft`` float64 [S, C], the sums of calibrated confidences; ``hard`` int64 [S, C]."""

    soft: NDArray[np.float64]
    hard: NDArray[np.int64]


def select(impl: str, device: str = "cpu") -> str:
    """Name the implementation that runs for ``impl`` (auto, cpu, gpu, reference); UsageError when there is none."""
    return arguments.choose("count", impl, device, IMPLEMENTATIONS)


def calibrate(confidence: NDArray[Any], tau: float, *, impl: str = "auto") -> NDArray[np.float32]:
    """Return calibrated confidences, float32 [P]: sigmoid(logit(p) / tau), equation 6.

    ``confidence`` float32 [P] in [0, 1], ``tau`` a finite temperature above 0. Evaluated in float64 and rounded once,
    which makes every implementation equal to the bit for p of at least 0.05; 0 and 1 map to themselves.
    """
    chosen = select(impl, arguments.device_of(confidence))
    if chosen == "gpu":
        on_card = arguments.gpu_module("count").calibrate
        return on_card(confidence, _temperature(tau))  # type: ignore[no-any-return]
    confidence = arguments.array("confidence", confidence, np.float32, None)
    arguments.within("confidence", confidence, 0.0, 1.0, "[0, 1]")
    run = cpu.calibrate if chosen == "cpu" else reference.calibrate
    return run(confidence, _temperature(tau))


def threshold(requested: NDArray[Any]) -> NDArray[np.float64]:
    """Return T(n), float64 [T], the least calibrated confidence that counts when n are requested (equation 7).

    ``requested`` uint16 [T], 1 or more. 0.7 up to 3, 0.3 from 10, and between them 0.7 - 0.4*(n-3)/7.
    A tensor on a GPU gives one.
    """
    if arguments.device_of(requested) == "cuda":
        return arguments.gpu_module("count").threshold(requested)  # type: ignore[no-any-return]
    return reference.threshold(_requested(requested, None))


def raw_thresholds(thresholds: NDArray[Any], tau: float, *, impl: str = "auto") -> NDArray[np.float32]:
    """Return, float32 [K], the least raw confidence that is calibrated to each threshold or more.

    ``thresholds`` float64 [K], ``tau`` above 0 and up to 2^20 (beyond, rounding hides the order of confidences). So
    ``p >= raw_thresholds(T, tau)`` says the same of every p as ``calibrate(p, tau) >= T``. 0 for thresholds up to 0,
    infinity for those above 1.
    """
    chosen = arguments.choose("raw_thresholds", impl, "cpu", ("cpu", "reference"))
    thresholds = arguments.array("thresholds", thresholds, np.float64, None)
    arguments.within("thresholds", thresholds, -np.inf, np.inf, "[-inf, inf]")
    if _temperature(tau) > MAX_RISING_TAU:
        raise ValueError(f"tau: wanted at most {MAX_RISING_TAU}, got {tau}")
    run = cpu.raw_thresholds if chosen == "cpu" else reference.raw_thresholds
    return run(thresholds, float(tau))


def accumulate(
    confidence: NDArray[Any],
    target: NDArray[Any],
    item_offsets: NDArray[Any],
    target_offsets: NDArray[Any],
    thresholds: NDArray[Any] | None,
    tau: float,
    soft: NDArray[np.float64] | None,
    hard: NDArray[np.int64] | None,
    *,
    impl: str = "auto",
    threads: int = 1,
) -> None:
    """Add one detector's retained boxes to the counts of the requested categories, in place and in stored order.

    ``confidence`` float32 [P], raw, in [0, 1]; ``target`` uint8 [P], the place of the category among its item's
    targets; ``item_offsets`` int64 [I+1] into the boxes; ``target_offsets`` int64 [I+1] into the targets;
    ``thresholds`` float64 [T] of :func:`threshold`. ``soft`` float64 [T] gains the calibrated confidence where it is
    at least the threshold, ``hard`` int64 [T] gains 1 where the raw confidence is at least 0.5; one of the two may be
    None, and ``thresholds`` with ``soft``. Called once a detector, in the order of the ensemble, so that sums are in
    stored order. ``threads`` (1 to 256) share out the items; the result does not depend on it. Other threads must not
    change the arrays meanwhile. After an error nothing was added.

    With torch tensors on a GPU values are not looked at and the host waits for nothing: the targets of an item with a
    fault (:func:`score` knows them) get NaN for ``soft`` and numbers far below 0 for ``hard``.
    """
    chosen = select(impl, arguments.device_of(confidence))
    if chosen == "gpu":
        run = arguments.gpu_module("count").accumulate
        run(confidence, target, item_offsets, target_offsets, thresholds, _temperature(tau), soft, hard)
        return
    confidence = arguments.array("confidence", confidence, np.float32, None)
    target = arguments.array("target", target, np.uint8, len(confidence))
    item_offsets = arguments.offsets("item_offsets", item_offsets, len(confidence), "boxes")
    if soft is None and hard is None:
        raise TypeError("soft, hard: wanted at least one of them, got None for both")
    if soft is not None and thresholds is None:
        raise TypeError("thresholds: wanted a NumPy array of float64 for soft counts, got None")
    targets: int | None = None
    if thresholds is not None:
        thresholds = arguments.array("thresholds", thresholds, np.float64, None)
        arguments.within("thresholds", thresholds, 0.0, 1.0, "[0, 1]")
        targets = len(thresholds)
    if hard is not None:
        hard = arguments.output("hard", hard, np.int64, targets)
        targets = len(hard)
    if soft is not None:
        soft = arguments.output("soft", soft, np.float64, targets)
        targets = len(soft)
    assert targets is not None
    target_offsets = arguments.offsets("target_offsets", target_offsets, targets, "targets")
    if len(item_offsets) != len(target_offsets):
        raise ValueError(
            f"target_offsets: wanted as many items as item_offsets, {len(item_offsets) - 1}, "
            f"got {len(target_offsets) - 1}"
        )
    tau, threads = _temperature(tau), arguments.threads(threads)
    if chosen == "reference":
        _check_boxes(confidence, target, item_offsets, target_offsets)
        reference.accumulate(confidence, target, item_offsets, target_offsets, thresholds, tau, soft, hard)
    elif not cpu.accumulate(confidence, target, item_offsets, target_offsets, thresholds, tau, soft, hard, threads):
        _check_boxes(confidence, target, item_offsets, target_offsets)


def score(
    soft: NDArray[Any],
    hard: NDArray[Any],
    covering: NDArray[Any],
    requested: NDArray[Any],
    target_offsets: NDArray[Any],
    *,
    impl: str = "auto",
) -> Scores:
    """Turn sums over the ensemble into counts per detector and into cw-NPS (equation 8) and b-NPS (equation 5).

    ``soft`` float64 [T] and ``hard`` int64 [T] of :func:`accumulate`; ``covering`` uint8 [T], D, the detectors that
    know the category; ``requested`` uint16 [T], 1 or more; ``target_offsets`` int64 [I+1]. An item's score is
    max(0, 1 - (e1 + ... + ek)/k) with e = |n^ - n|/n in target order, float64, equal to the bit in every
    implementation. NaN stands for "not scored": the counts where D is 0, the scores of an item that has such a target
    or has none at all; with torch tensors on a GPU also for what has a fault, since values are not looked at there.
    """
    chosen = select(impl, arguments.device_of(soft))
    if chosen == "gpu":
        return Scores(*arguments.gpu_module("count").score(soft, hard, covering, requested, target_offsets))
    soft = arguments.array("soft", soft, np.float64, None)
    arguments.within("soft", soft, 0.0, np.finfo(np.float64).max, "[0, inf)")
    hard = arguments.array("hard", hard, np.int64, len(soft))
    arguments.within("hard", hard, 0, np.iinfo(np.int64).max, "[0, 2^63)")
    covering = arguments.array("covering", covering, np.uint8, len(soft))
    requested = _requested(requested, len(soft))
    target_offsets = arguments.offsets("target_offsets", target_offsets, len(soft), "targets")
    run = cpu.score if chosen == "cpu" else reference.score
    return Scores(*run(soft, hard, covering, requested, target_offsets))


def tally(
    boxes: NDArray[Any],
    scores: NDArray[Any],
    offsets: NDArray[Any],
    requested: NDArray[Any] | None,
    *,
    tau: float = 1.0,
    iou_threshold: float = 0.5,
    floor: float = 0.05,
    thresholds: NDArray[Any] | None = None,
    impl: str = "auto",
    threads: int = 1,
    longest: int | None = None,
) -> Tally:
    """Suppress and count in one go: one detector's raw boxes in, the counts of every image and category out.

    ``boxes`` float32 [N, 4] xyxy, ``scores`` float32 [N, C], raw confidences in [0, 1], ``offsets`` int64 [S+1] of the
    images among them, ``requested`` uint16 [S, C]. ``thresholds`` float64 [S, C] in [0, 1] stand in for those of
    :func:`threshold`; ``requested`` may be None then. ``floor`` is the least confidence that takes part, ``threads``
    (1 to 256) share out the images.

    Equal to the bit to :func:`tallymill.kernels.nms.nms` with ``score_threshold=floor`` and :func:`accumulate` of what
    it keeps, in its order. How many boxes were retained is not told: a box that counts nowhere, being too low, cannot
    change whether a better one is retained, and so is left out before suppression. Errors as in those two.

    Torch tensors on a GPU give ``DeviceTally`` (``count/device.py``), with a status as in ``nms``, NaN for ``soft`` and
    a number far below 0 for ``hard`` where a segment has a fault. ``longest`` as in ``nms``.
    """
    chosen = select(impl, arguments.device_of(boxes))
    tau, threads = _temperature(tau), arguments.threads(threads)
    for name, value in (("iou_threshold", iou_threshold), ("floor", floor)):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name}: wanted a number in [0, 1], got {value}")
    if chosen == "gpu":
        numbers = (tau, float(iou_threshold), float(floor), longest)
        run = arguments.gpu_module("count").tally
        return run(boxes, scores, offsets, requested, thresholds, *numbers)  # type: ignore[no-any-return]
    boxes, scores, offsets = suppression.segments_of(boxes, scores, offsets)
    shape = (len(offsets) - 1, scores.shape[1])
    if thresholds is None:
        wanted = arguments.array("requested", requested, np.uint16, *shape)
        limits = threshold(wanted.ravel())
    else:
        limits = arguments.array("thresholds", thresholds, np.float64, *shape).ravel()
        arguments.within("thresholds", limits, 0.0, 1.0, "[0, 1]")
    settings = (limits, tau, float(iou_threshold), float(floor), threads)
    if chosen == "reference":
        _check_proposals(boxes, scores)
        counts = reference.tally(boxes, scores, offsets, *settings)
    else:
        found = cpu.tally(boxes, scores, offsets, *settings)
        if found is None:
            _check_proposals(boxes, scores)
            raise ValueError("boxes: changed while they were read")
        counts = found
    return Tally(counts[0].reshape(shape), counts[1].reshape(shape))


def _temperature(tau: float) -> float:
    checked = arguments.number("tau", tau)
    if not 0.0 < checked < np.inf:
        raise ValueError(f"tau: wanted a finite number above 0, got {tau}")
    return checked


def _requested(value: NDArray[Any], length: int | None) -> NDArray[np.uint16]:
    requested = arguments.array("requested", value, np.uint16, length)
    if not requested.all():
        raise ValueError(f"requested: wanted counts of at least 1, got 0 at {int(requested.argmin())}")
    return requested


def _check_boxes(
    confidence: NDArray[np.float32],
    target: NDArray[np.uint8],
    item_offsets: NDArray[np.int64],
    target_offsets: NDArray[np.int64],
) -> None:
    """Say what is wrong with the boxes; the counting itself only finds that something is."""
    arguments.within("confidence", confidence, 0.0, 1.0, "[0, 1]")
    at = cpu.misplaced(target, item_offsets, target_offsets)
    if at >= 0:
        item = int(np.searchsorted(item_offsets, at, side="right")) - 1
        has = target_offsets[item + 1] - target_offsets[item]
        raise ValueError(f"target: box {at} of item {item} names target {target[at]}, but the item has {has}")


def _check_proposals(boxes: NDArray[np.float32], scores: NDArray[np.float32]) -> None:
    suppression.check_valid(boxes, scores)
    arguments.within("scores", scores.ravel(), 0.0, 1.0, "[0, 1]")
