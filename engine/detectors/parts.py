"""Preparation of pixels by the parts for where they lie: NumPy's for arrays, torch's for tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tallymill.engine.detectors import pixels, pixels_gpu


def parts_for(image: Any) -> Any:
    """The module, ``pixels`` or ``pixels_gpu``, whose functions take an image of this kind."""
    return pixels if isinstance(image, np.ndarray) else pixels_gpu


class Normalise:
    """(value / 255 - mean) / std, channel by channel, of arrays and tensors alike; see ``pixels.Normalise``."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._numbers = (mean, std)
        self._arrays = pixels.Normalise(mean, std)

    @cached_property
    def _tensors(self) -> pixels_gpu.Normalise:
        return pixels_gpu.Normalise(*self._numbers)

    def of_fractions(self, image: Any) -> Any:
        """Float32 [H, W, 3] in 0..1 -> float32 [3, H, W]."""
        return (self._arrays if isinstance(image, np.ndarray) else self._tensors).of_fractions(image)

    def __call__(self, image: Any) -> Any:
        """RGB uint8 [H, W, 3] -> float32 [3, H, W]."""
        return (self._arrays if isinstance(image, np.ndarray) else self._tensors)(image)
