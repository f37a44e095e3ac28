"""From decoded images to the retained boxes of one detector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.batch import ItemBatch
from tallymill.engine.clock import StageClock
from tallymill.engine.detectors.base import Candidates, Detector, DetectorSpec
from tallymill.engine.proposals import Proposals
from tallymill.engine.sessions.base import Array, stack
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


@dataclass(frozen=True, slots=True)
class Job:
    """What one call of a model can answer: a window prepared for it, and some of the classes asked of the image.

    ``place`` is (item, running number), the order of the answers; ``positions`` int64 [G] says which of the item's
    classes these ``classes`` int64 [G] are.
    """

    place: tuple[int, int]
    inputs: Mapping[str, Array]
    classes: NDArray[np.int64]
    positions: NDArray[np.int64]
    window: Window
    image_size: tuple[int, int]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Jobs of equal shapes can share a batch."""
        return tuple(value.shape for value in self.inputs.values())


class WindowProposer:
    """Runs an image detector over the windows of images."""

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self.spec = detector.spec

    def jobs(
        self, item: int, image: NDArray[np.uint8], classes: NDArray[np.int64], options: DetectOptions, clock: StageClock
    ) -> Iterator[Job]:
        """All that is to be asked about one image, window after window, prepared as it is taken."""
        height, width = image.shape[:2]
        groups = self.detector.split(classes)
        number = count()
        for window in windows(height, width, options.slices):
            with clock("preprocess"):
                inputs = self.detector.preprocess(image[window.top : window.bottom, window.left : window.right])
            for group in groups:
                yield Job((item, next(number)), inputs, classes[group], group, window, (height, width))

    def run(self, jobs: Sequence[Job], options: DetectOptions, clock: StageClock) -> list[Candidates | ModelError]:
        """Answers to jobs of equal shapes, in image pixels, whole objects only, or why there is none.

        A batch on which the model fails is tried again one by one, so that an image fails by its own fault alone.
        """
        try:
            with clock("model"):
                outputs = self.detector.run(stack([job.inputs for job in jobs]), [job.classes for job in jobs])
        except ModelError as exc:
            if len(jobs) == 1:
                return [exc]
            return [answer for job in jobs for answer in self.run([job], options, clock)]
        with clock("boxes"):
            return [self._read(outputs, index, job, options) for index, job in enumerate(jobs)]

    def _read(
        self, outputs: Mapping[str, Array], index: int, job: Job, options: DetectOptions
    ) -> Candidates | ModelError:
        top, left, bottom, right = job.window
        try:
            found = self.detector.decode(outputs, index, (bottom - top, right - left), job.classes, options.floor)
            found = _in_image(found, job.window, *job.image_size, options.window_edge)
        except ModelError as exc:
            return exc
        return Candidates(found.boxes, found.scores, job.positions[found.request], found.saturated)


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
    """The candidates of one detector while a batch of items is looked at, image by image.

    Windows wait, prepared, until as many of one shape are there as the model takes at once; ``boxes`` runs the rest.
    """

    def __init__(
        self,
        proposer: WindowProposer,
        batch: ItemBatch,
        classes: NDArray[np.int64],
        options: DetectOptions,
        clock: StageClock,
    ) -> None:
        self._proposer, self._batch, self._options, self._clock = proposer, batch, options, clock
        # Of each item the flat targets that the detector covers, and their classes. Worked out for the whole batch at
        # once: after every run of a model the caches are cold, and each small step there costs several times as much.
        covered = np.flatnonzero(classes >= 0)
        edges = np.searchsorted(covered, batch.targets.offsets[1:-1])
        self._targets = np.split(covered, edges)
        self._classes = np.split(classes[covered], edges)
        self.name = proposer.spec.name
        self._errors: dict[int, str] = {}
        self._waiting: dict[tuple[tuple[int, ...], ...], list[Job]] = {}
        self._found: dict[tuple[int, int], Candidates] = {}
        known = proposer.detector.encoded
        with clock("text"):
            self._unknown = proposer.detector.learn(batch.targets.categories)
        if proposer.detector.encoded > known:
            clock.encoded[self.name] += proposer.detector.encoded - known

    def look(self, item: int, image: NDArray[np.uint8]) -> None:
        """Look at the image of one item. An image on which the model fails is an error of that item alone."""
        classes = self._classes[item]
        if not len(classes):
            return
        if self._unknown and (unknown := [c for c in classes.tolist() if c in self._unknown]):
            self._fail(item, self._unknown[unknown[0]])
            return
        try:
            for job in self._proposer.jobs(item, image, classes, self._options, self._clock):
                if item in self._errors:
                    return
                self._wait(job)
        except ModelError as exc:  # of its preparation: running fails nothing here
            self._fail(item, exc.message)

    def _wait(self, job: Job) -> None:
        waiting = self._waiting.setdefault(job.shapes, [])
        waiting.append(job)
        if len(waiting) >= self._proposer.spec.batch:
            self._run(job.shapes)
        elif sum(map(len, self._waiting.values())) > 2 * self._proposer.spec.batch:
            self._run(max(self._waiting, key=lambda shapes: len(self._waiting[shapes])))

    def boxes(self) -> RawBoxes:
        """Everything found, of all images looked at, in their order and that of their windows."""
        for shapes in list(self._waiting):
            self._run(shapes)
        places = sorted(place for place in self._found if place[0] not in self._errors)
        found = [self._found[place] for place in places] or [NOTHING]
        targets = [self._targets[item][self._found[item, number].request] for item, number in places]
        saturated = np.zeros(len(self._batch), np.bool_)
        saturated[[item for item, number in places if self._found[item, number].saturated]] = True
        return RawBoxes(
            segment=np.concatenate([np.zeros(0, np.int64), *targets]),
            boxes=np.concatenate([candidates.boxes for candidates in found]),
            scores=np.concatenate([candidates.scores for candidates in found]),
            errors=[self._errors.get(i, error) for i, error in enumerate(self._batch.errors)],
            saturated=saturated,
        )

    def _run(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        jobs = self._waiting.pop(shapes)
        for job, answer in zip(jobs, self._proposer.run(jobs, self._options, self._clock), strict=True):
            if isinstance(answer, ModelError):
                self._fail(job.place[0], answer.message)
            else:
                self._found[job.place] = answer

    def _fail(self, item: int, why: str) -> None:
        self._errors.setdefault(item, f"{self.name}: {why}")


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
