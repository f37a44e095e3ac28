"""Greedy non-maximum suppression over ragged segments (one segment an image, detector and category)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import arguments, paths
from tallymill.kernels.nms import cpu, reference

IMPLEMENTATIONS = ("cpu", *paths.PATHS, "gpu", "reference")


class Kept(NamedTuple):
    """The boxes that survived: ``indices`` int64 [K] into the boxes, segment after segment, each by falling score
    and then rising index; ``offsets`` int64 [S*C+1], where each segment's survivors begin and end in ``indices``.
    """

    indices: NDArray[np.int64]
    offsets: NDArray[np.int64]


class SoftKept(NamedTuple):
    """What soft-NMS took: ``indices`` int64 [K] and ``offsets`` int64 [S*C+1] as in :class:`Kept`, ``scores`` float32
    [K], lowered, never rising within a segment.
    """

    indices: NDArray[np.int64]
    offsets: NDArray[np.int64]
    scores: NDArray[np.float32]


def select(impl: str, device: str = "cpu") -> str:
    """Name the implementation that runs for ``impl`` (auto or one of IMPLEMENTATIONS); UsageError for any other."""
    return arguments.choose("nms", impl, device, IMPLEMENTATIONS)


def valid(boxes: NDArray[Any], scores: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which boxes may enter :func:`nms`: bool [N], true where x2 > x1, y2 > y1 and all is finite.

    ``boxes`` float32 [N, 4] xyxy, ``scores`` float32 [N], or [N, C], where one bad score makes the box bad. The others
    are to be dropped and counted by the caller. The offsets of those that are left:
    ``np.concatenate([[0], np.cumsum(usable)])[offsets]``.
    """
    boxes = arguments.array("boxes", boxes, np.float32, None, 4)
    if np.ndim(scores) == 2:
        scores = arguments.array("scores", scores, np.float32, len(boxes), None)
        finite: NDArray[np.bool_] = np.isfinite(scores).all(axis=1)
        return cpu.valid(boxes, np.zeros(len(boxes), np.float32)) & finite
    return cpu.valid(boxes, arguments.array("scores", scores, np.float32, len(boxes)))


def nms(
    boxes: NDArray[Any],
    scores: NDArray[Any],
    offsets: NDArray[Any],
    iou_threshold: float = 0.5,
    *,
    score_threshold: float | None = None,
    impl: str = "auto",
    threads: int = 1,
    longest: int | None = None,
) -> Kept:
    """Suppress, inside each segment, every box that overlaps a better one that stays.

    ``boxes`` float32 [N, 4] xyxy in pixels, ``offsets`` int64 [S+1] of the images among them. ``scores`` float32 [N],
    or [N, C] where the C categories of an image share its boxes: each is a segment of its own then, s*C + c of S*C.
    Boxes that score below ``score_threshold`` (compared in float64; None: no box) take no part in a segment.

    The order is by falling score, ties by rising index; suppressed when IoU > ``iou_threshold``, strictly, with areas
    (x2-x1)*(y2-y1). IoU is evaluated in float32 and compared in float64, which gives the indices of
    ``torchvision.ops.nms`` on a CPU. ``threads`` (1 to 256) share out the images; the result does not depend on it, nor
    on the implementation: ``cpu`` is the best of ``avx512``, ``avx2`` and ``portable`` that the machine can run.

    Arrays must not be changed by other threads meanwhile. TypeError and ValueError name the argument that is wrong;
    a box or score that :func:`valid` refuses is, whatever its score. UsageError: the machine cannot run ``impl``.

    Torch tensors on a GPU give ``DeviceKept`` (``nms/device.py``): tensors beside them, and a status that marks the
    segments with a fault; the host waits for nothing, only ``check()`` does. An image has at most 2,048 boxes there: if
    there are more in all, say by ``longest`` that none has (a smaller bound is faster). ``threads`` mean nothing there,
    and ``longest`` nothing elsewhere.
    """
    chosen = select(impl, arguments.device_of(boxes))
    iou_threshold = arguments.fraction("iou_threshold", iou_threshold)
    least = -np.inf if score_threshold is None else arguments.number("score_threshold", score_threshold)
    if np.isnan(least):
        raise ValueError("score_threshold: wanted a number, got nan")
    threads = arguments.threads(threads)
    if chosen == "gpu":
        run = arguments.gpu_module("nms").nms
        return run(boxes, scores, offsets, iou_threshold, least, longest)  # type: ignore[no-any-return]
    boxes, scores, offsets = segments_of(boxes, scores, offsets)
    if chosen == "reference":
        check_valid(boxes, scores)
        return Kept(*reference.nms(boxes, scores, offsets, iou_threshold, least, threads))
    paths.require("nms", chosen)
    kept = cpu.nms(boxes, scores, offsets, iou_threshold, least, threads, chosen)
    if kept is None:
        check_valid(boxes, scores)
        raise ValueError("boxes: changed while they were read")
    return Kept(*kept)


