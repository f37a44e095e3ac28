"""What a detector is: a spec, a way to prepare pixels, and a way to read the model's outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

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
    ``query_cap`` is the most boxes the detector can return for one window, or None when nothing caps them.
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


class Detector(ABC):
    """One model behind three steps: preprocess, run (the session's), decode.

    ``inputs`` and ``outputs`` are what a model of the family has; it may have further outputs, but no further inputs.
    """

    spec: DetectorSpec
    inputs: ClassVar[tuple[TensorSpec, ...]]
    outputs: ClassVar[tuple[TensorSpec, ...]]

    def __init__(self, session: Session, spec: DetectorSpec) -> None:
        """Raises ``ModelError`` when the session's model is not of the family."""
        self.session = session
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
    def preprocess(self, window: NDArray[np.uint8]) -> dict[str, Array]:
        """RGB uint8 [H, W, 3] -> the model's inputs for one window by name, without the batch axis."""

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


def _unlike(kind: str, wanted: tuple[TensorSpec, ...], has: tuple[TensorSpec, ...]) -> list[str]:
    """What is wanted and not there, each with what is there instead."""
    by_name = {spec.name: spec for spec in has}
    everything = ", ".join(by_name) or "none"
    return [
        f"wanted {kind} {want}, the model has {by_name.get(want.name, f'only {everything}')}"
        for want in wanted
        if want.name not in by_name or not by_name[want.name].fits(want)
    ]
