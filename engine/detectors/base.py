"""What a detector is: a spec, a way to prepare pixels, and a way to read the model's outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
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
    ``open_vocabulary``: takes any category, so that every one is covered and its class has no meaning of its own.
    ``query_cap`` is the most boxes the detector can return for one window, or None when nothing caps them.
    """

    name: str
    family: str
    labels: tuple[str, ...]
    synonyms: Mapping[str, str] = field(default_factory=dict)
    batch: int = 1
    query_cap: int | None = None
    needs_pixels: bool = True
    open_vocabulary: bool = False

    def class_of(self, category: str) -> int | None:
        """Index into ``labels`` of the class that answers for a category (exact, then synonym), or None."""
        if self.open_vocabulary:
            raise TypeError(f"{self.name} takes any category; it has no classes to choose from")
        label = category if category in self.labels else self.synonyms.get(category)
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
    def preprocess(self, window: NDArray[np.uint8]) -> Array:
        """RGB uint8 [H, W, 3] -> the model's input for one window, without the batch axis."""

    def run(self, batch: Array) -> dict[str, Array]:
        """Preprocessed windows [B, ...], B <= ``spec.batch``, to the input ``image`` -> the model's named outputs."""
        return self.session.run({"image": batch})

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
