"""Greedy non-maximum suppression over ragged segments (one segment an image, detector and category)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import arguments
from tallymill.kernels.nms import cpu, reference

IMPLEMENTATIONS = ("cpu", "reference")
MAX_THREADS = 256


class Kept(NamedTuple):
    """The boxes that survived: ``indices`` int64 [K] into the boxes, segment after segment, each by falling score
    and then rising index; ``offsets`` int64 [S+1], where each segment's survivors begin and end in ``indices``.
    """

    indices: NDArray[np.int64]
    offsets: NDArray[np.int64]


def select(impl: str, device: str = "cpu") -> str:
    """Name the implementation that runs for ``impl`` (auto, cpu, reference); UsageError when there is none."""
    return arguments.choose("nms", impl, device, IMPLEMENTATIONS)


def valid(boxes: NDArray[Any], scores: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which boxes may enter :func:`nms`: bool [N], true where x2 > x1, y2 > y1 and all is finite.

    ``boxes`` float32 [N, 4] xyxy, ``scores`` float32 [N]. The others are to be dropped and counted by the caller.
    """
    boxes = arguments.array("boxes", boxes, np.float32, None, 4)
    scores = arguments.array("scores", scores, np.float32, len(boxes))
    return cpu.valid(boxes, scores)


def nms(
    boxes: NDArray[Any],
    scores: NDArray[Any],
    offsets: NDArray[Any],
    iou_threshold: float = 0.5,
    *,
    impl: str = "auto",
    threads: int = 1,
) -> Kept:
    """Suppress, inside each segment, every box that overlaps a better one that stays.

    ``boxes`` float32 [N, 4] xyxy in pixels, ``scores`` float32 [N], ``offsets`` int64 [S+1]. The order is by falling
    score, ties by rising index; suppressed when IoU > ``iou_threshold``, strictly, with areas (x2-x1)*(y2-y1). IoU is
    evaluated in float32 and compared in float64, which gives the indices of ``torchvision.ops.nms`` on a CPU.
    ``threads`` (1 to 256) share out the segments; the result does not depend on it, nor on the implementation.
    Arrays must not be changed by other threads meanwhile. TypeError and ValueError name the argument that is wrong.
    """
    chosen = select(impl)
    boxes = arguments.array("boxes", boxes, np.float32, None, 4)
    scores = arguments.array("scores", scores, np.float32, len(boxes))
    offsets = arguments.offsets("offsets", offsets, len(boxes), "boxes")
    if not 0.0 <= iou_threshold <= 1.0:
        raise ValueError(f"iou_threshold: wanted a number in [0, 1], got {iou_threshold}")
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads: wanted 1 to {MAX_THREADS}, got {threads}")
    usable = cpu.valid(boxes, scores)
    if not usable.all():
        at = int(usable.argmin())
        raise ValueError(
            f"boxes: {boxes[at]} with score {scores[at]} at {at} is degenerate or not finite; drop what valid() refuses"
        )
    run = cpu.nms if chosen == "cpu" else reference.nms
    return Kept(*run(boxes, scores, offsets, float(iou_threshold), threads))
