"""Read, detect, score: one batch of items at a time, whoever drives it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.batch import ItemBatch, Targets, batch_of
from tallymill.engine.clock import StageClock
from tallymill.engine.detectors.base import DetectorSpec
from tallymill.engine.images import decode
from tallymill.engine.numbench.scores import ScorePlan, score_batch
from tallymill.engine.proposals import Proposals
from tallymill.engine.proposer import DetectOptions, Proposer, retained
from tallymill.engine.sources import ImageReader, image_hash
from tallymill.errors import ImageError

# Images are held decoded: 16 of 1024 x 1024 are 50 MB. Items without pixels cost only their columns.
BATCH_IMAGES, BATCH_ROWS = 16, 1024


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
        """Items in batches, with pixels where one of the named ``detectors`` looks at them.

        Where none does but another of the ensemble did, the bytes are read for their hash alone. While one batch is
        being detected, a thread reads the bytes of the next.
        """
        looking = [p.spec.name for p in self.proposers if p.spec.needs_pixels]
        if not looking:
            yield from map(batch_of, _sized(rows, BATCH_ROWS))
            return
        pixels = any(name in detectors for name in looking)
        with ThreadPoolExecutor(1) as ahead:
            pending = None
            for batch in map(batch_of, _sized(rows, BATCH_IMAGES)):
                ready, pending = pending, (batch, ahead.submit(self._fetch, batch))
                if ready is not None:
                    yield self._filled(ready[0], ready[1], pixels)
            if pending is not None:
                yield self._filled(pending[0], pending[1], pixels)

    def detect(self, batch: ItemBatch, detectors: Collection[str]) -> dict[str, Proposals]:
        """Retained boxes of the named detectors, by name. Pixels are let go afterwards."""
        found = {}
        for proposer in self.proposers:
            if proposer.spec.name not in detectors:
                continue
            classes = class_of_targets(proposer.spec, batch.targets)
            raw = proposer.propose(batch, classes, self.options, self.clock)
            with self.clock("nms"):
                found[proposer.spec.name] = retained(batch, classes, raw, self.options)
        batch.images = [None] * len(batch)
        return found

    def score(self, batch: ItemBatch, proposals: Mapping[str, Proposals]) -> pa.RecordBatch:
        """One scores row an item (see ``score_batch``)."""
        with self.clock("score"):
            return score_batch(batch, [proposals[name] for name in self.plan.detectors], self.plan)

    def _fetch(self, batch: ItemBatch) -> list[bytes | ImageError]:
        wanted = [i for i in range(len(batch)) if batch.errors[i] is None]
        references = batch.rows.column("image")
        return self.reader.read_many([references[i].as_py() for i in wanted])

    def _filled(self, batch: ItemBatch, fetched: Future[list[bytes | ImageError]], pixels: bool) -> ItemBatch:
        """The batch with hashes and, if asked, decoded images; an image that cannot be read is an error of its item."""
        with self.clock("read"):
            answers = fetched.result()
        wanted = [i for i in range(len(batch)) if batch.errors[i] is None]
        with self.clock("decode"):
            for i, data in zip(wanted, answers, strict=True):
                try:
                    if isinstance(data, ImageError):
                        raise data
                    batch.hashes[i] = image_hash(data)
                    if pixels:
                        image = decode(data, max_pixels=self.max_pixels)
                        batch.images[i], batch.sizes[i] = image, image.shape[:2]
                except ImageError as exc:
                    if pixels:  # otherwise the stored proposals say how the image was found when it was looked at
                        batch.errors[i] = f"image: {exc.message}"
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
