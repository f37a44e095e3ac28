"""``pixels.py`` once more, for pixels that lie on a device: torch tensors in and out, wherever they are.

What is rounded to levels is equal to the last bit: resizing is two products of matrices of whole numbers, so small that
float32 holds every sum exactly, whatever its order. What is not rounded differs as float32 does, in the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import PIL
from numpy.typing import NDArray

from tallymill.engine.detectors import pixels

Tensor = Any  # of torch, which is imported only where there is one

# Pillow's weights are whole numbers of 22 bits; each is cut in two so that sums of 8-bit pixels stay below 2 ** 24.
_BITS, _LOW_BITS = 22, 11
_EXACT_TAPS = 64  # 64 taps of at most 2 ** 10 times 255 do; more are summed in float64
_PILLOW = int(PIL.__version__.partition(".")[0])
_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}


class Taps(NamedTuple):
    """What each output pixel is made of: ``place`` int64 [N, K] of the input, ``weight`` [N, K], 0 for none."""

    place: NDArray[np.int64]
    weight: NDArray[Any]


def resize(window: Tensor, height: int, width: int, resample: str) -> Tensor:
    """RGB uint8 [H, W, 3] -> [height, width, 3], as ``pixels.resize``, which is Pillow, to the last bit."""
    if tuple(window.shape[:2]) == (height, width):
        return window
    if _rows_first(window.shape[0], window.shape[1], height, width):
        return _columns(_levels(window, height, resample), width, resample)
    return _levels(_columns(window, width, resample), height, resample)


def _rows_first(height: int, width: int, to_height: int, to_width: int) -> bool:
    """Which axis Pillow resizes first; what it makes is rounded and cut to levels before the other.

    Found by comparison (Pillow 11.3, 12.3 and 13.0, thousands of sizes); the tests tell if another version differs.
    """
    return _PILLOW >= 13 and height - to_height > max(2 * (width - to_width), 0)


def _columns(image: Tensor, width: int, resample: str) -> Tensor:
    return _levels(image.movedim(1, 0), width, resample).movedim(1, 0)


def _levels(image: Tensor, length: int, resample: str) -> Tensor:
    """Resize the first axis of uint8 [L, M, 3]: [length, M, 3]."""
    import torch

    if image.shape[0] == length:
        return image
    taps = _pillow_taps(image.shape[0], length, resample)
    dtype = torch.float32 if taps.place.shape[1] <= _EXACT_TAPS else torch.float64
    whole = taps.weight.astype(np.int64)
    high = (whole + (1 << (_LOW_BITS - 1))) >> _LOW_BITS
    low = whole - (high << _LOW_BITS)
    flat = image.reshape(image.shape[0], -1).to(dtype)
    sums = [(_dense(Taps(taps.place, part), image.shape[0], flat) @ flat).to(torch.int64) for part in (high, low)]
    total = (sums[0] << _LOW_BITS) + sums[1] + (1 << (_BITS - 1))
    return (total >> _BITS).clamp(0, 255).to(torch.uint8).reshape(length, *image.shape[1:])


def _dense(taps: Taps, length: int, like: Tensor) -> Tensor:
    """The matrix [N, length] of taps whose places differ (those without weight are left out), on the device."""
    import torch

    rows, columns = np.nonzero(taps.weight)
    at = torch.from_numpy(rows * length + taps.place[rows, columns]).to(like.device)
    values = torch.from_numpy(taps.weight[rows, columns]).to(like.device, like.dtype)
    matrix = torch.zeros(len(taps.place) * length, dtype=like.dtype, device=like.device)
    return matrix.index_put_((at,), values).reshape(len(taps.place), length)


@lru_cache(maxsize=256)
def _pillow_taps(length: int, wanted: int, resample: str) -> Taps:
    """Pillow's weights: a filter as wide as an output pixel, normalised, as whole numbers of ``_BITS`` bits."""
    step = length / wanted
    stretch = max(step, 1.0)
    reach = _SUPPORT[resample] * stretch
    centre = (np.arange(wanted) + 0.5) * step
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach + 0.5).astype(np.int64), length)
    place = first[:, None] + np.arange(int((last - first).max()))
    weight = _FILTERS[resample](np.abs((place - centre[:, None] + 0.5) / stretch))
    weight[place >= last[:, None]] = 0
    weight /= weight.sum(axis=1, keepdims=True)
    return Taps(place, np.trunc(weight * (1 << _BITS) + np.where(weight < 0, -0.5, 0.5)))


