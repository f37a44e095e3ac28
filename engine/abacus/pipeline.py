"""Edits to evidence, a batch at a time: read, segment, match, clean, confirm, crop, and look at the rest of the scene.

Models see the images of all edits of a batch together; an image that stands in several is decoded and segmented once.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from tallymill.engine.abacus.clean import clean
from tallymill.engine.abacus.confirm import votes
from tallymill.engine.abacus.consistency import Consistency, background, consistency
from tallymill.engine.abacus.data import EDITED, SOURCE, Edit, Instances
from tallymill.engine.abacus.evidence import EVIDENCE, Branch, evidence_row
from tallymill.engine.abacus.instructions import ADD, REMOVE
from tallymill.engine.abacus.match import match, moved, of_crowds, repaired
from tallymill.engine.abacus.models import Look, Models
from tallymill.engine.abacus.panoptic import Panoptic, Truth, canonical
from tallymill.engine.abacus.resolve import crop
from tallymill.engine.abacus.settings import EditSettings
from tallymill.engine.clock import StageClock
from tallymill.engine.images import decode
from tallymill.engine.sources.reader import ImageReader, image_hash
from tallymill.engine.words import counted
from tallymill.errors import ImageError, ModelError

RGB = NDArray[np.uint8]
# Edits of a batch, and the pixels after which no more are added to it.
BATCH_EDITS, BATCH_PIXELS = 16, 64 << 20
Report = Callable[[int, int], None]


@dataclass(slots=True)
class Case:
    """One edit on its way. ``pixels`` by image, ``untouched`` where they are equal; ``known`` are columns of its
    evidence; ``error`` ends it.
    """

    edit: Edit
    row: dict[str, Any]
    error: str | None
    pixels: dict[str, RGB] = field(default_factory=dict)
    untouched: bool = False
    known: dict[str, Any] = field(default_factory=dict)
    truth: Truth | None = None
    branches: list[Branch] = field(default_factory=list)
    flow: NDArray[np.float32] | None = None
    scene: Consistency | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the source, and so of both."""
        height, width = self.pixels[SOURCE].shape[:2]
        return height, width

    def key(self, image: str) -> str:
        """Equal only for images of equal pixels."""
        return f"{self.known[f'{SOURCE if self.untouched else image}_hash']} {self.size}"


