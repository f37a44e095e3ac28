"""Images that are made larger by repeating themselves, for models that take only some sizes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

Ends = tuple[int, int]  # how many pixels are put before and after


def extend(image: Any, rows: Ends, columns: Ends, mode: Literal["edge", "symmetric"]) -> Any:
    """[H, W, ...] -> [rows + H, columns + W, ...], of arrays and of tensors of torch alike.

    ``edge`` repeats the last pixel; ``symmetric`` mirrors the image, the last pixel included, as often as it takes.
    """
    if not any((*rows, *columns)):
        return image
    down, across = (
        np.pad(np.arange(length), ends, mode=mode)
        for length, ends in zip(image.shape[:2], (rows, columns), strict=True)
    )
    return image[down][:, across]


def check(image: Any) -> None:
    """Raises ``ValueError`` for anything but RGB [H, W, 3] of bytes with at least one pixel."""
    if image.ndim != 3 or image.shape[2] != 3 or not all(image.shape) or "uint8" not in str(image.dtype):
        raise ValueError(f"wanted RGB uint8 [H, W, 3], not {image.dtype} {list(image.shape)}")
