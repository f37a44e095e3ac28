"""RT-DETRv2 (arXiv 2407.17140) and D-FINE (arXiv 2410.13842): a warped image, three hundred queries, sigmoid scores."""

from __future__ import annotations

from dataclasses import dataclass

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.closed import Closed
from tallymill.engine.detectors.parts import Normalise, parts_for
from tallymill.engine.sessions.base import Array, TensorSpec


@dataclass(frozen=True, slots=True)
class RtDetrNumbers:
    """``height`` and ``width``: of the input, to which an image is warped; ``labels``: what the columns of the logits
    name; ``top``: pairs of query and class that are kept.
    """

    height: int
    width: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    labels: tuple[str, ...]
    top: int


class RtDetr(Closed):
    """Part ``image``: float32 [B, 3, height, width] -> logits and boxes (see ``Closed``)."""

    inputs = (TensorSpec("image", "float32", (None, 3, None, None)),)

    def __init__(self, bundle: Bundle, name: str, *, batch: int = 4, threads: int = 1) -> None:
        self.numbers = numbers = bundle.read(RtDetrNumbers)
        super().__init__(bundle, bundle.session("image", threads=threads), name, batch, numbers.labels, numbers.top)
        self._normalise = Normalise(numbers.mean, numbers.std)

    def preprocess(self, window: Array) -> dict[str, Array]:
        """RGB uint8 [H, W, 3] -> float32 [3, height, width]."""
        resized = parts_for(window).resize(window, self.numbers.height, self.numbers.width, "bilinear")
        return {"image": self._normalise(resized)}
