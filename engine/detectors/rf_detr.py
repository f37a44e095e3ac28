"""RF-DETR (arXiv 2511.09554): a square image warped without antialiasing, three hundred queries, sigmoid scores."""

from __future__ import annotations

from dataclasses import dataclass

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.closed import Closed
from tallymill.engine.detectors.parts import Normalise, parts_for
from tallymill.engine.sessions.base import Array, TensorSpec


@dataclass(frozen=True, slots=True)
class RfDetrNumbers:
    """``side``: of the square input; ``labels``: what the columns of the logits name; ``top``: pairs that are kept."""

    side: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    labels: tuple[str, ...]
    top: int


class RfDetr(Closed):
    """Part ``image``: float32 [B, 3, side, side] -> logits and boxes (see ``Closed``)."""

    inputs = (TensorSpec("image", "float32", (None, 3, None, None)),)

    def __init__(self, bundle: Bundle, name: str, *, batch: int = 4, threads: int = 1) -> None:
        self.numbers = numbers = bundle.read(RfDetrNumbers)
        super().__init__(bundle, bundle.session("image", threads=threads), name, batch, numbers.labels, numbers.top)
        self._normalise = Normalise(numbers.mean, numbers.std)

    def preprocess(self, window: Array) -> dict[str, Array]:
        """RGB uint8 [H, W, 3] -> float32 [3, side, side]."""
        return {"image": parts_for(window).warp(self._normalise(window), self.numbers.side)}