def soft_nms(
    boxes: NDArray[Any],
    scores: NDArray[Any],
    offsets: NDArray[Any],
    *,
    method: str = "linear",
    sigma: float = 0.5,
    iou_threshold: float = 0.3,
    min_score: float = 0.001,
    impl: str = "auto",
    threads: int = 1,
    longest: int | None = None,
) -> SoftKept:
    """Lower, inside each segment, the scores of boxes that overlap better ones, instead of dropping them.

    Arrays as in :func:`nms`. The best box that remains is taken again and again (ties: the lowest index), and the
    scores of the others are multiplied by a weight; it ends where none reaches ``min_score``. ``linear``: 1 - IoU where
    IoU >= ``iou_threshold``, else 1. ``gaussian``: exp(-IoU^2 / ``sigma``), whatever the threshold. That is soft-NMS of
    Bodla et al. 2017 as mmcv has it (offset 0), except that mmcv breaks ties otherwise and takes the first box of a
    segment even below ``min_score``.

    Float32 throughout, the threshold and ``min_score`` rounded to it; the gaussian weight in float64, rounded once. An
    IoU that overflow makes NaN counts as 0. Linear results are equal to the bit in every implementation, gaussian ones
    as far as the libraries' exp, rounded to float32, are. Errors as in :func:`nms`,
    and on a GPU it gives ``DeviceSoftKept`` in the same way.
    """
    chosen = arguments.choose("soft_nms", impl, arguments.device_of(boxes), ("cpu", "gpu", "reference"))
    if method not in ("linear", "gaussian"):
        raise ValueError(f"method: wanted linear or gaussian, got {method!r}")
    iou_threshold = arguments.fraction("iou_threshold", iou_threshold)
    for name, value, least in (("sigma", sigma, np.finfo(np.float32).tiny), ("min_score", min_score, 0.0)):
        if not least <= arguments.number(name, value) < np.inf:
            raise ValueError(f"{name}: wanted a finite number of at least {least:g}, got {value}")
    threads = arguments.threads(threads)
    decay = (method == "gaussian", iou_threshold, float(sigma), float(min_score))
    if chosen == "gpu":
        run = arguments.gpu_module("nms").soft_nms
        return run(boxes, scores, offsets, *decay, longest)  # type: ignore[no-any-return]
    boxes, scores, offsets = segments_of(boxes, scores, offsets)
    settings = (*decay, threads)
    if chosen == "reference":
        check_valid(boxes, scores)
        return SoftKept(*reference.soft_nms(boxes, scores, offsets, *settings))
    kept = cpu.soft_nms(boxes, scores, offsets, *settings)
    if kept is None:
        check_valid(boxes, scores)
        raise ValueError("boxes: changed while they were read")
    return SoftKept(*kept)


def segments_of(
    boxes: NDArray[Any], scores: NDArray[Any], offsets: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Return the three as contiguous arrays of the right types, scores [N, C]."""
    boxes = arguments.array("boxes", boxes, np.float32, None, 4)
    if np.ndim(scores) == 2:
        scores = arguments.array("scores", scores, np.float32, len(boxes), None)
    else:
        scores = arguments.array("scores", scores, np.float32, len(boxes)).reshape(-1, 1)
    return boxes, scores, arguments.offsets("offsets", offsets, len(boxes), "boxes")


def check_valid(boxes: NDArray[np.float32], scores: NDArray[np.float32]) -> None:
    """Refuse boxes [N, 4] and scores [N, C] that :func:`valid` would, naming the first."""
    usable = reference.valid(boxes, scores)
    if not usable.all():
        at = int(usable.argmin())
        raise ValueError(
            f"boxes: {boxes[at]} with score {_shown(scores[at])} at {at} is degenerate or not finite; "
            "drop what valid() refuses"
        )


def _shown(scores: NDArray[np.float32]) -> Any:
    return scores[0] if len(scores) == 1 else scores
