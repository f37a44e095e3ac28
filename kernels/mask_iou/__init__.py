"""Intersection over union of masks, packed to bits."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import arguments
from tallymill.kernels.mask_iou import cpu, reference
from tallymill.kernels.mask_iou.device import DeviceMasks
from tallymill.kernels.mask_iou.masks import Masks, panoptic_ids

__all__ = ["IMPLEMENTATIONS", "DeviceMasks", "Masks", "mask_iou", "panoptic_ids", "select"]

IMPLEMENTATIONS = ("cpu", "portable", "gpu", "reference")


def select(impl: str, device: str = "cpu") -> str:
    """Name the implementation that runs for ``impl`` (auto or one of ``IMPLEMENTATIONS``); UsageError for any other.

    ``cpu`` counts bits with AVX-512 VPOPCNTDQ where the processor has it, and is the same as ``portable`` elsewhere.
    """
    return arguments.choose("mask_iou", impl, device, IMPLEMENTATIONS)


@overload
def mask_iou(a: Masks, b: Masks, *, impl: str = "auto", threads: int = 1) -> NDArray[np.float64]: ...


@overload
def mask_iou(a: DeviceMasks, b: DeviceMasks, *, impl: str = "auto", threads: int = 1) -> Any: ...


def mask_iou(a: Any, b: Any, *, impl: str = "auto", threads: int = 1) -> Any:
    """Return the IoU of each mask of ``a`` [n] with each of ``b`` [m]: float64 [n, m].

    Pixels in both, divided by pixels in either, in float64: to the bit what ``pycocotools.mask.iou`` gives without
    crowds. An empty mask has IoU 0 with every mask, itself too. ``threads`` (1 to 256) share out the masks of ``a``;
    the result does not depend on it, nor on the implementation. Masks of different sizes are a ValueError.

    Masks that ``Masks.to`` moved to a GPU stay there: the result is a torch tensor beside them, and the host waits for
    nothing. ``threads`` mean nothing there.
    """
    chosen = select(impl, "cuda" if isinstance(a, DeviceMasks) and a.is_cuda else "cpu")
    wanted, how = (DeviceMasks, "Masks.to") if chosen == "gpu" else (Masks, "Masks.from_arrays")
    for name, masks in (("a", a), ("b", b)):
        if not isinstance(masks, wanted):
            raise TypeError(f"{name}: wanted {wanted.__name__} (see {how}), got {type(masks).__name__}")
    if (a.height, a.width) != (b.height, b.width):
        raise ValueError(f"b: wanted masks of {a.height}x{a.width} pixels like those of a, got {b.height}x{b.width}")
    threads = arguments.threads(threads)
    if chosen == "gpu":
        return arguments.gpu_module("mask_iou").mask_iou(a, b)
    if chosen == "reference":
        return reference.mask_iou(a, b, threads)
    return cpu.mask_iou(a, b, threads, portable=chosen == "portable")
