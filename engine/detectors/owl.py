"""OWL-ViT and OWLv2: one box a patch of the image, scored by the likeness of the patch to each category's text.

The text never meets the image before the last product, so that the two towers are apart: a category is encoded once in
the life of a process, and images of different categories share a batch (arXiv 2205.06230, section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.arrays import beside, stacked, widened
from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.base import DetectorSpec
from tallymill.engine.detectors.graphs import images_a_call
from tallymill.engine.detectors.parts import Normalise, parts_for
from tallymill.engine.detectors.queries import Heads, QueryDetector, to_pixels
from tallymill.engine.detectors.text import ReadsText, padded, token_rows
from tallymill.engine.sessions.base import Array, TensorSpec


@dataclass(frozen=True, slots=True)
class OwlNumbers:
    """``side``: of the square input, to which an image is padded (``square``, OWLv2) or warped (OWL-ViT)."""

    side: int
    square: bool
    resample: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    template: str
    tokens: int
    start: int
    end: int
    pad: int


class Owl(ReadsText[NDArray[np.float32]], QueryDetector):
    """Parts: ``vision``, image float32 [B, 3, side, side] -> embeds [B, N, D] of length one, shift and scale [B, N, 1],
    boxes [B, N, 4] (centre and size, fractions of the input); ``text``, tokens and mask int64 [Q, L] -> embeds [Q, D].
    """

    inputs = (TensorSpec("image", "float32", (None, 3, None, None)),)
    outputs = (
        TensorSpec("embeds", "float32", (None, None, None)),
        TensorSpec("shift", "float32", (None, None, 1)),
        TensorSpec("scale", "float32", (None, None, 1)),
        TensorSpec("boxes", "float32", (None, None, 4)),
    )

    def __init__(self, bundle: Bundle, name: str, *, batch: int | None = None, threads: int = 1) -> None:
        self.numbers = bundle.read(OwlNumbers)
        batch = batch or images_a_call(self.numbers.side**2, bundle.device)
        spec = DetectorSpec(name=name, family=bundle.family, labels=(), batch=batch, open_vocabulary=True)
        super().__init__(bundle.session("vision", threads=threads), spec)
        self.open_text(bundle, threads)
        self._normalise = Normalise(self.numbers.mean, self.numbers.std)

    def _encode(self, categories: Sequence[str]) -> list[NDArray[np.float32] | str]:
        numbers = self.numbers
        texts = [numbers.template.format(name) for name in categories]
        rows = token_rows(self._tokenize, texts, numbers.start, numbers.end, numbers.tokens, categories)
        # One at a time: what a category becomes must not depend, not even in its last bit, on what else was new.
        return [
            row if isinstance(row, str) else self._text.run(padded([row], numbers.tokens, numbers.pad))["embeds"][0]
            for row in rows
        ]

    def preprocess(self, window: Array) -> dict[str, Array]:
        """RGB uint8 [H, W, 3] -> float32 [3, side, side]."""
        side, parts = self.numbers.side, parts_for(window)
        if self.numbers.square:
            return {"image": self._normalise.of_fractions(parts.square(window, side))}
        return {"image": self._normalise(parts.resize(window, side, side, self.numbers.resample))}

    def heads(
        self, outputs: Mapping[str, Array], sizes: Sequence[tuple[int, int]], asked: Sequence[NDArray[np.int64]]
    ) -> Heads:
        """See ``QueryDetector.heads``: the logits of a window are those of its own categories.

        They are products of its own, for the last bits of one depend on what else is in it.
        """
        rows = [self._logits(outputs, index, classes) for index, classes in enumerate(asked)]
        return Heads(
            stacked([widened(row, max(map(len, asked))) for row in rows]),
            outputs["boxes"],
            columns=[column for classes in asked for column in np.arange(len(classes))[:, None]],
            scale=to_pixels([(max(size),) * 2 if self.numbers.square else size for size in sizes]),
        )

    def _logits(self, outputs: Mapping[str, Array], index: int, classes: NDArray[np.int64]) -> Array:
        """Of a window, float32 [N, C]."""
        embeds = outputs["embeds"][index]
        texts = beside(np.stack([self.learned[place] for place in classes.tolist()]), embeds)
        return (embeds @ texts.T + outputs["shift"][index]) * outputs["scale"][index]