@dataclass(slots=True)
class EditPipeline:
    """The models of one worker and everything that shapes the evidence."""

    models: Models
    settings: EditSettings
    reader: ImageReader
    panoptic: Panoptic | None
    clock: StageClock

    def batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[list[Case]]:
        """Edits with their images, as many together as are held at once: those of one source, where they follow one
        another, in one batch if a batch can hold them.
        """
        waiting: list[Case] = []
        held = 0
        decoded: dict[str, tuple[RGB, str] | ImageError] = {}
        for _, group in groupby((row for block in rows for row in block.to_pylist()), itemgetter("source")):
            own = list(group)
            if waiting and len(waiting) + len(own) > BATCH_EDITS:
                yield waiting
                waiting, held, decoded = [], 0, {}
            for row in own:
                case = self._case(row, decoded)
                waiting.append(case)
                held += sum(pixels.size // 3 for pixels in case.pixels.values())
                if len(waiting) >= BATCH_EDITS or held >= BATCH_PIXELS:
                    yield waiting
                    waiting, held, decoded = [], 0, {}
        if waiting:
            yield waiting

    def evidence(self, cases: Sequence[Case]) -> pa.RecordBatch:
        """A row of evidence an edit. What goes wrong with one is an error of that one alone."""
        self._segment(cases)
        for case in _going(cases):
            self._match(case)
        self._confirm(cases)
        for case in _going(cases):
            with self.clock("consistency"):
                case.scene = self._scene(case)
        rows = [evidence_row(c.row, c.known, c.branches, c.scene, c.error) for c in cases]
        return pa.RecordBatch.from_pylist(rows, schema=EVIDENCE)

    def _case(self, row: dict[str, Any], decoded: dict[str, tuple[RGB, str] | ImageError]) -> Case:
        case = Case(Edit.of(row), row, row["error"])
        if case.error is None:
            case.error = self.models.unknown(case.edit.categories)
        if case.error is not None:
            return case
        for image in (SOURCE, EDITED):
            reference = getattr(case.edit, image)
            if reference not in decoded:
                decoded[reference] = self._decoded(reference)
            found = decoded[reference]
            if isinstance(found, ImageError):
                case.error = f"{image}: {found.message.removeprefix(f'{reference}: ')}"
                case.pixels.clear()
                return case
            case.pixels[image], case.known[f"{image}_hash"] = found
        _fit(case)
        if self.panoptic is not None:
            case.error = self._annotate(case, self.panoptic)
        case.known["annotated"] = case.truth is not None
        return case

    def _decoded(self, reference: str) -> tuple[RGB, str] | ImageError:
        try:
            with self.clock("read"):
                data = self.reader.read(reference)
            with self.clock("decode"):
                return decode(data, max_pixels=self.settings.max_pixels), image_hash(data)
        except ImageError as exc:
            return exc

    def _annotate(self, case: Case, panoptic: Panoptic) -> str | None:
        annotation = panoptic.of(case.edit.source, case.edit.image_id)
        if annotation is None:
            named = case.edit.image_id is not None
            return f"ground truth: {panoptic.path.name} has no image_id {case.edit.image_id}" if named else None
        names = {category: canonical(category) for category in case.edit.categories}
        try:
            with self.clock("annotations"):
                case.truth = panoptic.read(annotation, names, case.size)
        except ImageError as exc:
            return f"ground truth: {exc.message}"
        case.known["crowd"] = case.truth.crowd
        return None

    def _segment(self, cases: Sequence[Case]) -> None:
        """The instances of both images of every edit."""
        looks: dict[str, tuple[RGB, dict[str, None]]] = {}
        for case in _going(cases):
            for image in (SOURCE, EDITED):
                _, wanted = looks.setdefault(case.key(image), (case.pixels[image], {}))
                wanted |= dict.fromkeys(case.edit.categories)
        asked: list[Look] = [(pixels, tuple(wanted)) for pixels, wanted in looks.values()]
        answers = dict(zip(looks, self.models.segmenter.segment(asked, self.clock), strict=True))
        for case in _going(cases):
            found = {image: answers[case.key(image)] for image in (SOURCE, EDITED)}
            wrong = next(((image, why) for image, why in found.items() if isinstance(why, str)), None)
            if wrong is not None:
                case.error = f"{wrong[0]}: {wrong[1]}"
                continue
            source, edited = found[SOURCE], found[EDITED]
            assert isinstance(source, dict)
            assert isinstance(edited, dict)
            with self.clock("match"):
                self._gather(case, source, edited)

    def _gather(self, case: Case, source: dict[str, Instances], edited: dict[str, Instances]) -> None:
        """Annotated and segmented instances of the source together; too few of them to remove or change is an error."""
        for category in case.edit.categories:
            nobody = Instances.none(*case.size)
            truth = nobody if case.truth is None else case.truth.instances[category]
            crowds = nobody.masks if case.truth is None else case.truth.crowds[category]
            if not self.models.segmenter.masks:
                truth = truth.as_boxes()
            originals = repaired(truth, source[category], self.settings.repair_iou)
            aside = of_crowds(originals.masks, np.arange(len(originals)) >= len(truth), crowds)
            ignored, originals = {SOURCE: originals.masks[aside]}, originals.only(~aside)
            nothing = match(originals.masks, edited[category].masks[:0], None, 1.0)
            case.branches.append(Branch(category, originals, edited[category], nothing, crowds, ignored))
        there = len(case.branches[0].source)
        if case.edit.operation != ADD and there < case.edit.count:
            kind = case.edit.category
            case.error = f"count: {case.edit.operation} {case.edit.count} of {counted(there, kind, kind)} in the source"

    def _match(self, case: Case) -> None:
        if not case.untouched:
            try:
                with self.clock("flow"):
                    case.flow = self.models.flow.flow(case.pixels[EDITED], case.pixels[SOURCE])
            except ModelError as exc:
                case.error = f"flow: {exc.message}"
                return
        with self.clock("match"):
            for branch in case.branches:
                found = match(branch.source.masks, branch.edited.masks, case.flow, self.settings.match_iou)
                crowds = branch.crowds if case.flow is None else moved(branch.crowds, case.flow)
                aside = of_crowds(branch.edited.masks, found.back(len(branch.edited)) < 0, crowds)
                branch.ignored[EDITED], branch.edited = branch.edited.masks[aside], branch.edited.only(~aside)
                branch.matching = found.without(aside)

    def _confirm(self, cases: Sequence[Case]) -> None:
        """Both detectors look at the clean images of all edits; what not both confirm is cropped for a question."""
        tasks = [task for case in _going(cases) for task in _tasks(case)]
        images = []
        for case, branch, image in tasks:
            with self.clock("clean"):
                images.append(self._clean(case, branch, image))
        looks: list[Look] = [(pixels, (branch.category,)) for pixels, (_, branch, _) in zip(images, tasks, strict=True)]
        seen = [detector.look(looks, self.clock) for detector in self.models.confirmers]
        for place, ((case, branch, image), pixels) in enumerate(zip(tasks, images, strict=True)):
            places = branch.candidates(image)
            boxes = branch.of(image).boxes[places]
            cast = []
            for answers in seen:
                answer = answers[place]
                if isinstance(answer, str):
                    case.error = f"{image}: {answer}"
                    break
                found, own = answer[branch.category], self.settings
                cast.append(votes(boxes, found.boxes, found.confidence, own.confirm_confidence, own.confirm_iou))
            if case.error is None:
                branch.votes[image] = places, np.stack(cast, axis=1)
                self._crop(branch, image, pixels)

    def _clean(self, case: Case, branch: Branch, image: str) -> RGB:
        masks = branch.of(image).masks
        kept, candidates = masks[branch.preserved(image)], masks[branch.candidates(image)]
        return clean(case.pixels[image], kept, candidates, self.settings.erase_margin, self.settings.erase_radius)

    def _crop(self, branch: Branch, image: str, pixels: RGB) -> None:
        places, cast = branch.votes[image]
        for place in places[~cast.all(axis=1)].tolist():
            with self.clock("crop"):
                box = branch.of(image).boxes[place]
                part = crop(pixels, box, self.settings.crop_scale, self.settings.crop_side, self.models.upscaler)
                branch.crops[image, place] = _png(part.pixels), part.fault

    def _scene(self, case: Case) -> Consistency:
        masks = [masks for branch in case.branches for masks in branch.covers]
        instances = (each[k].to_arrays()[0] for each in masks for k in range(len(each)))  # one [H, W] at a time
        free = background(*case.size, instances, self.settings.margin)
        flow = np.zeros((*case.size, 2), np.float32) if case.flow is None else case.flow
        return consistency(case.pixels[SOURCE], case.pixels[EDITED], flow, free)


def _going(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if case.error is None]


def _tasks(case: Case) -> Iterator[tuple[Case, Branch, str]]:
    """What has to be confirmed: what is gone where instances should go, what is new where they should come, and what
    was painted where they should go.
    """
    for branch in case.branches:
        gone, come = case.edit.takes_away(branch.category), case.edit.brings(branch.category)
        wanted = {SOURCE: gone, EDITED: come or case.edit.operation == REMOVE}
        for image, asked in wanted.items():
            if asked and len(branch.candidates(image)):
                yield case, branch, image


def _fit(case: Case) -> None:
    """Bring the edited image to the size of the source, and note both."""
    source, edited = case.pixels[SOURCE], case.pixels[EDITED]
    case.known |= {
        "height": source.shape[0],
        "width": source.shape[1],
        "edited_height": edited.shape[0],
        "edited_width": edited.shape[1],
        "resized": source.shape != edited.shape,
    }
    if source.shape != edited.shape:
        shrinks = edited.shape[0] * edited.shape[1] > source.shape[0] * source.shape[1]
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        case.pixels[EDITED] = np.asarray(cv2.resize(edited, source.shape[1::-1], interpolation=how), np.uint8)
    case.untouched = np.array_equal(source, case.pixels[EDITED])


def _png(pixels: RGB) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
