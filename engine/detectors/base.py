"""What a detector is: a spec, a way to prepare pixels, and a way to read the model's outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.arrays import to_host
from tallymill.engine.sessions.base import Array, Session, TensorSpec
from tallymill.errors import ModelError


@dataclass(frozen=True, slots=True)
class DetectorSpec:
    """What a detector needs and promises; everything here is written into ``run.json``.

    ``labels[k]`` names class k of the score output; ``synonyms`` maps other names of a category to its label.
    ``batch`` is the most windows one call of the model takes (1 for a model whose shapes are fixed).
    ``fallback`` is the label, if any, that answers for every category without a label of its own.
    ``open_vocabulary``: takes any category, so that every one is covered, and its class is its place among the
    categories that were last learned.
    ``query_cap`` is the most boxes the detector can return for one window over all categories, or None when it keeps
    the best of each.
    """

    name: str
    family: str
    labels: tuple[str, ...]
    synonyms: Mapping[str, str] = field(default_factory=dict)
    fallback: str | None = None
    batch: int = 1
    query_cap: int | None = None
    needs_pixels: bool = True
    open_vocabulary: bool = False

    def class_of(self, category: str) -> int | None:
        """Index into ``labels`` of the class that answers for a category (exact, synonym, fallback), or None."""
        if self.open_vocabulary:
            raise TypeError(f"{self.name} takes any category; it has no classes to choose from")
        label = category if category in self.labels else self.synonyms.get(category, self.fallback)
        return None if label is None else self.labels.index(label)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Raw boxes of one window: boxes float32 [P, 4] xyxy in window pixels, scores float32 [P] in [0, 1].

    ``request`` int64 [P] is the position in the ``classes`` that were asked for, not the class itself.
    ``saturated``: the model returned as many boxes as it can, over all classes, and every one reaches the floor.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    request: NDArray[np.int64]
    saturated: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Raw boxes of a batch of B windows, arrays or tensors of one device.

    ``boxes`` float32 [P, 4] xyxy in pixels of each window and ``scores`` float32 [P]; ``request`` int64 [P] is the
    place among all classes asked of the batch, window after window. Boxes of a request are in the order of the model.
    ``saturated`` bool [B]: see ``Candidates``; ``finite`` bool [B]: no asked score of the window is NaN or infinite.
    ``errors`` says what else is wrong with a window, by place. Boxes of a window with either mean nothing.
    """

    boxes: Array
    scores: Array
    request: Array
    saturated: Array
    finite: Array
    errors: Mapping[int, str] = field(default_factory=dict)


