"""SAM 3: instances of a category with their masks, gated by whether the category is present at all.

confidence = sigmoid(logit) * sigmoid(presence), as its authors combine them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from tallymill.engine.arrays import to_host
from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.base import Candidates, DetectorSpec
from tallymill.engine.detectors.dense import NOTHING, select, to_pixels
from tallymill.engine.detectors.parts import Normalise, parts_for
from tallymill.engine.detectors.pixels import sigmoid
from tallymill.engine.detectors.text import ReadsText, padded, token_rows
from tallymill.engine.sessions.base import Array, TensorSpec
from tallymill.kernels.floats import float_not_below

LEVELS = ("fine", "middle", "coarse")
FOR_BOXES = ("logits", "presence", "boxes")  # outputs of the decoder that boxes and confidences are made of


@dataclass(frozen=True, slots=True)
class Sam3Numbers:
    """``side``: of the square that an image is warped to; ``tokens``: of a padded text."""

    side: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    tokens: int
    start: int
    end: int
    pad: int


@dataclass(frozen=True, slots=True)
class Text:
    """What the text encoder makes of a category: features float32 [L, D], mask int64 [L]."""

    features: NDArray[np.float32]
    mask: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Segments:
    """Instances of one category: boxes float32 [P, 4] xyxy in pixels, scores float32 [P], masks bool [P, H, W]."""

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    masks: NDArray[np.bool_]
    saturated: bool = False


class Sam3(ReadsText[Text]):
    """Parts: ``vision``, image float32 [B, 3, side, side] -> maps ``fine``, ``middle``, ``coarse``; ``text``, tokens
    and mask int64 [Q, L] -> features [Q, L, D]; ``decoder``, maps, text and mask of B pairs of an image and a category
    -> logits [B, N], presence [B, 1], boxes [B, N, 4] (corners, fractions of the image), masks [B, N, h, w] (logits).
    """

    tensors = True
    inputs = (TensorSpec("image", "float32", (None, 3, None, None)),)
    outputs = tuple(TensorSpec(name, "float32", (None, None, None, None)) for name in LEVELS)

    def __init__(self, bundle: Bundle, name: str, *, batch: int = 1, threads: int = 1) -> None:
        spec = DetectorSpec(name=name, family=bundle.family, labels=(), batch=batch, open_vocabulary=True)
        super().__init__(bundle.session("vision", threads=threads), spec)
        self.numbers = bundle.read(Sam3Numbers)
        self.open_text(bundle, threads)
        self._decoder = bundle.session("decoder", threads=threads, batch=1)  # a pair at a time
        self._normalise = Normalise(self.numbers.mean, self.numbers.std)

    def _encode(self, categories: Sequence[str]) -> list[Text | str]:
        numbers = self.numbers
        found: list[Text | str] = []
        for row in token_rows(self._tokenize, categories, numbers.start, numbers.end, numbers.tokens):
            if isinstance(row, str):
                found.append(row)
                continue
            text = padded([row], numbers.tokens, numbers.pad)
            found.append(Text(self._text.run(text)["features"][0], text["mask"][0]))
        return found

    def preprocess(self, window: Array) -> dict[str, Array]:
        """RGB uint8 [H, W, 3] -> float32 [3, side, side]; bilinear, aspect ratio not kept."""
        side = self.numbers.side
        return {"image": self._normalise(parts_for(window).resize(window, side, side, "bilinear"))}

    def run(self, inputs: Mapping[str, Array], asked: Sequence[NDArray[np.int64]]) -> dict[str, Array]:
        """Each image is encoded once, and decoded for each category that is asked of it.

        Outputs have an axis [C] after the batch for the categories, as many as are asked of the image with the most;
        they are copied from a device, where masks are large, as soon as they are there.
        """
        return self._run(inputs, asked, (*FOR_BOXES, "masks"))

    def run_for_boxes(self, inputs: Mapping[str, Array], asked: Sequence[NDArray[np.int64]]) -> dict[str, Array]:
        """See ``Detector.run_for_boxes``: the model computes masks all the same, but nobody copies or keeps them."""
        return self._run(inputs, asked, FOR_BOXES)

    def _run(
        self, inputs: Mapping[str, Array], asked: Sequence[NDArray[np.int64]], wanted: Sequence[str]
    ) -> dict[str, Array]:
        maps = self.session.run(inputs)
        most = max(len(classes) for classes in asked)
        outputs: dict[str, Array] = {}
        for row, classes in enumerate(asked):
            for place, category in enumerate(classes.tolist()):
                text = self.learned[category]
                pair = {name: maps[name][row : row + 1] for name in LEVELS}
                given = {**pair, "text": text.features[None], "mask": text.mask[None]}
                found = self._decoder.run(given)
                for name in wanted:
                    value = to_host(found[name])
                    if name not in outputs:
                        outputs[name] = np.zeros((len(asked), most, *value.shape[1:]), np.float32)
                    outputs[name][row, place] = value[0]
        return outputs

    def decode(
        self,
        outputs: Mapping[str, Array],
        index: int,
        size: tuple[int, int],
        classes: NDArray[np.int64],
        floor: float,
    ) -> Candidates:
        """See ``Detector.decode``; candidates of a class are in the order of queries."""
        scores = self._scores(outputs, index)[: len(classes)]
        request, query, confidence = select(scores, np.arange(len(classes)), floor)
        if not len(query):
            return NOTHING
        boxes = outputs["boxes"][index][request, query] * to_pixels(size)
        return Candidates(boxes, confidence, request, bool((scores >= float_not_below(floor)).all(axis=1).any()))

    def segment(
        self, outputs: Mapping[str, Array], index: int, place: int, size: tuple[int, int], floor: float
    ) -> Segments:
        """The instances of the category at a place of those asked, with masks at the size of the image.

        A pixel belongs to an instance where the sigmoid of its mask, interpolated to that size, exceeds one half.
        ``outputs`` are of ``run``; those of ``run_for_boxes`` have no masks.
        """
        scores = self._scores(outputs, index)[place]
        queries = np.flatnonzero(scores >= float_not_below(floor))
        boxes = outputs["boxes"][index, place][queries] * to_pixels(size)
        masks = np.zeros((len(queries), *size), np.bool_)
        for mask, query in zip(masks, queries, strict=True):
            shown = sigmoid(outputs["masks"][index, place, query])
            mask[:] = cv2.resize(shown, size[::-1], interpolation=cv2.INTER_LINEAR) > 0.5
        return Segments(boxes, scores[queries], masks, len(queries) == len(scores))

    def _scores(self, outputs: Mapping[str, Array], index: int) -> NDArray[np.float32]:
        """Confidences of the queries for each category: float32 [C, N]."""
        gated: NDArray[np.float32] = sigmoid(outputs["logits"][index]) * sigmoid(outputs["presence"][index])
        return gated
