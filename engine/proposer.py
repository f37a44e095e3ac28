"""From decoded images to the retained boxes of one detector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.batch import ItemBatch
from tallymill.engine.clock import StageClock
from tallymill.engine.detectors.base import Candidates, Detector, DetectorSpec
from tallymill.engine.proposals import Proposals
from tallymill.engine.sessions.base import stack
from tallymill.engine.slicing import Window, inside, windows
from tallymill.errors import ModelError
from tallymill.kernels.nms import nms, valid


@dataclass(frozen=True, slots=True)
class DetectOptions:
    """What shapes proposals besides the model: see ``Settings``; ``slices`` is resolved here."""

    floor: float
    nms_iou: float
    slices: tuple[int, ...]
    window_edge: float = 1.0
    keep_suppressed: bool = False


@dataclass(slots=True)
class RawBoxes:
    """Boxes before NMS: ``segment`` int64 [P] is the flat target of each; ``errors`` and ``saturated`` are per item."""

    segment: NDArray[np.int64]
    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    errors: list[str | None]
    saturated: NDArray[np.bool_]


NOTHING = Candidates(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


class BlindProposer(Protocol):
    """A detector that looks at no pixels: a batch of items in, raw boxes of their targets out."""

    spec: DetectorSpec

    def propose(
        self, batch: ItemBatch, classes: NDArray[np.int64], options: DetectOptions, clock: StageClock
    ) -> RawBoxes:
        """Boxes for every flat target; ``classes`` int64 [T] is the detector's class, or -1 where it has none."""
        ...


class WindowProposer:
    """Runs an image detector over the windows of one image."""

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self.spec = detector.spec

    def look(
        self, image: NDArray[np.uint8], classes: NDArray[np.int64], options: DetectOptions, clock: StageClock
    ) -> list[Candidates]:
        """Candidates of the asked classes int64 [C] in each window, in image pixels, whole objects only.

        Raises ``ModelError`` when the model fails on the image.
        """
        height, width = image.shape[:2]
        views = windows(height, width, options.slices)
        found = []
        for first in range(0, len(views), self.spec.batch):
            group = views[first : first + self.spec.batch]
            with clock("preprocess"):
                inputs = [self.detector.preprocess(image[w.top : w.bottom, w.left : w.right]) for w in group]
            with clock("model"):
                outputs = self.detector.run(stack(inputs))
            with clock("boxes"):
                for index, window in enumerate(group):
                    size = (window.bottom - window.top, window.right - window.left)
                    candidates = self.detector.decode(outputs, index, size, classes, options.floor)
                    found.append(_in_image(candidates, window, height, width, options.window_edge))
        return found


Proposer = BlindProposer | WindowProposer


def _in_image(found: Candidates, window: Window, height: int, width: int, edge: float) -> Candidates:
    if len(found.scores) and not (found.scores.min() >= 0 and found.scores.max() <= 1):  # false for NaN too
        raise ModelError("scores that are not finite or not in [0, 1]")
    if window == (0, 0, height, width):
        return found
    keep = inside(found.boxes, window, height, width, edge)
    origin = np.array([window.left, window.top, window.left, window.top], np.float32)
    return Candidates(found.boxes[keep] + origin, found.scores[keep], found.request[keep], found.saturated)


class Gathering:
    """The candidates of one detector while a batch is looked at, image by image."""

    def __init__(self, proposer: WindowProposer, batch: ItemBatch, classes: NDArray[np.int64]) -> None:
        self._proposer, self._batch = proposer, batch
        # Of each item the flat targets that the detector covers, and their classes. Worked out for the whole batch at
        # once: after every run of a model the caches are cold, and each small step there costs several times as much.
        covered = np.flatnonzero(classes >= 0)
        edges = np.searchsorted(covered, batch.targets.offsets[1:-1])
        self._targets = np.split(covered, edges)
        self._classes = np.split(classes[covered], edges)
        self.name = proposer.spec.name
        self._errors: dict[int, str] = {}
        self._saturated = np.zeros(len(batch), np.bool_)
        self._segments: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        self._found: list[Candidates] = [NOTHING]

    def look(self, item: int, image: NDArray[np.uint8], options: DetectOptions, clock: StageClock) -> None:
        """Look at the image of one item. An image on which the model fails is an error of that item alone."""
        targets = self._targets[item]
        if not len(targets):
            return
        try:
            found = self._proposer.look(image, self._classes[item], options, clock)
        except ModelError as exc:
            self._errors[item] = f"{self.name}: {exc.message}"
            return
        self._saturated[item] = any(candidates.saturated for candidates in found)
        self._segments += [targets[candidates.request] for candidates in found]
        self._found += found

    def boxes(self) -> RawBoxes:
        """Everything found so far."""
        return RawBoxes(
            segment=np.concatenate(self._segments),
            boxes=np.concatenate([candidates.boxes for candidates in self._found]),
            scores=np.concatenate([candidates.scores for candidates in self._found]),
            errors=[self._errors.get(i, error) for i, error in enumerate(self._batch.errors)],
            saturated=self._saturated,
        )


def retained(batch: ItemBatch, classes: NDArray[np.int64], raw: RawBoxes, options: DetectOptions) -> Proposals:
    """Class-aware NMS over the raw boxes of a batch: one segment a target.

    Degenerate boxes are dropped and counted first. Boxes come out target after target, each in the order of NMS; with
    ``keep_suppressed`` the suppressed ones follow the retained ones of their target, in the order of the model.
    """
    usable = valid(raw.boxes, raw.scores)
    order = np.flatnonzero(usable)
    order = order[np.argsort(raw.segment[order], kind="stable")]
    segment, boxes, scores = raw.segment[order], raw.boxes[order], raw.scores[order]
    edges = np.searchsorted(segment, np.arange(len(classes) + 1)).astype(np.int64)
    kept = nms(boxes, scores, edges, options.nms_iou)
    rows, is_kept = kept.indices, None
    if options.keep_suppressed:
        rows, is_kept = _with_suppressed(kept.indices, segment)
    item_edges = batch.targets.offsets
    target_edges = np.searchsorted(segment[rows], np.arange(len(classes) + 1))
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
        target=within[segment[rows]].astype(np.uint8),
        confidence=scores[rows],
        boxes=boxes[rows],
        kept=is_kept,
        dropped=int(len(usable) - usable.sum()),
    )


def _with_suppressed(
    indices: NDArray[np.int64], segment: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    suppressed = np.setdiff1d(np.arange(len(segment)), indices, assume_unique=True)
    rows = np.concatenate([indices, suppressed])
    order = np.argsort(segment[rows], kind="stable")
    return rows[order], (np.arange(len(rows)) < len(indices))[order]