class Detector(ABC):
    """One model behind three steps: preprocess, run (the session's), and ``read``, of which ``decode`` does one window.

    ``inputs`` and ``outputs`` are what a model of the family has; it may have further outputs, but no further inputs.
    ``device`` is the session's. ``tensors``: on a card the detector prepares images there, which come as tensors.
    """

    spec: DetectorSpec
    device: str = "cpu"
    tensors: ClassVar[bool] = False
    inputs: ClassVar[tuple[TensorSpec, ...]]
    outputs: ClassVar[tuple[TensorSpec, ...]]

    def __init__(self, session: Session, spec: DetectorSpec) -> None:
        """Raises ``ModelError`` when the session's model is not of the family."""
        self.session = session
        self.device = session.device
        self.spec = spec
        faults = [*_unlike("input", self.inputs, session.inputs), *_unlike("output", self.outputs, session.outputs)]
        known = {wanted.name for wanted in self.inputs}
        faults += [f"wanted no input {has.name}" for has in session.inputs if has.name not in known]
        if faults:
            raise ModelError(
                f"{session.model}: not a model of the family {spec.family!r}: {'; '.join(faults)}",
                hint=f"check `family` and `model` of the detector {spec.name!r} in the ensemble",
            )

    @abstractmethod
    def preprocess(self, window: Array) -> dict[str, Array]:
        """RGB uint8 [H, W, 3] -> the model's inputs for one window by name, without the batch axis.

        A window is an array, or a tensor where the detector takes ``tensors``; what is made of it is of its kind.
        """

    def open_others(self) -> None:  # noqa: B027
        """Open once each part that is otherwise opened when an image needs it, and keep none; most detectors open
        all when they are made. Raises ``ModelError`` when one cannot be opened.
        """

    def learn(self, categories: Sequence[str | None]) -> Mapping[int, str]:
        """Make ready for a batch of items that ask for these categories; a closed label space has nothing to learn.

        A text model encodes each category once, however many batches ask for it. Returns what is wrong with those
        that it cannot take, by place; an item that asks for such a one is an error row.
        """
        del categories
        return {}

    @property
    def encoded(self) -> int:
        """How many categories the model has encoded so far."""
        return 0

    def split(self, classes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Positions in ``classes`` int64 [C] that a call of the model can answer for, by group; all by default."""
        return [np.arange(len(classes))]

    def run(self, inputs: Mapping[str, Array], asked: Sequence[NDArray[np.int64]]) -> dict[str, Array]:
        """Prepared windows [B, ...], B <= ``spec.batch``, and the classes asked of each -> outputs [B, ...] by name."""
        del asked  # only a model that reads text needs to know
        return self.session.run(inputs)

    def run_for_boxes(self, inputs: Mapping[str, Array], asked: Sequence[NDArray[np.int64]]) -> dict[str, Array]:
        """The same without outputs that ``read`` does not need, where a model has such, as counting wants it."""
        return self.run(inputs, asked)

    def read(
        self,
        outputs: Mapping[str, Array],
        sizes: Sequence[tuple[int, int]],
        asked: Sequence[NDArray[np.int64]],
        floor: float,
    ) -> Found:
        """Boxes of a whole batch: ``sizes`` and ``asked`` (int64 [C]) of each of its B windows; see ``decode``.

        What one window is to blame for is an error of that window. Here they are decoded one by one, on the host.
        """
        outputs = {name: to_host(value) for name, value in outputs.items()}
        found: list[Candidates] = []
        errors: dict[int, str] = {}
        for index, (size, classes) in enumerate(zip(sizes, asked, strict=True)):
            try:
                found.append(_in_range(self.decode(outputs, index, size, classes, floor)))
            except ModelError as exc:
                errors[index] = exc.message
                found.append(NOTHING)
        firsts = np.cumsum([0, *map(len, asked)])
        return Found(
            boxes=np.concatenate([each.boxes for each in found]),
            scores=np.concatenate([each.scores for each in found]),
            request=np.concatenate([each.request + first for each, first in zip(found, firsts, strict=False)]),
            saturated=np.array([each.saturated for each in found], np.bool_),
            finite=np.ones(len(found), np.bool_),
            errors=errors,
        )

    @abstractmethod
    def decode(
        self,
        outputs: Mapping[str, Array],
        index: int,
        size: tuple[int, int],
        classes: NDArray[np.int64],
        floor: float,
    ) -> Candidates:
        """Boxes of the asked ``classes`` int64 [C] with score >= ``floor`` in window ``index`` of a batch.

        ``size`` is (height, width) of the window in pixels, before preprocessing. Order is the model's own (its
        cell or anchor order within a class, classes in the order asked), so that NMS breaks ties the same way
        however windows were batched. Raises ``ModelError`` when a score of an asked class is not finite.
        """


NOTHING = Candidates(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


def _in_range(found: Candidates) -> Candidates:
    if len(found.scores) and not (found.scores.min() >= 0 and found.scores.max() <= 1):  # false for NaN too
        raise ModelError("scores that are not finite or not in [0, 1]")
    return found


def _unlike(kind: str, wanted: tuple[TensorSpec, ...], has: tuple[TensorSpec, ...]) -> list[str]:
    """What is wanted and not there, each with what is there instead."""
    by_name = {spec.name: spec for spec in has}
    everything = ", ".join(by_name) or "none"
    return [
        f"wanted {kind} {want}, the model has {by_name.get(want.name, f'only {everything}')}"
        for want in wanted
        if want.name not in by_name or not by_name[want.name].fits(want)
    ]
