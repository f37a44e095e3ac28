"""Non-maximum suppression over what a detector found in a batch of items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.arrays import Array, is_array, rising, to_host
from tallymill.engine.batch import ItemBatch
from tallymill.engine.proposals import Proposals
from tallymill.engine.proposer import DetectOptions, RawBoxes
from tallymill.kernels.nms import nms, valid

LONGEST = 2048  # boxes of a segment that the card's kernel takes


def retained(batch: ItemBatch, classes: NDArray[np.int64], raw: RawBoxes, options: DetectOptions) -> Proposals:
    """Class-aware NMS over the raw boxes of a batch: one segment a target.

    Degenerate boxes are dropped and counted first. Boxes come out target after target, each in the order of NMS; with
    ``keep_suppressed`` the suppressed ones follow the retained ones of their target, in the order of the model.
    """
    found = suppressed(raw, len(classes), options)
    item_edges = batch.targets.offsets
    target_edges = np.searchsorted(found.segment, np.arange(len(classes) + 1))
    within = np.arange(len(classes)) - item_edges[batch.targets.item]
    return Proposals(
        item_id=batch.rows.column("item_id"),
        image_hash=pa.array(batch.hashes, pa.string()),
        sizes=batch.sizes,
        errors=raw.errors,
        saturated=raw.saturated,
        target_offsets=item_edges,
        requested=batch.targets.requested,
        covered=classes >= 0,
        offsets=target_edges[item_edges].astype(np.int64),
        target=within[found.segment].astype(np.uint8),
        confidence=found.scores,
        boxes=found.boxes,
        kept=found.kept,
        dropped=len(raw.scores) - found.usable,
    )


@dataclass(frozen=True, slots=True)
class Suppressed:
    """What NMS left, on the host: ``segment`` int64 [K], rising, ``boxes``, ``scores`` and, with ``keep_suppressed``,
    ``kept`` bool [K]; ``usable`` is how many boxes entered it.
    """

    segment: NDArray[np.int64]
    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    kept: NDArray[np.bool_] | None
    usable: int


def suppressed(raw: RawBoxes, segments: int, options: DetectOptions) -> Suppressed:
    """NMS where the boxes are: on a card only those that are kept are copied to the host.

    All are copied, and the host suppresses, where the suppressed are kept too, or a segment has more boxes than the
    card's kernel takes; the boxes that stay are the same.
    """
    if not is_array(raw.boxes) and raw.boxes.device.type != "cpu" and not options.keep_suppressed:
        found = suppressed_there(raw, segments, options)
        if found is not None:
            return found
    return _suppressed_here(to_host(raw.segment), to_host(raw.boxes), to_host(raw.scores), segments, options)


def _suppressed_here(
    segment: NDArray[np.int64],
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    segments: int,
    options: DetectOptions,
) -> Suppressed:
    order = np.flatnonzero(valid(boxes, scores))
    order = order[rising(segment[order])]
    segment, boxes, scores = segment[order], boxes[order], scores[order]
    edges = np.searchsorted(segment, np.arange(segments + 1)).astype(np.int64)
    rows, is_kept = nms(boxes, scores, edges, options.nms_iou).indices, None
    if options.keep_suppressed:
        rows, is_kept = _with_suppressed(rows, segment)
    return Suppressed(segment[rows], boxes[rows], scores[rows], is_kept, len(order))


def suppressed_there(raw: RawBoxes, segments: int, options: DetectOptions, impl: str = "auto") -> Suppressed | None:
    """NMS on the device of the boxes; None where a segment has more than ``LONGEST``.

    The host waits twice: for how many boxes each segment has, and for those that are kept.
    """
    import torch

    boxes, scores = raw.boxes, raw.scores
    usable = boxes.isfinite().all(1) & scores.isfinite()
    usable &= (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    segment = raw.segment.masked_fill(~usable, segments)  # behind all others
    order = rising(segment)
    edges: Array = torch.searchsorted(segment[order], torch.arange(segments + 1, device=boxes.device))
    lengths = np.diff(to_host(edges))
    total, longest = int(lengths.sum()), int(lengths.max(initial=0))
    if longest > LONGEST:
        return None
    order = order[:total]
    boxes, scores = boxes[order], scores[order]
    kept: Any = nms(boxes, scores, edges, options.nms_iou, longest=longest, impl=impl)
    kept.check()
    ends = to_host(kept.offsets)
    rows = kept.indices[: int(ends[-1])]
    answer = to_host(torch.cat([boxes[rows], scores[rows, None]], dim=1))
    return Suppressed(
        np.repeat(np.arange(segments), np.diff(ends)), answer[:, :4].copy(), answer[:, 4].copy(), None, total
    )


def _with_suppressed(
    indices: NDArray[np.int64], segment: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    others = np.setdiff1d(np.arange(len(segment)), indices, assume_unique=True)
    rows = np.concatenate([indices, others])
    order = np.argsort(segment[rows], kind="stable")
    return rows[order], (np.arange(len(rows)) < len(indices))[order]
