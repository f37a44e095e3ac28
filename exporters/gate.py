"""The acceptance gate: an exported graph is compared with the model that it was made from before it is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.base import Candidates, Detector
from tallymill.engine.detectors.buckets import Size
from tallymill.engine.detectors.closed import Closed
from tallymill.engine.ensemble import open_detector
from tallymill.engine.sessions.base import Array, Session, stack
from tallymill.exporters.pairing import Bounds, apart
from tallymill.exporters.recipes.parts import ArrayOriginal, Loaded, Part

TOLERANCE = 1e-3  # of an output that the recipe names no other for
SMALL = ((240, 320), (300, 200), (64, 64))  # height, width; of a model that takes all shapes
PICTURES = (*SMALL, (1024, 1024), (1500, 900))  # of one that resizes what it takes: some are made smaller too
_FILL = -1e4  # stands for -inf: logits of what is masked
EXACT = Bounds()


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison: the largest difference of an output, how much is borne, and how many numbers, or boxes, were
    ``compared``.
    """

    part: str
    check: str
    output: str
    difference: float
    tolerance: float
    compared: int

    @property
    def passed(self) -> bool:
        """False also for NaN, and where nothing was compared."""
        return self.compared > 0 and self.difference <= self.tolerance

    def __str__(self) -> str:
        verdict = "" if self.passed else "  <-- refused"
        if not self.compared:
            return f"{self.part}, {self.check}: {self.output}: nothing was compared{verdict}"
        bound = f"{self.difference:.2g} (at most {self.tolerance:.2g})"
        return f"{self.part}, {self.check}: {self.output} differs by {bound}{verdict}"


def cores() -> int:
    """The gate has nothing to do beside what it runs, so that this may have every core."""
    return len(os.sched_getaffinity(0))


def in_short(findings: Sequence[Finding]) -> str:
    """How many comparisons passed, and the one nearest to its bound, for a person."""
    passed = [finding for finding in findings if finding.passed]
    nearest = max(passed, key=lambda finding: finding.difference / finding.tolerance if finding.tolerance else 0.0)
    numbers = sum(finding.compared for finding in passed)
    return f"{len(passed)} comparisons of {numbers:,} numbers and boxes passed; nearest to its bound: {nearest}"


def examine(name: str, part: Part, session: Session) -> list[Finding]:
    """Everything that the gate finds out about one part: against torch at each batch size, then slot by slot."""
    findings = []
    for batch in part.batches:
        inputs = part.vary(batch, batch)
        found = session.run(inputs)
        findings += _compare(name, f"batch of {batch} against torch", part, found, reference(part, inputs, found))
    return findings + _slots(name, part, session.run)


def examine_bundle(loaded: Loaded, bundle: Bundle, bounds: Bounds = EXACT) -> list[Finding]:
    """The whole model of a bundle, from pixels to what it is asked for, against the original."""
    if isinstance(loaded.original, ArrayOriginal):
        tolerance = loaded.original.half if bounds.half else loaded.original.tolerance
        return examine_arrays(
            loaded.original, loaded.original.open(bundle), loaded.pictures or SMALL, tolerance=tolerance
        )
    from tallymill.exporters.masks import examine_masks  # which says what it finds in the terms of this module

    detector = open_detector(bundle, bundle.name)
    return examine_whole(loaded, detector, bounds) + examine_masks(loaded, detector, bounds)


def examine_arrays(
    original: ArrayOriginal, model: Callable[..., Array], sizes: Sequence[Size], *, tolerance: float
) -> list[Finding]:
    """A model whose answer is an array against the original, on drawn pictures: each further one of a size is the
    first, moved.
    """
    findings = []
    for size in sizes:
        first = draw(*size)
        pictures = [np.roll(first, (3 * place, -2 * place), (0, 1)) for place in range(original.images)]
        check = f"picture of {size[1]}x{size[0]} against the original"
        wanted = original.answer(*pictures)
        off = difference(model(*pictures), wanted)
        findings.append(Finding("whole", check, original.output, off, tolerance, wanted.size))
    return findings


