"""Masks from their definitions, in NumPy: the oracle that every other implementation must equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tallymill.kernels.mask_iou.masks import Masks


def tiles(box: NDArray[np.int32]) -> NDArray[np.int64]:
    """How many tiles of 8x8 pixels each box touches, [K]; those of an image's boxes only."""
    x1, y1, x2, y2 = box.T.astype(np.int64)
    return np.where((x1 < x2) & (y1 < y2), (-(-x2 // 8) - x1 // 8) * (-(-y2 // 8) - y1 // 8), 0)


def unpack(
    words: NDArray[np.uint64], start: NDArray[np.int64], box: NDArray[np.int32], height: int, width: int
) -> NDArray[np.bool_]:
    """Bool [K, H, W]."""
    masks = np.zeros((len(start), height, width), np.bool_)
    for mask, first, (x1, y1, x2, y2), n in zip(masks, start, box.tolist(), tiles(box), strict=True):
        if n:
            left, top, columns = x1 // 8, y1 // 8, -(-x2 // 8) - x1 // 8
            octets = words[first : first + n].astype("<u8").view(np.uint8)
            bits = np.unpackbits(octets, bitorder="little").reshape(-1, columns, 8, 8)
            pixels = bits.swapaxes(1, 2).reshape(-1, columns * 8)
            mask[y1:y2, x1:x2] = pixels[y1 - 8 * top : y2 - 8 * top, x1 - 8 * left : x2 - 8 * left]
    return masks


def mask_iou(a: Masks, b: Masks, threads: int) -> NDArray[np.float64]:
    """Count the pixels in both masks and those in either."""
    del threads  # part of the shared signature
    iou = np.zeros((len(a), len(b)))
    ours, others = a.to_arrays(), b.to_arrays()
    for i, one in enumerate(ours):
        for j, other in enumerate(others):
            union = np.count_nonzero(one | other)
            if union:
                iou[i, j] = np.count_nonzero(one & other) / union
    return iou
