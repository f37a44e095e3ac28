"""Novelty discovery: which instances of the source are still there in the edited image, and which are new.

ABACUS, stage 1: source masks are moved along the optical flow, and matched one to one by mask IoU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.abacus.clean import union
from tallymill.engine.abacus.data import REPAIRED, Instances, joined
from tallymill.kernels.mask_iou import Masks, mask_iou
from tallymill.kernels.match import assign

Flow = NDArray[np.float32]
CROWD_SHARE = 0.5  # of its pixels: what a crowd covers so far is one of the crowd


@dataclass(frozen=True, slots=True)
class Matching:
    """Of n source instances ``partner`` int64 [n], the place of each among the m edited ones, -1 where it is missing,
    and ``similarity`` float64 [n], 0 without partner; ``moved``: their masks where they should be.
    """

    partner: NDArray[np.int64]
    similarity: NDArray[np.float64]
    moved: Masks

    def back(self, edited: int) -> NDArray[np.int64]:
        """The same seen from the edited image: the source instance of each of its m, -1 where it is new."""
        found = np.full(edited, -1, np.int64)
        matched = self.partner >= 0
        found[self.partner[matched]] = np.flatnonzero(matched)
        return found

    def without(self, aside: NDArray[np.bool_]) -> Matching:
        """The same when edited instances without a partner are set aside, bool [m]."""
        place = np.cumsum(~aside) - 1
        partner = self.partner.copy()
        partner[partner >= 0] = place[partner[partner >= 0]]
        return Matching(partner, self.similarity, self.moved)


def repaired(truth: Instances, segmented: Instances, least: float) -> Instances:
    """The annotated instances of the source, and those segmented ones that overlap none of them at IoU ``least``."""
    if not len(segmented):
        return truth
    overlap = mask_iou(segmented.masks, truth.masks)
    missed = segmented.only(overlap.max(axis=1, initial=0.0) < least)
    return truth.and_also(Instances(missed.masks, missed.boxes, missed.scores, (REPAIRED,) * len(missed)))


def of_crowds(masks: Masks, which: NDArray[np.bool_], crowds: Masks) -> NDArray[np.bool_]:
    """Those of ``which``, bool [N], that lie in crowds with half of their pixels or more: bool [N].

    A crowd is annotated as one region because its members cannot be told apart: nobody can say of one of them whether
    it was there before. COCO ignores what is found inside it by the same measure.
    """
    found = np.zeros(len(masks), np.bool_)
    if not len(crowds):
        return found
    region = union(crowds)
    for k in np.flatnonzero(which & (masks.area > 0)).tolist():
        found[k] = np.count_nonzero(region[masks[k].to_arrays()[0]]) >= CROWD_SHARE * masks.area[k]
    return found


def match(source: Masks, edited: Masks, flow: Flow | None, least: float) -> Matching:
    """Pair n source masks with m edited ones so that the sum of their similarities is greatest.

    ``flow`` float32 [H, W, 2] leads from pixels of the edited image to those of the source (None: nothing moved).
    Similarity is mask IoU after the move; what is under ``least`` counts as 0, and is not paired.
    """
    shifted = source if flow is None else moved(source, flow)
    similarity = mask_iou(shifted, edited)
    similarity[similarity < least] = 0.0
    if not similarity.size:
        return Matching(np.full(len(source), -1, np.int64), np.zeros(len(source)), shifted)
    column = assign(similarity, maximize=True).column
    alike = np.where(column >= 0, similarity[np.arange(len(column)), column], 0.0)
    return Matching(np.where(alike > 0, column, -1), alike, shifted)


def moved(masks: Masks, flow: Flow) -> Masks:
    """Each mask read at x + flow(x), the nearest pixel; outside the image there is nothing. Same size as the flow."""
    if not len(masks) or (np.abs(flow) < 0.5).all():  # every pixel reads itself
        return masks
    height, width = flow.shape[:2]
    x = np.floor(flow[..., 0] + np.arange(width, dtype=np.float32) + 0.5)
    y = np.floor(flow[..., 1] + np.arange(height, dtype=np.float32)[:, None] + 0.5)
    found = []
    reach = _reach(flow)
    for k, (x1, y1, x2, y2) in enumerate(masks.box.tolist()):
        if x1 == x2:
            found.append(Masks.from_boxes(np.zeros((1, 4), np.int64), height, width))
            continue
        window = _window((x1, y1, x2, y2), reach, height, width)
        columns, rows = x[window] - x1, y[window] - y1
        inside = (columns >= 0) & (columns < x2 - x1) & (rows >= 0) & (rows < y2 - y1)
        patch = masks[k].to_arrays()[0, y1:y2, x1:x2]
        there = np.zeros((1, height, width), np.bool_)  # one mask at a time: all of a large image would not fit
        there[0][window][inside] = patch[rows[inside].astype(np.int64), columns[inside].astype(np.int64)]
        found.append(Masks.from_arrays(there))
    return joined(found)


def _reach(flow: Flow) -> tuple[float, float, float, float]:
    """Least and greatest flow, x then y."""
    across, down = flow[..., 0], flow[..., 1]
    return float(across.min()), float(across.max()), float(down.min()), float(down.max())


def _window(
    box: tuple[int, int, int, int], reach: tuple[float, float, float, float], height: int, width: int
) -> tuple[slice, slice]:
    """The rows and columns from which a box can be read."""
    x1, y1, x2, y2 = box
    left, right, up, down = reach
    rows = slice(max(int(y1 - down) - 1, 0), max(min(int(y2 - up) + 2, height), 0))
    return rows, slice(max(int(x1 - right) - 1, 0), max(min(int(x2 - left) + 2, width), 0))