def examine_whole(loaded: Loaded, detector: Detector, bounds: Bounds = EXACT) -> list[Finding]:
    """The detector from pixels to boxes against the original, on drawn pictures of several shapes and sizes, and on
    photographs where there are any.

    Of each category the most confident boxes have partners within the bounds, theirs among ours and ours among theirs
    (see ``pairing.apart``), however low the confidences; and there are as many at .5, where hard counts are made. A
    category of which neither has a box is no finding; that nothing at all was compared is one that is refused.

    In halves near equals would lose the last places of those that keep the best pairs over all classes, so that there
    all pairs of query and class are compared (``Loaded.in_halves``); which are kept is seen in float32.
    """
    if isinstance(loaded.original, ArrayOriginal):
        raise TypeError(f"{loaded.family} is no family of detectors")
    detector.learn(loaded.categories)
    classes = np.arange(len(loaded.categories))
    if not detector.spec.open_vocabulary:
        classes = np.array([detector.spec.class_of(name) for name in loaded.categories], np.int64)
    if bounds.half and isinstance(detector, Closed):
        detector.top = sys.maxsize
    findings: list[Finding] = []
    for name, picture in _pictures(loaded):
        found, wanted = _answers(loaded, detector, picture, classes, bounds)
        for place, answer in enumerate(wanted):
            mine = found.request == place
            check = f"{name}, {loaded.categories[place]!r} against the original"
            findings += _whole(check, (found.boxes[mine], found.scores[mine]), answer, bounds.of(*picture.shape[:2]))
    if not findings:
        check = "all pictures against the original"
        findings.append(Finding("whole", check, "boxes (pixels)", float("inf"), bounds.box, 0))
    return findings


def _pictures(loaded: Loaded) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """What to call them, and what to look at."""
    for height, width in loaded.pictures or PICTURES:
        yield f"picture of {width}x{height}", draw(height, width)
    for name, photograph in loaded.photographs.items():
        yield f"photograph {name}", photograph


def _answers(
    loaded: Loaded, detector: Detector, picture: NDArray[np.uint8], classes: NDArray[np.int64], bounds: Bounds
) -> tuple[Candidates, list[tuple[Array, Array]]]:
    """All boxes of the detector, and of each category those of the original, after the same choices if it has any."""
    size = (picture.shape[0], picture.shape[1])
    outputs = detector.run(stack([detector.preprocess(picture)]), [classes])
    found = detector.decode(outputs, 0, size, classes, 0.0)
    following = (loaded.in_halves if bounds.half else None) or loaded.following
    if following is not None:
        return found, following(picture, loaded.categories, outputs)
    if isinstance(loaded.original, ArrayOriginal):
        raise TypeError(f"{loaded.family} is no family of detectors")
    return found, loaded.original(picture, loaded.categories)


def _whole(
    check: str,
    found: tuple[Array, Array],
    wanted: tuple[Array, Array],
    bounds: Bounds,
) -> list[Finding]:
    """How far the boxes of one category are from those of the original, and how the counts at .5 differ; nothing where
    there is nothing on either side.
    """
    off = apart(found, wanted, bounds)
    # A confidence within the tolerance of one half may fall on either side.
    least, most = ((found[1] >= 0.5 + side * bounds.score).sum() for side in (1, -1))
    count = (wanted[1] >= 0.5).sum()
    measured = (
        ("boxes (pixels)", off.box, bounds.box),
        ("confidences", off.score, bounds.score),
        ("logarithms of confidences", off.ratio, bounds.ratio),
    )
    if not off.compared and not any(difference for _, difference, _ in measured):
        return []
    findings = [Finding("whole", check, output, value, bound, off.compared) for output, value, bound in measured]
    if counted := int(max(most, count)):  # nothing beside nothing says nothing
        findings.append(
            Finding("whole", check, "count at .5", float(max(least - count, count - most, 0)), 0.0, counted)
        )
    return findings


