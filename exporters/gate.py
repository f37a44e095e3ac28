"""The acceptance gate: an exported graph is compared with the model that it was made from before it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.base import Detector
from tallymill.engine.detectors.buckets import Size
from tallymill.engine.ensemble import open_detector
from tallymill.engine.sessions.base import Array, Session, stack
from tallymill.exporters.recipes.parts import ArrayOriginal, Loaded, Part

TOLERANCE = 1e-3  # of an output that the recipe names no other for
FLOOR = 0.05  # confidences below are not recorded in a sweep
PICTURES = ((240, 320), (300, 200), (64, 64))  # height, width; of a model that takes all shapes
_FILL = -1e4  # stands for -inf: logits of what is masked


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far the whole detector may be from the original: pixels, and confidence. ``half``: it computes in float16."""

    box: float = 1.0
    score: float = 1e-3
    half: bool = False


EXACT = Bounds()


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison: the largest difference of an output, and how much is borne."""

    part: str
    check: str
    output: str
    difference: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """False also for NaN."""
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        verdict = "" if self.passed else "  <-- refused"
        bound = f"{self.difference:.2g} (at most {self.tolerance:.2g})"
        return f"{self.part}, {self.check}: {self.output} differs by {bound}{verdict}"


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
            loaded.original, loaded.original.open(bundle), loaded.pictures or PICTURES, tolerance=tolerance
        )
    return examine_whole(loaded, open_detector(bundle, bundle.name), bounds)


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
        off = difference(model(*pictures), original.answer(*pictures))
        findings.append(Finding("whole", check, original.output, off, tolerance))
    return findings


def examine_whole(loaded: Loaded, detector: Detector, bounds: Bounds = EXACT) -> list[Finding]:
    """The detector from pixels to boxes against the original, on drawn pictures of several shapes.

    Each box of the original that is well above the floor has one of ours within the bounds, and there are as many
    at .5, where hard counts are made.
    """
    if isinstance(loaded.original, ArrayOriginal):
        raise TypeError(f"{loaded.family} is no family of detectors")
    detector.learn(loaded.categories)
    classes = np.arange(len(loaded.categories))
    if not detector.spec.open_vocabulary:
        classes = np.array([detector.spec.class_of(name) for name in loaded.categories], np.int64)
    findings = []
    for size in loaded.pictures or PICTURES:
        picture = draw(*size)
        inputs = detector.preprocess(picture)
        outputs = detector.run(stack([inputs]), [classes])
        found = detector.decode(outputs, 0, size, classes, FLOOR / 2)
        if loaded.following is None:
            wanted = loaded.original(picture, loaded.categories)
        else:
            wanted = loaded.following(picture, loaded.categories, outputs)
        # Near equals may be turned by halves, and by a first stage that an open-vocabulary model starts from.
        near = bounds.half or detector.spec.open_vocabulary
        least = _least(detector.spec.query_cap, [scores for _, scores in wanted]) if near else 0.0
        least += 2 * bounds.score
        for place, (boxes, scores) in enumerate(wanted):
            mine = found.request == place
            check = f"picture of {size[1]}x{size[0]}, {loaded.categories[place]!r} against the original"
            findings += _whole(check, (found.boxes[mine], found.scores[mine]), (boxes, scores), bounds, least)
    return findings


def _least(cap: int | None, scores: Sequence[Array]) -> float:
    """The confidence below which the original keeps nothing because its places are taken; 0 where some are left."""
    kept = np.concatenate(scores)
    return float(kept.min()) if cap is not None and len(kept) >= cap else 0.0


def _whole(
    check: str, found: tuple[Array, Array], wanted: tuple[Array, Array], bounds: Bounds, sure_from: float
) -> list[Finding]:
    """The farthest that a box of the original is from the nearest of ours, and how the counts at .5 differ.

    Boxes below ``sure_from`` may have lost the last places of those that are kept to near equals.
    """
    sure = wanted[1] >= max(FLOOR, sure_from)
    farthest_box = farthest_score = 0.0
    for box, score in zip(wanted[0][sure], wanted[1][sure], strict=True):
        if not len(found[1]):
            farthest_box = farthest_score = float("inf")
            break
        pixels = np.abs(found[0] - box).max(axis=1)
        confidence = np.abs(found[1] - score)
        nearest = int(np.argmin(pixels / bounds.box + confidence / bounds.score))
        farthest_box = max(farthest_box, float(pixels[nearest]))
        farthest_score = max(farthest_score, float(confidence[nearest]))
    # A confidence within the tolerance of the level may fall on either side.
    level = max(0.5, sure_from)
    least, most = ((found[1] >= level + side * bounds.score).sum() for side in (1, -1))
    count = (wanted[1] >= level).sum()
    off = max(least - count, count - most, 0)
    return [
        Finding("whole", check, "boxes (pixels)", farthest_box, bounds.box),
        Finding("whole", check, "confidences", farthest_score, bounds.score),
        Finding("whole", check, "count at .5", float(off), 0.0),
    ]


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
        Finding(name, check, key, difference(found[key], wanted[key]), part.tolerance.get(key, TOLERANCE))
        for key in wanted
    ]


def magnitude(values: Any) -> float:
    """The root mean square of what is neither masked nor infinite; 0 of nothing."""
    told = np.asarray(values, np.float64)
    told = told[np.isfinite(told) & (told > _FILL)]
    return float(np.sqrt(np.mean(told**2))) if told.size else 0.0


def difference(found: Any, wanted: Any) -> float:
    """Largest absolute difference; -inf equals -inf, and another shape is infinitely far."""
    if found.shape != wanted.shape:
        return float("inf")
    a, b = (np.maximum(np.asarray(value, np.float64), _FILL) for value in (found, wanted))
    return float(np.abs(a - b).max(initial=0.0))
