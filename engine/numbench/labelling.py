"""Which proposals are true: greedy one-to-one matching to true boxes, in order of confidence."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tallymill.errors import UsageError

LEAST_IOU = 0.5
# Pairs of a proposal and a true box that are looked at together; each takes some 150 bytes for a moment.
PAIRS_AT_ONCE = 1 << 18


def label_proposals(
    boxes: ArrayLike,
    confidence: ArrayLike,
    target: ArrayLike,
    truth_boxes: ArrayLike,
    truth_target: ArrayLike,
    iou: float = LEAST_IOU,
) -> NDArray[np.bool_]:
    """Which proposals of one detector are true: bool [P].

    Proposals ``boxes`` [P, 4] (xyxy, pixels), ``confidence`` [P], ``target`` [P] come after NMS; truth boxes [G, 4]
    and ``truth_target`` [G] likewise. In order of confidence (ties in stored order) each proposal takes the free
    truth box of its own target with the largest IoU (ties: the first stored), if that is at least ``iou``; a truth box
    is taken once. ``target`` may be any whole number that tells targets apart, so that many images are labelled at
    once: what is never asked of the same target never meets.

    All proposals ask at once, each for its best box; a box keeps the surest that asked, and whoever lost asks for its
    next. As all boxes rank proposals alike, this ends where the one-by-one procedure ends.
    """
    asking = _Asking(boxes, confidence, target, truth_boxes, truth_target)
    proposal, box, overlap = asking.pairs(iou)
    order = np.lexsort((box, -overlap, proposal))
    proposal, box = proposal[order], box[order]
    ends = np.searchsorted(proposal, np.arange(len(asking.rank) + 1))
    at, last = ends[:-1].copy(), ends[1:]
    surest = np.full(asking.truths, len(asking.rank), np.int64)  # the rank of the proposal that each box keeps
    active = np.flatnonzero(at < last)
    while active.size:
        wanted = box[at[active]]
        before = surest.copy()
        np.minimum.at(surest, wanted, asking.rank[active])
        displaced = before[(surest < before) & (before < len(asking.rank))]
        lost = active[surest[wanted] != asking.rank[active]]
        active = np.concatenate([lost, asking.by_rank[displaced]])
        at[active] += 1
        active = active[at[active] < last[active]]
    label = np.zeros(len(asking.rank), np.bool_)
    label[asking.by_rank[surest[surest < len(asking.rank)]]] = True
    return label


class _Asking:
    """Checked arrays: the rank of each proposal among all, 0 the surest, and the truth sorted by target."""

    def __init__(
        self,
        boxes: ArrayLike,
        confidence: ArrayLike,
        target: ArrayLike,
        truth_boxes: ArrayLike,
        truth_target: ArrayLike,
    ) -> None:
        p = np.asarray(confidence, dtype=np.float64).reshape(-1)
        self._boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
        self._target = np.asarray(target).reshape(-1)
        self._true = np.asarray(truth_boxes, dtype=np.float64).reshape(-1, 4)
        true_target = np.asarray(truth_target).reshape(-1)
        if not len(self._boxes) == len(self._target) == len(p) or len(self._true) != len(true_target):
            raise UsageError(
                f"{len(self._boxes)} boxes, {len(p)} confidences and {len(self._target)} targets against "
                f"{len(self._true)} truth boxes and {len(true_target)} truth targets: the lengths differ"
            )
        self.truths = len(true_target)
        self.by_rank = np.argsort(-p, kind="stable")
        self.rank = np.empty(len(p), np.int64)
        self.rank[self.by_rank] = np.arange(len(p))
        self._order = np.argsort(true_target, kind="stable")
        ordered = true_target[self._order]
        self._first = np.searchsorted(ordered, self._target, "left")
        self._number = np.searchsorted(ordered, self._target, "right") - self._first

    def pairs(self, iou: float) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Proposal, true box and IoU of every pair of one target that overlaps enough."""
        found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
        for start, stop in self._pieces():
            number = self._number[start:stop]
            proposal = np.repeat(np.arange(start, stop), number)
            within = np.arange(len(proposal)) - np.repeat(np.cumsum(number) - number, number)
            box = self._order[np.repeat(self._first[start:stop], number) + within]
            overlap = pair_iou(self._boxes[proposal], self._true[box])
            enough = overlap >= iou
            found.append((proposal[enough], box[enough], overlap[enough]))
        proposal, box, overlap = (np.concatenate(column) for column in zip(*found, strict=True))
        return proposal, box, overlap

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Ranges of proposals with at most ``PAIRS_AT_ONCE`` pairs, or of a single proposal."""
        total = np.concatenate([[0], np.cumsum(self._number)])
        start = 0
        while start < len(self._number):
            stop = int(np.searchsorted(total, total[start] + PAIRS_AT_ONCE, "right")) - 1
            stop = min(max(stop, start + 1), len(self._number))
            yield start, stop
            start = stop


def pair_iou(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """IoU float64 [N] of box n of one set with box n of the other, xyxy; 0 where both are degenerate."""
    width = np.minimum(a[:, 2], b[:, 2]) - np.maximum(a[:, 0], b[:, 0])
    height = np.minimum(a[:, 3], b[:, 3]) - np.maximum(a[:, 1], b[:, 1])
    shared = np.clip(width, 0.0, None) * np.clip(height, 0.0, None)
    areas = ((box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) for box in (a, b))
    union = sum(areas) - shared
    ratio: NDArray[np.float64] = np.zeros_like(shared)
    np.divide(shared, union, out=ratio, where=union > 0.0)
    return ratio
