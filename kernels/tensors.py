"""Checks of the torch tensors that the Triton implementations take: kind, dtype, shape, place. Never of their values,
which would make the host wait for the card. torch is imported when the first tensor is checked.
"""

from __future__ import annotations

import sys
from typing import Any

from tallymill.errors import MissingExtraError, UsageError

ALIGNMENT = 16  # bytes; what the shipped kernels were compiled for


def torch() -> Any:
    """Import torch; MissingExtraError where it is not installed."""
    try:
        import torch as module
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError.of("torch", "gpu") from None
    return module


def is_tensor(value: object) -> bool:
    """Whether it is a torch tensor, on whatever device; torch is not imported for it."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(value, module.Tensor)


def on_host(name: str, value: Any) -> Any:
    """Return a tensor of the CPU as the array that shares its memory, and what is no tensor as it is.

    TypeError for a tensor elsewhere, which the host would have to wait for.
    """
    if not is_tensor(value):
        return value
    if value.device.type != "cpu":
        raise TypeError(f"{name}: wanted an array of the host, got a tensor on {value.device}")
    if value.dtype == torch().bfloat16:
        raise TypeError(f"{name}: wanted a type that NumPy has, got bfloat16")
    return value.detach().numpy()


def tensor(name: str, value: object, dtype: str, *shape: int | None) -> Any:
    """Return ``value`` as a contiguous, aligned tensor on its own device, copied only when it is neither.

    ``dtype`` as torch names it ("float32"); ``shape`` gives the wanted length of each dimension, None where any length
    will do. A wrong type or dtype is a TypeError and a wrong shape a ValueError, as for arrays.
    """
    if not isinstance(value, torch().Tensor):
        raise TypeError(f"{name}: wanted a torch tensor of {dtype}, got {type(value).__name__}")
    checked: Any = value
    if checked.dtype != getattr(torch(), dtype):
        raise TypeError(f"{name}: wanted dtype {dtype}, got {str(checked.dtype).removeprefix('torch.')}")
    got = tuple(checked.shape)
    if len(got) != len(shape) or any(want not in (None, have) for want, have in zip(shape, got, strict=True)):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name}: wanted shape [{wanted}], got {list(got)}")
    if checked.is_contiguous() and checked.data_ptr() % ALIGNMENT == 0:
        return checked
    return checked.clone(memory_format=torch().contiguous_format)


def place(operation: str, **tensors: Any) -> Any:
    """Return the one device of all ``tensors``, on which Triton must be able to run.

    ValueError where they lie apart; UsageError where they lie on a CPU and Triton does not interpret.
    """
    (first, one), *others = tensors.items()
    for name, other in others:
        if other.device != one.device:
            raise ValueError(f"{name}: wanted a tensor on {one.device} like {first}, got one on {other.device}")
    if one.device.type != "cuda" and not _interpreted():
        raise UsageError(
            f"{operation}: the gpu implementation wants tensors on a GPU, got {one.device}",
            hint="move them with .cuda(), or use impl='cpu' with NumPy arrays",
        )
    return one.device


def _interpreted() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)
