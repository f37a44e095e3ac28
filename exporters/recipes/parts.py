"""What a recipe makes of published weights: the parts of a model, each of which becomes one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.bundles import Bundle
from tallymill.engine.sessions.base import Array


@dataclass(frozen=True, slots=True)
class Part:
    """One graph. ``module`` takes the inputs by name and returns a dict of named outputs (a ``torch.nn.Module``).

    ``inputs`` are examples with a batch of two (one would be taken for a constant). ``dynamic`` names the axes of an
    input that may vary; those of equal size in the examples that must be equal are found by the exporter. ``batches``
    are sizes at which the gate compares the graph with the module, ``vary`` makes inputs of a batch for it.
    ``tolerance`` is the largest difference of an output that the gate bears, against the module in float32.
    ``choices`` are outputs that say what the model picked among near equals, such as its best proposals: runtimes break
    near ties differently, so the module takes each as an input too, and is compared after the same picks. How good
    they are must be an output, in whose place the module then puts how good they could be.
    ``weights`` names a file in which parts keep their weights together, so that what they share is there once.
    """

    module: Any
    inputs: Mapping[str, Any]
    dynamic: Mapping[str, tuple[int, ...]]
    vary: Callable[[int, int], Mapping[str, Array]]
    batches: tuple[int, ...] = (1, 2, 5)
    tolerance: Mapping[str, float] = field(default_factory=dict)
    choices: tuple[str, ...] = ()
    weights: str | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model of published weights, cut into parts. ``numbers`` is what the family's detector reads.

    ``original`` is what the gate compares the whole detector with: transformers' own image processor, model and
    reading of the outputs; of a model that is no detector, an ``ArrayOriginal``. ``categories`` are some that it can
    be asked for, ``pictures`` heights and widths to try (the gate's own, if there are none), ``photographs`` RGB uint8
    [H, W, 3] by name that a user wants to be tried besides. ``following`` takes the
    place of ``original`` for a model with choices, and ``in_halves`` that of both for a graph that computes in halves,
    where more are near equals: it follows choices that are good by what halves bear, and of a detector that keeps the
    best pairs of query and class it tells all. ``masks`` are those of the original for a model that segments.
    ``tokenizer`` is JSON of ``tokenizers``.
    """

    family: str
    parts: Mapping[str, Part]
    numbers: Mapping[str, Any]
    original: Original | ArrayOriginal
    categories: tuple[str, ...] = ("cat", "dog")
    pictures: tuple[tuple[int, int], ...] = ()
    photographs: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    tokenizer: str | None = None
    following: Following | None = None
    in_halves: Following | None = None
    masks: MaskOriginal | None = None


class Original(Protocol):
    """A model as its authors run it."""

    def __call__(self, image: NDArray[np.uint8], categories: Sequence[str]) -> list[tuple[Array, Array]]:
        """RGB uint8 [H, W, 3] -> of each category boxes [P, 4] xyxy in pixels and confidences [P], in any order."""
        ...


@dataclass(frozen=True, slots=True)
class ArrayOriginal:
    """A model as its authors run it, whose answer is an array and no boxes: a flow, or another image.

    ``answer`` takes ``images`` RGB uint8 [H, W, 3] of one size; ``open`` makes of a bundle what takes the same. Their
    answers may differ by ``tolerance``, in half precision by ``half``; ``output`` says what they are and their unit.
    """

    answer: Callable[..., Array]
    open: Callable[[Bundle], Callable[..., Array]]
    images: int
    output: str
    tolerance: float
    half: float


class Following(Protocol):
    """The same after the choices of a graph (see ``Part.choices``), where they are as good as its own."""

    def __call__(
        self, image: NDArray[np.uint8], categories: Sequence[str], outputs: Mapping[str, Array], /
    ) -> list[tuple[Array, Array]]:
        """``outputs`` are what the graph made of the image, [1, ...] by name."""
        ...


class MaskOriginal(Protocol):
    """A model as its authors run it, and its masks."""

    def __call__(
        self, image: NDArray[np.uint8], categories: Sequence[str], undecided: float, /
    ) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
        """RGB uint8 [H, W, 3] -> of each category masks bool [N, H, W] of its N queries, in their order: the pixels of
        which the model is more than ``undecided`` above one half sure, and those of which it is not so far below.
        """
        ...


@dataclass(frozen=True, slots=True)
class Given:
    """A model whose ONNX files its user made: ``parts``, name -> file; ``numbers`` as in ``Loaded``; ``hint`` says
    where it is told what the files must take and give.
    """

    family: str
    parts: Mapping[str, Path]
    numbers: Mapping[str, Any]
    hint: str


@dataclass(frozen=True, slots=True)
class WeightsRecipe:
    """A model that is exported from weights: where they are published, under which licence, and how they are cut.

    ``load`` takes the folder or the Hugging Face id of the weights, and options that the family knows. ``given``: its
    user brings ONNX files instead, and ``load`` returns a ``Given``.
    """

    name: str
    family: str
    weights: str
    licence: str
    load: Callable[..., Loaded | Given]
    given: bool = False
