"""Read, detect, score: one batch of items at a time, whoever drives it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.arrays import Array, Picture
from tallymill.engine.batch import ItemBatch, Targets, batch_of
from tallymill.engine.clock import StageClock
from tallymill.engine.decoders.base import Decoder, HostDecoder
from tallymill.engine.detectors.base import DetectorSpec
from tallymill.engine.gathering import Gathering
from tallymill.engine.numbench.scores import ScorePlan, score_batch
from tallymill.engine.proposals import Proposals
from tallymill.engine.proposer import DetectOptions, Proposer, WindowProposer
from tallymill.engine.retained import retained
from tallymill.engine.sources.reader import ImageReader, image_hash
from tallymill.errors import ImageError

# Of an image in a batch only the bytes of its file are held; items without pixels cost no more than their columns.
BATCH_IMAGES, BATCH_BYTES, READ_AT_ONCE, BATCH_ROWS = 64, 64 << 20, 8, 1024

Report = Callable[[int, int], None]


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
    decoder: Decoder = field(default_factory=HostDecoder)

    def read(self, rows: Iterable[pa.RecordBatch], detectors: Collection[str]) -> Iterator[ItemBatch]:
        """Items in batches, with the bytes of their images where one of the named ``detectors`` looks at pixels.

        While one batch is being detected, a thread reads and hashes the bytes of the next.
        """
        if not any(p.spec.needs_pixels for p in self.proposers if p.spec.name in detectors):
            yield from map(batch_of, _sized(rows, BATCH_ROWS))
            return
        batches = self._fetched(rows)
        ahead = ThreadPoolExecutor(1)
        try:
            pending = ahead.submit(next, batches, None)
            while True:
                with self.clock("read"):
                    batch = pending.result()
                if batch is None:
                    return
                pending = ahead.submit(next, batches, None)
                yield batch
        finally:
            ahead.shutdown(wait=False, cancel_futures=True)

    def detect(self, batch: ItemBatch, detectors: Collection[str], report: Report = _silent) -> dict[str, Proposals]:
        """Retained boxes of the named detectors, by name; ``report(n, 0)`` as each n items have been looked at.

        One image is held decoded at a time, or as many as the decoder takes at once; all detectors look at each.
        """
        asked = [p for p in self.proposers if p.spec.name in detectors]
        classes = {p.spec.name: class_of_targets(p.spec, batch.targets) for p in asked}
        looking = [
            Gathering(p, batch, classes[p.spec.name], self.options, self.clock)
            for p in asked
            if isinstance(p, WindowProposer)
        ]
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
        for first in range(0, len(batch), self.decoder.at_once):
            items = range(first, min(first + self.decoder.at_once, len(batch)))
            pictures = self._decoded(batch, items)
            for i in items:
                picture = pictures.pop(i, None)
                if picture is not None:
                    for gathering in gatherings:
                        gathering.look(i, picture.at(gathering.place))
                report(1, 0)

    def _decoded(self, batch: ItemBatch, items: Iterable[int]) -> dict[int, Picture]:
        """The pictures of these items, whose bytes are let go; none of one that has no bytes, or an error, noted."""
        found: dict[int, Array | ImageError] = {}
        files: dict[int, bytes] = {}
        for i in items:
            content, batch.contents[i] = batch.contents[i], None
            if content is None or batch.errors[i] is not None:
                continue
            if isinstance(content, bytes):
                files[i] = content
            else:
                found[i] = content
        if files:
            with self.clock("decode"):
                found |= zip(files, self.decoder.decode(list(files.values()), self.max_pixels), strict=True)
        pictures = {}
        for i, image in found.items():
            if isinstance(image, ImageError):
                batch.errors[i] = f"image: {image.message}"
            else:
                pictures[i] = Picture(image)
                batch.sizes[i] = pictures[i].size
        return pictures

    def score(self, batch: ItemBatch, proposals: Mapping[str, Proposals]) -> pa.RecordBatch:
        """One scores row an item (see ``score_batch``)."""
        with self.clock("score"):
            return score_batch(batch, [proposals[name] for name in self.plan.detectors], self.plan)

    def _fetched(self, rows: Iterable[pa.RecordBatch]) -> Iterator[ItemBatch]:
        """Batches of at most ``BATCH_IMAGES`` items, fewer where their files are large."""
        for block in _sized(rows, BATCH_IMAGES):
            start = 0
            while start < block.num_rows:
                batch = self._fetch(block.slice(start))
                start += len(batch)
                yield batch

    def _fetch(self, rows: pa.RecordBatch) -> ItemBatch:
        """The first of these items with their bytes, as many as ``BATCH_BYTES`` allow (and at least some)."""
        references = rows.column("image").to_pylist()
        errors = batch_of(rows).errors
        answers: list[bytes | ImageError | None] = []
        held = 0
        while len(answers) < len(references) and held < BATCH_BYTES:
            group = range(len(answers), min(len(answers) + READ_AT_ONCE, len(references)))
            wanted = [i for i in group if errors[i] is None]
            read = dict(zip(wanted, self.reader.read_many([references[i] for i in wanted]), strict=True))
            answers += [read.get(i) for i in group]
            held += sum(len(answer) for answer in read.values() if isinstance(answer, bytes))
        batch = batch_of(rows.slice(0, len(answers)))
        for i, answer in enumerate(answers):
            if isinstance(answer, ImageError):
                # The row names the image; without it the same fault reads the same in every row.
                batch.errors[i] = f"image: {answer.message.removeprefix(f'{references[i]}: ')}"
            elif answer is not None:
                batch.contents[i], batch.hashes[i] = answer, image_hash(answer)
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
