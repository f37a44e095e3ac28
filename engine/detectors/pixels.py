"""Preparation of pixels as the image processors of published models do it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def resize(window: NDArray[np.uint8], height: int, width: int, resample: str) -> NDArray[np.uint8]:
    """RGB uint8 [H, W, 3] -> [height, width, 3], with antialiasing, rounded to uint8 as models are fed in training."""
    if window.shape[:2] == (height, width):
        return window
    image = Image.fromarray(np.ascontiguousarray(window)).resize((width, height), RESAMPLING[resample])
    return np.asarray(image)


class Normalise:
    """RGB uint8 [H, W, 3] -> float32 [3, H, W]: (value / 255 - mean) / std, channel by channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        levels = np.arange(256) / 255.0
        # A value has 256 levels and three channels: what each becomes is computed once, in float64.
        self._table = ((levels - np.array(mean)[:, None]) / np.array(std)[:, None]).astype(np.float32)

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See the class."""
        out = np.empty((3, *image.shape[:2]), np.float32)
        for plane, table, channel in zip(out, self._table, np.moveaxis(image, 2, 0), strict=True):
            np.take(table, channel, out=plane)
        return out


def sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / (1 + exp(-x)) in float32, without overflow, NaN where x is NaN."""
    small = np.exp(-np.abs(logits))
    found: NDArray[np.float32] = np.where(logits >= 0, 1, small) / (1 + small)
    return np.where(np.isnan(logits), np.float32(np.nan), found)


def to_corners(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Boxes [P, 4] as centre x, centre y, width, height -> x1, y1, x2, y2."""
    half = boxes[:, 2:] * np.float32(0.5)
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
