"""Whether the rest of the scene survived an edit: drift by optical flow, appearance by MS-SSIM, on the background only.

The background is what no instance of the edited category covers, in either image. ABACUS takes the harmonic mean of
the two terms (arXiv ABACUS, "Scene consistency SC"); an SSIM of five scales is that of Wang, Simoncelli and Bovik 2003.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Planes = NDArray[np.float32]

DRIFT = 0.01  # of the diagonal: the mean flow at which the structural term is 1/e
MARGIN = 17  # pixels: side of the square by which instances are grown
WINDOW, SIGMA = 11, 1.5
WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
C1, C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
LEAST_SIDE = WINDOW * 2 ** (len(WEIGHTS) - 1)  # the window fits once at the coarsest scale: 176
MOST_GROWN = 1 << 22  # pixels of an image that is scaled up to the least side: 135 times as long as it is wide
STRIP = 32  # rows of an image that are worked on at once
TINY = np.finfo(np.float32).tiny
_LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601


@dataclass(frozen=True, slots=True)
class Consistency:
    """``structure``, ``appearance`` and ``scene``, their harmonic mean, in [0, 1]; None where no background is left;
    the latter two also of an image that is too thin (see ``appearance``).
    """

    structure: float | None
    appearance: float | None
    scene: float | None
    background: float  # share of pixels


def background(height: int, width: int, instances: Iterable[Mask], margin: int = MARGIN) -> Mask:
    """Pixels outside every instance, each bool [H, W], grown by a square of ``margin`` pixels: bool [H, W]."""
    covered = np.zeros((height, width), np.uint8)
    for instance in instances:
        covered |= instance.view(np.uint8)
    if margin > 1:
        covered = np.asarray(cv2.dilate(covered, np.ones((margin, margin), np.uint8)), np.uint8)
    kept: Mask = covered == 0
    return kept


def consistency(source: NDArray[Any], edited: NDArray[Any], flow: NDArray[np.float32], background: Mask) -> Consistency:
    """Both terms of an edit and their harmonic mean, which is 0 when one of them is.

    RGB [H, W, 3] twice (see ``luma``), ``flow`` float32 [H, W, 2] in pixels between them, ``background`` bool [H, W].
    """
    structural, visual = structure(flow, background), appearance(luma(source), luma(edited), background)
    scene = None
    if structural is not None and visual is not None:
        scene = 2 * structural * visual / (structural + visual) if structural > 0 and visual > 0 else 0.0
    return Consistency(structural, visual, scene, float(background.mean()) if background.size else 0.0)


def structure(flow: NDArray[np.float32], background: Mask) -> float | None:
    """exp(-mean length of the flow / 1 % of the diagonal) over the background; None without any."""
    if not background.any():
        return None
    lengths = np.hypot(flow[..., 0][background], flow[..., 1][background])
    return float(np.exp(-lengths.mean(dtype=np.float64) / (DRIFT * np.hypot(*background.shape))))


def luma(image: NDArray[Any]) -> NDArray[np.float32]:
    """RGB [H, W, 3], uint8 or floats in [0, 1], or gray [H, W] of either -> float32 [H, W] in 0..255, not rounded."""
    values = image.astype(np.float64)
    if image.dtype != np.uint8:
        values *= 255
    return (values @ _LUMA if values.ndim == 3 else values).astype(np.float32)


def appearance(a: NDArray[np.float32], b: NDArray[np.float32], background: Mask) -> float | None:
    """Masked MS-SSIM of two lumas float32 [H, W] in [0, 1]; None when no background is left at some scale (it lies in
    odd last rows or columns alone), and of an image so thin that it would grow beyond ``MOST_GROWN`` pixels.

    Every local mean weighs a pixel by the window and the mask, so that what is masked has no part in it (pixels set to
    0 would be alike in both, and lift the value). The means of a scale are over windows within the image, weighted by
    the mask at their centre: without a mask it is MS-SSIM as libraries have it. Where none of their centres is
    background, at the coarsest scale all of a border of 80 pixels, windows that reach over the edge stand for them;
    what is outside the image is masked. An image with a side under 176 pixels is scaled up to it first.
    """
    if np.prod(_least_size(*a.shape)) > max(MOST_GROWN, a.size):
        return None
    a, b, weight = _large_enough(a, b, background.astype(np.float32))
    # Squares of what is near 0 keep their bits; the level is that of the background alone.
    shift = np.float32((a + b).mean(where=weight > 0, dtype=np.float64) / 2) if weight.any() else np.float32(0)
    planes: Planes = np.asarray(cv2.merge([weight, weight * (a - shift), weight * (b - shift)]), np.float32)
    result = 1.0
    for scale, power in enumerate(WEIGHTS):
        if scale:
            planes = _halved(planes)
        terms = _similarity(planes, float(shift))
        if terms is None:
            return None
        likeness, contrast = terms
        last = scale == len(WEIGHTS) - 1
        result *= max(likeness if last else contrast, 0.0) ** power
    return min(max(result, 0.0), 1.0)


def _large_enough(
    a: NDArray[np.float32], b: NDArray[np.float32], weight: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    height, width = _least_size(*a.shape)
    if (height, width) == a.shape:
        return a, b, weight
    size = width, height
    grown = [np.asarray(cv2.resize(each, size, interpolation=cv2.INTER_LINEAR), np.float32) for each in (a, b)]
    return grown[0], grown[1], np.asarray(cv2.resize(weight, size, interpolation=cv2.INTER_NEAREST), np.float32)


def _least_size(height: int, width: int) -> tuple[int, int]:
    """Height and width with a short side of at least ``LEAST_SIDE``."""
    factor = LEAST_SIDE / max(min(height, width), 1)
    return (height, width) if factor <= 1 else (round(height * factor), round(width * factor))


def _halved(planes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Means of 2 x 2 pixels of weights and weighted values; an odd row or column at the end is left out."""
    height, width, _ = planes.shape
    even = planes[: height // 2 * 2, : width // 2 * 2]
    return np.asarray(cv2.resize(even, (width // 2, height // 2), interpolation=cv2.INTER_AREA), np.float32)


def _similarity(planes: NDArray[np.float32], shift: float) -> tuple[float, float] | None:
    """Means of SSIM and of its contrast term at one scale, of ``weight`` and weighted lumas less ``shift``: of windows
    inside the image, or with centres anywhere in it where those see no background.
    """
    inside = _means(planes, shift)
    if inside is not None or not planes[..., 0].any():
        return inside
    edge = (WINDOW // 2,) * 4
    return _means(np.asarray(cv2.copyMakeBorder(planes, *edge, cv2.BORDER_CONSTANT, value=0), np.float32), shift)


def _means(planes: NDArray[np.float32], shift: float) -> tuple[float, float] | None:
    """The same of windows inside ``planes``; None where no centre of one is background.

    In strips of rows, each with what its windows reach: arrays of a whole image would leave the caches at every step.
    """
    rows = len(planes) - WINDOW + 1
    sums = np.zeros(3)
    for top in range(0, rows, STRIP):
        sums += _sums(planes[top : min(top + STRIP, rows) + WINDOW - 1], np.float32(shift))
    likeness, contrast, total = sums
    return (float(likeness / total), float(contrast / total)) if total > 0 else None


def _sums(planes: NDArray[np.float32], shift: np.float32) -> NDArray[np.float64]:
    """SSIM, its contrast term and 1, each weighted at the centres of windows and summed over a strip."""
    weight, x, y = cv2.split(planes)
    inner = slice(WINDOW // 2, -(WINDOW // 2))
    centre = weight[inner, inner]
    # Weighted squares: at a coarse scale a weight is a share of four pixels, and x / weight their mean.
    safe = np.maximum(weight, TINY)
    moments = (weight, x, y, x * x / safe, y * y / safe, x * y / safe)
    norm, *weighted = cv2.split(_blurred(np.asarray(cv2.merge(moments), np.float32))[inner, inner])
    share = 1 / np.maximum(norm, TINY)
    mx, my, xx, yy, xy = (each * share for each in weighted)
    contrast = (2 * (xy - mx * my) + C2) / ((xx - mx * mx) + (yy - my * my) + C2)
    mx += shift
    my += shift
    likeness = (2 * mx * my + C1) / (mx * mx + my * my + C1) * contrast
    return np.array([(centre * each).sum(dtype=np.float64) for each in (likeness, contrast, np.float32(1))])


def _blurred(planes: NDArray[np.float32]) -> Any:
    kernel = cv2.getGaussianKernel(WINDOW, SIGMA, cv2.CV_32F)
    return cv2.sepFilter2D(planes, cv2.CV_32F, kernel, kernel, borderType=cv2.BORDER_CONSTANT)
