"""Grounding DINO: a text that names all categories is read with the image, and every box is scored token by token.

A category's score is the best of the tokens of its own phrase (the original's phrases, cut from the text by threshold,
merge categories). Text is encoded category by category, but it meets the image inside the model (arXiv 2303.05499), so
what is asked together is part of the answer: see ``split``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.base import DetectorSpec
from tallymill.engine.detectors.buckets import Buckets, Size
from tallymill.engine.detectors.graphs import Graphs
from tallymill.engine.detectors.parts import Normalise, parts_for
from tallymill.engine.detectors.phrases import Phrase, blocks, compose, groups, spans
from tallymill.engine.detectors.queries import Heads, QueryDetector, to_pixels
from tallymill.engine.detectors.text import ReadsText
from tallymill.engine.sessions.base import Array, TensorSpec


@dataclass(frozen=True, slots=True)
class GroundingNumbers:
    """``shortest`` and ``longest`` side of an image, ``buckets`` (height, width) of the graphs; the most ``tokens`` of
    a text and of a ``phrase``; ``closing`` are the tokens that end a phrase; ``queries`` is the number of boxes.
    """

    shortest: int
    longest: int
    buckets: tuple[Size, ...]
    resample: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    template: str
    tokens: int
    phrase: int
    start: int
    end: int
    stop: int
    closing: tuple[int, ...]
    queries: int


class GroundingDino(ReadsText[Phrase], QueryDetector):
    """Parts: ``text``, tokens and positions int64 [P, L] and attention bool [P, L, L] -> text [P, L, D]; and for every
    bucket ``image-HxW``, see ``inputs``: logits [B, Q, L] of every box and token, and boxes [B, Q, 4] (centre and size,
    fractions of the image without its padding).
    """

    inputs = (
        TensorSpec("image", "float32", (None, 3, None, None)),
        TensorSpec("image_mask", "bool", (None, None, None)),
        TensorSpec("text", "float32", (None, None, None)),
        TensorSpec("text_mask", "bool", (None, None)),
        TensorSpec("text_attention", "bool", (None, None, None)),
        TensorSpec("text_positions", "int64", (None, None)),
    )
    outputs = (
        TensorSpec("logits", "float32", (None, None, None)),
        TensorSpec("boxes", "float32", (None, None, 4)),
    )

    def __init__(self, bundle: Bundle, name: str, *, batch: int | None = None, threads: int = 1) -> None:
        self.numbers = bundle.read(GroundingNumbers)
        self._graphs = Graphs(bundle, "image", self.numbers.buckets, threads=threads)
        spec = DetectorSpec(
            name=name,
            family=bundle.family,
            labels=(),
            batch=batch or self._graphs.batch,
            query_cap=self.numbers.queries,
            open_vocabulary=True,
        )
        super().__init__(self._graphs.first, spec)
        self.open_text(bundle, threads)
        self._normalise = Normalise(self.numbers.mean, self.numbers.std)
        self._start, self._end = (self._phrase([token]) for token in (self.numbers.start, self.numbers.end))

    def _encode(self, categories: Sequence[str]) -> list[Phrase | str]:
        return [self._encode_one(category) for category in categories]

    def _encode_one(self, category: str) -> Phrase | str:
        numbers = self.numbers
        text = category.strip().lower()
        if set(self._tokenize(text)) <= set(numbers.closing):
            return f"the category {category!r} has no words for the model to read"
        tokens = [*self._tokenize(numbers.template.format(text)), numbers.stop]
        if len(tokens) > numbers.phrase:
            return (
                f"the category {category!r} has {len(tokens)} tokens with its prompt; the model reads {numbers.phrase}"
            )
        return self._phrase(tokens)

    def _phrase(self, tokens: Sequence[int]) -> Phrase:
        """Encoded by itself, so that what else is new in a batch is no part of it."""
        row = np.array(tokens, np.int64)
        attention, positions = blocks(row, self.numbers.closing)
        inputs = {"tokens": row, "attention": attention, "positions": positions}
        text = self._text.run({key: value[None] for key, value in inputs.items()})["text"][0]
        return Phrase(row, text, np.flatnonzero(~np.isin(row, self.numbers.closing)))

    def split(self, classes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """As many classes a text as it has tokens for, in the order asked."""
        lengths = [len(self.learned[place].tokens) for place in classes.tolist()]
        return groups(lengths, self.numbers.tokens - 2)

    def preprocess(self, window: Array) -> dict[str, Array]:
        """RGB uint8 [H, W, 3] -> image float32 [3, h, w] and image_mask bool [h, w] of the bucket that holds it."""
        numbers = self.numbers
        height, width = Buckets.rule(window.shape[0], window.shape[1], numbers.shortest, numbers.longest)
        bucket = self._graphs.frame(height, width)
        parts = parts_for(window)
        image = self._normalise(parts.resize(window, height, width, numbers.resample))
        padded, mask = parts.place(image, bucket)
        return {"image": padded, "image_mask": mask}

    def open_others(self) -> None:
        """See ``Detector.open_others``."""
        self._graphs.open_others()

    def run(self, inputs: Mapping[str, Array], asked: Sequence[NDArray[np.int64]]) -> dict[str, Array]:
        """See ``Detector.run``."""
        texts = [[self._start, *self._asked(classes), self._end] for classes in asked]
        height, width = inputs["image"].shape[2:]
        return self._graphs.of((height, width)).run({**inputs, **compose(texts, self.numbers.closing)})

    def _asked(self, classes: NDArray[np.int64]) -> list[Phrase]:
        return [self.learned[place] for place in classes.tolist()]

    def heads(
        self, outputs: Mapping[str, Array], sizes: Sequence[tuple[int, int]], asked: Sequence[NDArray[np.int64]]
    ) -> Heads:
        """See ``QueryDetector.heads``: a category is answered by the tokens that name it."""
        first = len(self._start.tokens)
        columns = [each for classes in asked for each in spans(self._asked(classes), first)]
        return Heads(outputs["logits"], outputs["boxes"], columns, to_pixels(sizes))
