"""A convolutional network that doubles the sides of an image: one ONNX graph that takes images of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.padding import check
from tallymill.engine.sessions.base import Session, TensorSpec
from tallymill.errors import ModelError

FAMILY = "conv2x"
INPUT, OUTPUT = "image", "enlarged"


class Conv2x:
    """A graph of ``image`` float32 [B, 3, H, W], RGB in 0..255 -> ``enlarged`` float32 [B, 3, 2H, 2W], the same."""

    scale = 2

    def __init__(self, session: Session) -> None:
        """Raises ``ModelError`` when the session's model takes or gives something else."""
        wanted = TensorSpec(INPUT, "float32", (None, 3, None, None)), TensorSpec(OUTPUT, "float32", (None,) * 4)
        for spec, given in zip(wanted, (session.inputs, session.outputs), strict=True):
            if not any(each.fits(spec) for each in given):
                raise ModelError(f"{session.model}: not a model of the family {FAMILY!r}: wanted {spec}")
        self._session = session

    def upscale(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """RGB uint8 [H, W, 3] -> uint8 [2H, 2W, 3]. Raises ``ModelError`` where what comes out is not finite."""
        check(image)
        planes = np.moveaxis(image, 2, 0)[None].astype(np.float32)
        found: Any = self._session.run({INPUT: planes})[OUTPUT][0]
        if not np.isfinite(found).all():
            raise ModelError(f"{self._session.model}: what became of an image of {image.shape[:2]} is not finite")
        return np.moveaxis(np.rint(found.clip(0, 255)).astype(np.uint8), 0, 2)
