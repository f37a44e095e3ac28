"""From decoded images to the raw boxes of one detector: windows, prepared, run in batches and read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.arrays import Array, beside
from tallymill.engine.batch import ItemBatch
from tallymill.engine.clock import StageClock
from tallymill.engine.detectors.base import NOTHING, Detector, DetectorSpec, Found
from tallymill.engine.sessions.base import stack
from tallymill.engine.slicing import Window, inner, inside, windows
from tallymill.errors import ModelError


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
    """Boxes before NMS, arrays or tensors of one device: ``boxes`` float32 [P, 4] xyxy in pixels, ``scores`` float32
    [P], and ``segment`` int64 [P], the flat target of each; ``errors`` and ``saturated`` are per item.
    """

    segment: Array
    boxes: Array
    scores: Array
    errors: list[str | None]
    saturated: NDArray[np.bool_]


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


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a model: its jobs, and what was found in the window of each."""

    jobs: Sequence[Job]
    found: Found


class WindowProposer:
    """Runs an image detector over the windows of images.

    ``place`` is the device on which it takes images, as tensors, or None where it takes arrays: by default the device
    of its session, if that is a card and the detector prepares images there.
    """

    def __init__(self, detector: Detector, *, place: str | None = None) -> None:
        self.detector = detector
        self.spec = detector.spec
        self.place = place
        if place is None and detector.tensors and detector.device != "cpu":
            self.place = detector.device

    def jobs(
        self, item: int, image: Array, classes: NDArray[np.int64], options: DetectOptions, clock: StageClock
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

    def run(self, jobs: Sequence[Job], options: DetectOptions, clock: StageClock) -> list[Run]:
        """Answers to jobs of equal shapes, in image pixels, whole objects only.

        A batch on which the model fails is tried again one by one, so that an image fails by its own fault alone. What
        is no image's fault is raised: ``DeviceError`` and ``OpenError``.
        """
        asked = [job.classes for job in jobs]
        try:
            with clock("model"):
                outputs = self.detector.run_for_boxes(stack([job.inputs for job in jobs]), asked)
            with clock("boxes"):
                sizes = [(job.window.bottom - job.window.top, job.window.right - job.window.left) for job in jobs]
                found = self.detector.read(outputs, sizes, asked, options.floor)
                return [Run(jobs, _in_image(found, jobs, options.window_edge))]
        except ModelError as exc:
            if len(jobs) == 1:
                return [Run(jobs, failed(exc.message))]
            return [run for job in jobs for run in self.run([job], options, clock)]


Proposer = BlindProposer | WindowProposer


def failed(why: str) -> Found:
    """What is found in a single window where the model fails."""
    no = np.zeros(1, np.bool_)
    return Found(NOTHING.boxes, NOTHING.scores, NOTHING.request, no, ~no, {0: why})


def _in_image(found: Found, jobs: Sequence[Job], edge: float) -> Found:
    """Boxes in pixels of the images, without those that an inner edge of their window cuts."""
    if all(job.window == (0, 0, *job.image_size) for job in jobs):
        return found
    rows = np.array([[*inner(job.window, *job.image_size, edge), job.window.left, job.window.top] for job in jobs])
    of_request = rows.astype(np.float32).repeat([len(job.classes) for job in jobs], axis=0)
    of_box = beside(of_request, found.boxes)[found.request]
    keep = inside(found.boxes, of_box[:, :4])
    origin = of_box[keep][:, [4, 5, 4, 5]]
    return replace(found, boxes=found.boxes[keep] + origin, scores=found.scores[keep], request=found.request[keep])
