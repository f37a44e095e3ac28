"""Masks in C++ (``kernels/csrc/masks.cpp``, ``kernels/csrc/mask_iou.cpp``): arrays are allocated here, filled there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import _native

if TYPE_CHECKING:
    from tallymill.kernels.mask_iou.masks import Masks

Boxes = NDArray[np.int32]
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

misplaced = _native.masks_misplaced
pack_rle = _native.masks_rle_pack
pack_ids = _native.masks_pack_ids


def lay_out(box: Boxes) -> tuple[Integers, Words]:
    """Where each of the masks starts, one after another, and words of zeros for all of them."""
    start = np.empty(len(box), np.int64)
    return start, np.zeros(_native.masks_lay_out(box, start), np.uint64)


def measure_arrays(arrays: NDArray[np.uint8]) -> Boxes:
    """Box of each mask, int32 [K, 4]."""
    box = np.empty((len(arrays), 4), np.int32)
    _native.masks_measure_arrays(arrays, box)
    return box


def pack_arrays(arrays: NDArray[np.uint8], box: Boxes, start: Integers, words: Words) -> Integers:
    """Fill in the words, and return the areas."""
    area = np.empty(len(arrays), np.int64)
    _native.masks_pack_arrays(arrays, box, start, words, area)
    return area


def measure_rle(counts: Integers, offsets: Integers, height: int, width: int) -> tuple[Boxes, Integers, int]:
    """Box and area of each mask, and the first one whose counts do not cover the image, or -1."""
    box, area = np.empty((len(offsets) - 1, 4), np.int32), np.empty(len(offsets) - 1, np.int64)
    return box, area, _native.masks_rle_measure(counts, offsets, height, width, box, area)


def measure_ids(image: NDArray[Any], rising: NDArray[np.uint32]) -> tuple[Boxes, Integers]:
    """Box and area of each of the ids, which rise."""
    box, area = np.empty((len(rising), 4), np.int32), np.empty(len(rising), np.int64)
    _native.masks_measure_ids(image, rising, box, area)
    return box, area


def ids_of_colours(rgb: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """R + 256 G + 65536 B."""
    ids = np.empty(rgb.shape[:2], np.uint32)
    _native.masks_ids_of_colours(rgb.reshape(-1), ids.reshape(-1))
    return ids


def mask_iou(a: Masks, b: Masks, threads: int, portable: bool = False) -> NDArray[np.float64]:
    """Pairs whose boxes do not meet keep their zero."""
    iou = np.zeros((len(a), len(b)))
    one, other = (a.words, a.start, a.area, a.box), (b.words, b.start, b.area, b.box)
    _native.mask_iou(*one, *other, portable, threads, iou.reshape(-1))
    return iou