def _triangle(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(1 - x, 0)


def _cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys' cubic with a = -0.5."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


_FILTERS = {"bilinear": _triangle, "bicubic": _cubic}


def warp(planes: Tensor, side: int) -> Tensor:
    """Float32 [3, H, W] -> [3, side, side]; see ``pixels.warp``."""
    _, height, width = planes.shape
    if (height, width) == (side, side):
        return planes
    left, right, along = _neighbours(width, side, planes)
    columns = planes[:, :, left] * (1 - along) + planes[:, :, right] * along
    upper, lower, down = _neighbours(height, side, planes)
    return columns[:, upper] * (1 - down[:, None]) + columns[:, lower] * down[:, None]


def _neighbours(length: int, side: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each of ``side`` pixels the two of ``length`` that it lies between, and how far it is from the first."""
    import torch

    place = (np.arange(side) + 0.5) * (length / side) - 0.5
    first = np.floor(place)
    share = np.where((first >= 0) & (first < length - 1), place - first, 0).astype(np.float32)
    before = np.clip(first, 0, length - 1).astype(np.int64)
    after = np.minimum(before + 1, length - 1)
    there = [torch.from_numpy(each).to(like.device) for each in (before, after, share)]
    return there[0], there[1], there[2]


def square(window: Tensor, side: int) -> Tensor:
    """RGB uint8 [H, W, 3] -> float32 [side, side, 3] in 0..1; see ``pixels.square``.

    Smoothing and interpolation are one matrix an axis. The black that pads the image to a square adds nothing, and is
    left out of the products.
    """
    import torch

    height, width, _ = window.shape
    longest = max(height, width)
    image = window.to(torch.float32) * np.float32(1 / 255).item()
    if longest == side:
        return torch.nn.functional.pad(image, (0, 0, 0, side - width, 0, side - height))
    if longest == 1:  # of one pixel there is no mirror image
        return image.repeat(side, side, 1)
    matrix = _smoothing(longest, side, image)
    rows = (matrix[:, :height] @ image.reshape(height, -1)).reshape(side, width, 3)
    columns = matrix[:, :width] @ rows.movedim(1, 0).reshape(width, -1)
    return columns.reshape(side, side, 3).movedim(1, 0)


def _smoothing(length: int, side: int, like: Tensor) -> Tensor:
    """What takes a side of ``length`` pixels to one of ``side``: float32 [side, length] on the device.

    Built on an axis that goes on beyond both ends; what lies there is added to its mirror image.
    """
    kernel = pixels.blur(length / side)
    reach = len(kernel) // 2 + 1
    place = (np.arange(side) + 0.5) * (length / side) - 0.5
    first = np.floor(place).astype(np.int64)
    share = (place - first)[:, None]
    weight = np.append(kernel, 0) * (1 - share) + np.insert(kernel, 0, 0) * share
    taps = Taps(first[:, None] + 1 + np.arange(2 * reach), weight)  # counted from ``reach`` before the first pixel
    wide = _dense(taps, length + 2 * reach, like)
    matrix = wide[:, reach : reach + length].clone()
    matrix[:, 1 : reach + 1] += wide[:, :reach].flip(1)
    matrix[:, length - 1 - reach : length - 1] += wide[:, reach + length :].flip(1)
    return matrix


class Normalise:
    """RGB uint8 [H, W, 3] -> float32 [3, H, W]; see ``pixels.Normalise``, whose table this is."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._numbers = (np.array(mean, np.float32), np.array(std, np.float32))
        self._table = pixels.levels(mean, std)
        self._there: dict[Any, tuple[Tensor, Tensor, Tensor]] = {}

    def of_fractions(self, image: Tensor) -> Tensor:
        """Float32 [H, W, 3] in 0..1 -> float32 [3, H, W]."""
        mean, std, _ = self._on(image.device)
        return ((image - mean) / std).movedim(2, 0)

    def __call__(self, image: Tensor) -> Tensor:
        """See the class."""
        import torch

        table = self._on(image.device)[2]
        return table.gather(1, image.reshape(-1, 3).T.to(torch.int64)).reshape(3, *image.shape[:2])

    def _on(self, device: Any) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        if device not in self._there:
            mean, std, table = (torch.from_numpy(each).to(device) for each in (*self._numbers, self._table))
            self._there[device] = (mean, std, table)
        return self._there[device]


def place(image: Tensor, bucket: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Float32 [3, h, w] -> [3, H, W] and bool [H, W]; see ``pixels.place``."""
    import torch

    _, height, width = image.shape
    mask = torch.zeros(bucket, dtype=torch.bool, device=image.device)
    mask[:height, :width] = True
    return torch.nn.functional.pad(image, (0, bucket[1] - width, 0, bucket[0] - height)), mask
