"""Bilinear sampling without ``GridSample``, for runtimes that get deformable attention wrong with it.

TensorRT 10.13 to 11 builds engines of deformable attention with ``GridSample`` that lose detections and mix the images
of a batch (NVIDIA/TensorRT#4813, #4646). Here the same is said with ``Pad``, ``Floor`` and ``GatherElements``.
"""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Iterator
from typing import Any


def grid_sample(
    values: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Any:
    """As ``torch.nn.functional.grid_sample``, of images, bilinear, with zeros outside.

    ``values`` [N, C, H, W] float, ``grid`` [N, Q, P, 2] float: x and y, -1 and 1 at the outer edges, or with
    ``align_corners`` at the centres of the outer pixels. Returns [N, C, Q, P]; what is not finite becomes NaN, and no
    place is ever read that is not there. Raises ``ValueError`` for other kinds of sampling.
    """
    import torch

    if values.ndim != 4 or (mode, padding_mode) != ("bilinear", "zeros"):
        raise ValueError(f"only bilinear sampling of images with zeros outside, not {mode}, {padding_mode}")
    height, width = values.shape[2:]
    x, y = (_pixels(grid[..., axis], side, bool(align_corners)) for axis, side in ((0, width), (1, height)))
    left, top = (torch.floor(at).clamp(max=side - 1) for at, side in ((x, width), (y, height)))
    right_weight, lower_weight = x - left, y - top
    # A frame of one pixel of zeros; what is farther away has been brought to it.
    framed = torch.nn.functional.pad(values, (1, 1, 1, 1)).flatten(2)
    corner = ((top + 1).to(torch.int64) * (width + 2) + (left + 1).to(torch.int64)).flatten(1)[:, None]
    last = (height + 2) * (width + 2) - 1

    def take(step: int, weight: Any) -> Any:
        places = (corner + step).clamp(0, last).expand(-1, framed.shape[1], -1)
        return framed.gather(2, places) * weight.flatten(1)[:, None]

    upper = take(0, (1 - right_weight) * (1 - lower_weight)) + take(1, right_weight * (1 - lower_weight))
    lower = take(width + 2, (1 - right_weight) * lower_weight) + take(width + 3, right_weight * lower_weight)
    return (upper + lower).unflatten(2, grid.shape[1:3])


def _pixels(at: Any, side: int, corners: bool) -> Any:
    """From -1..1 to the index of a pixel, at most one pixel outside."""
    index = (at + 1) * ((side - 1) / 2) if corners else (at + 1) * (side / 2) - 0.5
    return index.clamp(-1, side)


@contextlib.contextmanager
def without_grid_sample() -> Iterator[None]:
    """Meanwhile ``torch.nn.functional.grid_sample`` is ours: all deformable attention of transformers calls it, and
    RAFT of torchvision.
    """
    import torch

    with unittest.mock.patch.object(torch.nn.functional, "grid_sample", grid_sample):
        yield
