"""Read, detect, score: one batch of items at a time, whoever drives it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.batch import ItemBatch, Targets, batch_of
from tallymill.engine.clock import StageClock
from tallymill.engine.detectors.base import DetectorSpec
from tallymill.engine.images import decode
from tallymill.engine.numbench.scores import ScorePlan, score_batch
from tallymill.engine.proposals import Proposals
from tallymill.engine.proposer import DetectOptions, Gathering, Proposer, WindowProposer, retained
from tallymill.engine.sources import ImageReader, image_hash
from tallymill.errors import ImageError

# Of an image in a batch only the bytes of its file are held; items without pixels cost no more than their columns.
BATCH_IMAGES, BATCH_ROWS = 64, 1024

Report = Callable[[int, int], None]


class Fetched(NamedTuple):
    """What reading the image of an item gave: its bytes and their hash, or why it cannot be read."""

    item: int
    data: bytes | ImageError
    digest: str | None


def _silent(_items: int, _failed: int) -> None:
    pass


@dataclass(slots=True)
class Pipeline:
    """The detectors of one worker and everything that shapes their numbers."""

    proposers: Sequence[Proposer]
    plan: ScorePlan
    options: DetectOptions
    reader: ImageReader
    max_pixels: int
    clock: StageClock

    def read(self, rows: Iterable[pa.RecordBatch], detectors: Collection[str]) -> Iterator[ItemBatch]:
        """Items in batches, with the bytes of their images where a detector of the ensemble looks at pixels.

        Where none of the named ``detectors`` does, the bytes are read for their hash alone. While one batch is being
        detected, a thread reads and hashes the bytes of the next.
        """
        looking = [p.spec.name for p in self.proposers if p.spec.needs_pixels]
        if not looking:
            yield from map(batch_of, _sized(rows, BATCH_ROWS))
            return
        wanted = any(name in detectors for name in looking)
        with ThreadPoolExecutor(1) as ahead:
            pending = None
            for batch in map(batch_of, _sized(rows, BATCH_IMAGES)):
                ready, pending = pending, (batch, ahead.submit(self._fetch, batch))
                if ready is not None:
                    yield self._filled(ready[0], ready[1], wanted)
            if pending is not None:
                yield self._filled(pending[0], pending[1], wanted)

    def detect(self, batch: ItemBatch, detectors: Collection[str], report: Report = _silent) -> dict[str, Proposals]:
        """Retained boxes of the named detectors, by name; ``report(n, 0)`` as each n items have been looked at.

        One image is held decoded at a time, and all detectors look at it before the next.
        """
        asked = [p for p in self.proposers if p.spec.name in detectors]
        classes = {p.spec.name: class_of_targets(p.spec, batch.targets) for p in asked}
        looking = [Gathering(p, batch, classes[p.spec.name]) for p in asked if isinstance(p, WindowProposer)]
        if looking:
            self._look(batch, looking, report)
        else:
            report(len(batch), 0)
        raw = {gathering.name: gathering.boxes() for gathering in looking}
        for p in asked:
            if not isinstance(p, WindowProposer):
                raw[p.spec.name] = p.propose(batch, classes[p.spec.name], self.options, self.clock)
        with self.clock("nms"):
            return {name: retained(batch, classes[name], boxes, self.options) for name, boxes in raw.items()}

    def _look(self, batch: ItemBatch, gatherings: Sequence[Gathering], report: Report) -> None:
        for i in range(len(batch)):
            image = self._decoded(batch, i)
            if image is not None:
                for gathering in gatherings:
                    gathering.look(i, image, self.options, self.clock)
            report(1, 0)

    def _decoded(self, batch: ItemBatch, item: int) -> NDArray[np.uint8] | None:
        """The pixels of one item, whose bytes are let go; None when it has none, or an error that is noted."""
        content, batch.contents[item] = batch.contents[item], None
        if content is None or batch.errors[item] is not None:
            return None
        try:
            with self.clock("decode"):
                image = content if isinstance(content, np.ndarray) else decode(content, max_pixels=self.max_pixels)
        except ImageError as exc:
            batch.errors[item] = f"image: {exc.message}"
            return None
        batch.sizes[item] = image.shape[:2]
        return image

    def score(self, batch: ItemBatch, proposals: Mapping[str, Proposals]) -> pa.RecordBatch:
        """One scores row an item (see ``score_batch``)."""
        with self.clock("score"):
            return score_batch(batch, [proposals[name] for name in self.plan.detectors], self.plan)

    def _fetch(self, batch: ItemBatch) -> list[Fetched]:
        """Bytes and hash of every item without an error, in order."""
        references = batch.rows.column("image")
        wanted = [i for i in range(len(batch)) if batch.errors[i] is None]
        answers = self.reader.read_many([references[i].as_py() for i in wanted])
        hashes = [None if isinstance(data, ImageError) else image_hash(data) for data in answers]
        return list(map(Fetched, wanted, answers, hashes))

    def _filled(self, batch: ItemBatch, fetched: Future[list[Fetched]], wanted: bool) -> ItemBatch:
        """The batch with hashes and, if ``wanted``, contents; what cannot be read is an error of its item."""
        with self.clock("read"):
            answers = fetched.result()
        for item, data, digest in answers:
            batch.hashes[item] = digest
            if not wanted:  # the stored proposals say how the image was found when it was looked at
                continue
            if isinstance(data, ImageError):
                batch.errors[item] = f"image: {data.message}"
            else:
                batch.contents[item] = data
        return batch


def class_of_targets(spec: DetectorSpec, targets: Targets) -> NDArray[np.int64]:
    """The detector's class for each flat target, -1 where it has none: int64 [T].

    Two targets of one item that fall on the same class cannot be told apart, so the detector covers neither.
    """
    if spec.open_vocabulary:
        return targets.codes.copy()
    by_code = [None if category is None else spec.class_of(category) for category in targets.categories]
    classes = np.array([-1 if k is None else k for k in by_code], np.int64)[targets.codes]
    covered = np.flatnonzero(classes >= 0)
    key = targets.item[covered] * (len(spec.labels) + 1) + classes[covered]
    _, inverse, times = np.unique(key, return_inverse=True, return_counts=True)
    classes[covered[times[inverse] > 1]] = -1
    return classes


def _sized(rows: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    for block in rows:
        for start in range(0, block.num_rows, size):
            yield block.slice(start, size)
