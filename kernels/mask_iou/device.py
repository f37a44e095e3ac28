"""Masks in the memory of a device, laid out like :class:`~tallymill.kernels.mask_iou.masks.Masks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tallymill.errors import UsageError
from tallymill.kernels import tensors

if TYPE_CHECKING:
    from tallymill.kernels.mask_iou.masks import Masks

MAX_PIXELS = 2**31 - 1  # of one image: pixels and tiles are counted in 32 bits


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMasks:
    """K masks of one size as torch tensors: ``words`` int64 [N] (the bits of uint64), ``start`` and ``area`` int64 [K],
    ``box`` int32 [K, 4]. Made by :meth:`Masks.to`, which has checked them.
    """

    words: Any
    start: Any
    area: Any
    box: Any
    height: int
    width: int

    def __len__(self) -> int:
        return len(self.start)

    @property
    def is_cuda(self) -> bool:
        """Whether they lie on a GPU."""
        return bool(self.words.is_cuda)


def moved(masks: Masks, device: Any) -> DeviceMasks:
    """Copy ``masks`` to ``device``, in torch's words ("cuda", "cuda:1", "cpu")."""
    if masks.height * masks.width > MAX_PIXELS:
        raise UsageError(
            f"masks of {masks.height}x{masks.width} pixels are too large for a device", hint=f"at most {MAX_PIXELS}"
        )
    torch = tensors.torch()
    # torch does not take read-only arrays, hence the copies.
    words, start, area, box = (
        torch.from_numpy(np.array(values)).to(device)
        for values in (masks.words.view(np.int64), masks.start, masks.area, masks.box)
    )
    return DeviceMasks(words, start, area, box, masks.height, masks.width)
