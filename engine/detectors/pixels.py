"""Preparation of pixels as the image processors of published models do it."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
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


def square(window: NDArray[np.uint8], side: int) -> NDArray[np.float32]:
    """RGB uint8 [H, W, 3] -> [side, side, 3] in 0..1: padded with black on the right or below, smoothed, interpolated.

    As OWLv2's image processor: where the square is made smaller by a factor f, a Gaussian of sigma (f - 1) / 2, cut at
    four sigma, then linear interpolation between pixel centres; images are mirrored at their edges.
    """
    longest = max(window.shape[:2])
    factor = longest / side
    kernel = blur(factor).astype(np.float32)
    # Of the black only what the smoothing reaches is there: of a strip of 20000 x 100 the square would be 5 GB.
    height, width = (min(longest, length + 2 * len(kernel) + 2) for length in window.shape[:2])
    image = np.zeros((height, width, 3), np.float32)
    np.multiply(window, np.float32(1 / 255), out=image[: window.shape[0], : window.shape[1]])
    if factor > 1:
        image = cv2.sepFilter2D(image, cv2.CV_32F, kernel, kernel, borderType=cv2.BORDER_REFLECT_101)
    if factor == 1:
        black = (0, side - height, 0, side - width)
        return np.asarray(cv2.copyMakeBorder(image, *black, cv2.BORDER_CONSTANT), np.float32)
    lower, upper, share = _between(longest, side)
    found = np.zeros((side, side, 3), np.float32)
    high, wide = (int((upper < length).sum()) if length < longest else side for length in (height, width))
    rows = image[lower[:high]] + (image[upper[:high]] - image[lower[:high]]) * share[:high, None, None]
    columns = rows[:, lower[:wide]] + (rows[:, upper[:wide]] - rows[:, lower[:wide]]) * share[:wide, None]
    found[:high, :wide] = columns
    return found


def blur(factor: float) -> NDArray[np.float64]:
    """What smooths an image that is made smaller by ``factor``: float64 [2 r + 1], whose sum is 1; [1] if it is not."""
    if factor <= 1:
        return np.ones(1)
    sigma = (factor - 1) / 2
    radius = int(4 * sigma + 0.5)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    found: NDArray[np.float64] = weights / weights.sum()
    return found


def _between(length: int, side: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """For each of ``side`` pixels the two of ``length`` that it lies between, and how far it is from the first."""
    place = (np.arange(side) + 0.5) * (length / side) - 0.5
    first = np.floor(place).astype(np.int64)
    last = length - 1
    mirrored = [np.minimum(np.abs(last - np.abs(last - each)), last) for each in (first, first + 1)]  # of one, itself
    return mirrored[0], mirrored[1], (place - first).astype(np.float32)


def levels(mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """What each of the 256 levels becomes in each channel, computed in float64: float32 [3, 256]."""
    fractions = np.arange(256) / 255.0
    found: NDArray[np.float64] = (fractions - np.array(mean)[:, None]) / np.array(std)[:, None]
    return found.astype(np.float32)


class Normalise:
    """RGB uint8 [H, W, 3] -> float32 [3, H, W]: (value / 255 - mean) / std, channel by channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean, self._std = np.array(mean, np.float32), np.array(std, np.float32)
        self._table = levels(mean, std)

    def of_fractions(self, image: NDArray[np.float32]) -> NDArray[np.float32]:
        """Float32 [H, W, 3] in 0..1 -> float32 [3, H, W]."""
        return np.moveaxis((image - self._mean) / self._std, 2, 0)

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See the class."""
        out = np.empty((3, *image.shape[:2]), np.float32)
        for plane, table, channel in zip(out, self._table, np.moveaxis(image, 2, 0), strict=True):
            np.take(table, channel, out=plane)
        return out


def warp(planes: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """Bilinear between pixel centres, with nothing smoothed when it shrinks and nothing rounded: float32 [3, H, W] ->
    [3, side, side].
    """
    if planes.shape[1:] == (side, side):
        return planes
    out = np.empty((3, side, side), np.float32)
    for plane, into in zip(planes, out, strict=True):
        cv2.resize(plane, (side, side), dst=into, interpolation=cv2.INTER_LINEAR)
    return out


def place(image: NDArray[np.float32], bucket: tuple[int, int]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Pad float32 [3, h, w] with 0 below and to the right: float32 [3, H, W]; and bool [H, W], True on the image."""
    _, height, width = image.shape
    mask = np.zeros(bucket, np.bool_)
    mask[:height, :width] = True
    if (height, width) == bucket:
        return image, mask
    padded = np.zeros((3, *bucket), np.float32)
    padded[:, :height, :width] = image
    return padded, mask


def sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / (1 + exp(-x)) in float32, without overflow, NaN where x is NaN."""
    small = np.exp(-np.abs(logits))
    found: NDArray[np.float32] = np.where(logits >= 0, 1, small) / (1 + small)
    return np.where(np.isnan(logits), np.float32(np.nan), found)


def to_corners(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Boxes [P, 4] as centre x, centre y, width, height -> x1, y1, x2, y2."""
    half = boxes[:, 2:] * np.float32(0.5)
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