def draw(height: int, width: int) -> NDArray[np.uint8]:
    """A picture with shapes of many sizes and some noise, the same on every machine: RGB uint8 [H, W, 3]."""
    rng = np.random.default_rng([height, width])
    y, x = np.mgrid[:height, :width] / np.array([height, width])[:, None, None]
    picture = np.stack([x, y, 1 - x * y], axis=2) * 128
    for _ in range(12):
        centre, radius = rng.random(2), 0.03 + 0.15 * rng.random()
        picture[np.hypot(y - centre[0], x - centre[1]) < radius] = rng.integers(0, 256, 3)
    picture += rng.normal(0, 4, picture.shape)
    drawn: NDArray[np.uint8] = np.clip(np.rint(picture), 0, 255).astype(np.uint8)
    return drawn


def reference(part: Part, inputs: Mapping[str, Array], found: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """What the module itself makes of the inputs, in float32, after the choices that were ``found``."""
    import torch

    given = {**inputs, **{key: found[key] for key in part.choices if found is not None}}
    with torch.no_grad():
        outputs = part.module(**{key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in given.items()})
    return {key: value.float().numpy() for key, value in outputs.items()}


def _slots(name: str, part: Part, run: Callable[[Mapping[str, Array]], dict[str, Array]]) -> list[Finding]:
    """The same image in every slot of a batch, each time among other neighbours, answers as it does alone.

    Where there are choices, alone means in torch after the same ones, for a neighbour may turn a near tie.
    """
    batch = max(part.batches)
    image = {key: value[:1] for key, value in part.vary(1, 101).items()}
    alone = run(image)
    findings = []
    for slot in range(batch):
        inputs = {key: value.copy() for key, value in part.vary(batch, 102 + slot).items()}
        for key, value in inputs.items():
            inputs[key] = _with_slot(value, slot, image[key])
        found = {key: _cropped(value[slot : slot + 1], alone[key].shape) for key, value in run(inputs).items()}
        wanted = reference(part, image, found) if part.choices else alone
        findings += _compare(name, f"slot {slot} of {batch} against alone", part, found, wanted)
    return findings


def _cropped(found: Array, shape: tuple[int, ...]) -> Array:
    """Without what a row that was padded has at the ends of its axes."""
    return found[tuple(slice(0, n) for n in shape)]


def _with_slot(batch: Array, slot: int, row: Array) -> Array:
    """The batch with one row in a slot; the shorter of the two is padded with zeros, and masks say so."""
    shape = tuple(max(a, b) for a, b in zip(batch.shape[1:], row.shape[1:], strict=True))
    grown = np.zeros((len(batch), *shape), batch.dtype)
    grown[tuple(slice(0, n) for n in batch.shape)] = batch
    grown[slot] = 0
    grown[(slice(slot, slot + 1), *(slice(0, n) for n in row.shape[1:]))] = row
    return grown


def _compare(
    name: str, check: str, part: Part, found: Mapping[str, Array], wanted: Mapping[str, Array]
) -> list[Finding]:
    return [
        Finding(
            name,
            check,
            key,
            difference(found[key], wanted[key]),
            part.tolerance.get(key, TOLERANCE),
            compared(wanted[key]),
        )
        for key in wanted
    ]


def magnitude(values: Any) -> float:
    """The root mean square of what is neither masked nor infinite; 0 of nothing."""
    told = np.asarray(values, np.float64)
    told = told[np.isfinite(told) & (told > _FILL)]
    return float(np.sqrt(np.mean(told**2))) if told.size else 0.0


def relative(part: Part, share: float) -> dict[str, float]:
    """Tolerances of a part in less precision: a share of the root mean square of each output."""
    largest = max(part.batches)
    wanted = reference(part, part.vary(largest, largest))
    return {key: share * magnitude(value) for key, value in wanted.items()}


def compared(wanted: Any) -> int:
    """How many numbers there are to compare: neither masked nor infinite."""
    return int((np.isfinite(wanted) & (np.asarray(wanted, np.float64) > _FILL)).sum())


def difference(found: Any, wanted: Any) -> float:
    """Largest absolute difference; what is masked equals what is masked, and another shape is infinitely far."""
    if found.shape != wanted.shape:
        return float("inf")
    a, b = (np.maximum(np.asarray(value, np.float64), _FILL) for value in (found, wanted))
    return float(np.abs(a - b).max(initial=0.0))
