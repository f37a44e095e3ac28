"""COCO run lengths as they come from JSON files and from pycocotools: sizes and counts, checked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import _native

Counts = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Counts of all masks, int64 [N], and the offsets of each mask's, int64 [K+1]."""

_MOST_GROUPS = 13  # of five bits in 64
# By the native code's enum Fault.
RLE_FAULTS = (
    "",
    "has a character that run lengths are not written with",
    "is cut off",
    "has a count that is negative or above the number of pixels",
)


def size_of(rles: Sequence[dict[str, Any]], size: tuple[int, int] | None) -> tuple[int, int]:
    """Return the one size (H, W) that all have; it must be ``size`` where this is given."""
    wanted = None if size is None else _size("size", size)
    written: Any = None
    for k, rle in enumerate(rles):
        if not isinstance(rle, dict) or "size" not in rle or "counts" not in rle:
            raise TypeError(f"mask {k}: wanted a dict of size and counts, got {rle!r:.60}")
        if type(rle["size"]) is list and rle["size"] == written:
            continue  # as checked before
        written = rle["size"]
        own = _size(f"mask {k}", written)
        wanted = wanted or own
        if own != wanted:
            raise ValueError(f"mask {k}: wanted size {list(wanted)} like the others, got {list(own)}")
    if wanted is None:
        raise ValueError("size: wanted the height and width, because there is no mask that has them")
    return wanted


def counts_of(rles: Sequence[dict[str, Any]], pixels: int) -> Counts:
    """Return the counts of all; compressed ones are decoded, and none of these is negative or above ``pixels``."""
    written = [rle["counts"] for rle in rles]
    if all(isinstance(counts, str | bytes) for counts in written):
        return _decoded(written, pixels)
    parts = [
        _decoded([counts], pixels, k)[0] if isinstance(counts, str | bytes) else _listed(counts, k)
        for k, counts in enumerate(written)
    ]
    return np.concatenate(parts), _offsets([len(part) for part in parts])


def runs_of(mask: NDArray[np.bool_], box: NDArray[np.int32]) -> NDArray[np.int64]:
    """Counts of one mask, bool [H, W] and nothing outside ``box``: down the columns, outside first."""
    height, width = mask.shape
    x1, _, x2, _ = (int(side) for side in box)
    columns = mask[:, x1:x2].T.reshape(-1)
    inside = np.concatenate([[False], columns, [False]])
    changes = np.flatnonzero(inside[1:] != inside[:-1]) + x1 * height
    ends = np.concatenate([[0], changes, [height * width]])
    runs = np.diff(ends)
    return runs[:-1] if len(runs) > 1 and not runs[-1] else runs


def compressed(counts: NDArray[np.int64]) -> str:
    """Counts as COCO writes them: from the fourth on less the one before the last, in groups of five bits."""
    rest = counts.copy()
    rest[3:] -= counts[1:-2]
    characters = np.zeros((len(rest), _MOST_GROUPS), np.uint8)
    used = np.zeros(characters.shape, np.bool_)
    live = np.ones(len(rest), np.bool_)
    for place in range(_MOST_GROUPS):
        group = rest & 31
        rest >>= 5
        more = np.where(group & 16, rest != -1, rest != 0)
        characters[:, place] = 48 + (group | more * 32)
        used[:, place] = live
        live = live & more
    return characters[used].tobytes().decode("ascii")


def uncovered(k: int, counts: NDArray[np.int64], height: int, width: int) -> ValueError:
    """Return the error of mask ``k``, whose counts are negative or do not add up to the image."""
    negative = counts[counts < 0]
    if negative.size:
        return ValueError(f"mask {k}: counts has {negative[0]}, which is negative")
    total = sum(counts.tolist())  # exact beyond int64
    return ValueError(f"mask {k}: counts add up to {total} pixels, wanted {height}x{width} = {height * width}")


def _size(name: str, value: Any) -> tuple[int, int]:
    try:
        height, width = (int(side) for side in value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: wanted a size of height and width, got {value!r}") from None
    return height, width


def _decoded(texts: Sequence[str | bytes], pixels: int, first: int = 0) -> Counts:
    # Characters beyond ASCII become bytes that are refused.
    parts = [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in texts]
    joined = b"".join(parts)
    counts, offsets = np.empty(len(joined), np.int64), np.empty(len(parts) + 1, np.int64)
    wrong, fault = _native.masks_rle_decode(joined, _offsets([len(part) for part in parts]), pixels, counts, offsets)
    if wrong >= 0:
        raise ValueError(f"mask {first + wrong}: counts {texts[wrong]!r:.60} {RLE_FAULTS[fault]}")
    return counts[: offsets[-1]], offsets


def _listed(counts: Any, k: int) -> NDArray[np.int64]:
    values = np.asarray(counts)
    if values.size == 0:
        return np.empty(0, np.int64)
    if values.ndim != 1 or values.dtype.kind not in "iu" or values.max() > np.iinfo(np.int64).max:
        raise ValueError(f"mask {k}: wanted counts as integers, str or bytes, got {counts!r:.60}")
    return values.astype(np.int64)


def _offsets(lengths: Sequence[int]) -> NDArray[np.int64]:
    return np.array([*accumulate(lengths, initial=0)], np.int64)
