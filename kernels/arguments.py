"""What the operations share: checked array arguments, and the choice of an implementation.

Every check is one vectorised pass at most, because the public functions are also called for single images.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tallymill.errors import MissingExtraError, UsageError

_Scalar = TypeVar("_Scalar", bound=np.generic)
_Whole = TypeVar("_Whole", bound=np.signedinteger[Any])

DEVICES = ("cpu", "cuda")
MAX_THREADS = 256


def choose(operation: str, impl: str, device: str, implementations: Sequence[str]) -> str:
    """Return the one of ``implementations`` that ``impl`` stands for, without looking at the machine.

    ``auto`` is ``gpu`` on ``cuda`` where the operation has it, and ``cpu`` otherwise. A named implementation is
    returned as it is or refused with :class:`UsageError`; it is never replaced by another.
    """
    if device not in DEVICES:
        raise UsageError(f"{operation}: unknown device {device!r}", hint=f"one of: {', '.join(DEVICES)}")
    if impl == "auto":
        return "gpu" if device == "cuda" and "gpu" in implementations else "cpu"
    if impl not in implementations:
        names = ", ".join(("auto", *implementations))
        raise UsageError(f"{operation}: no implementation {impl!r}", hint=f"one of: {names}")
    return impl


def device_of(value: object) -> str:
    """``cuda`` for a torch tensor that lives on a GPU, ``cpu`` for anything else; torch is not imported for it."""
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and isinstance(value, torch.Tensor) and value.is_cuda else "cpu"


def gpu_module(operation: str) -> Any:
    """Import ``kernels/<operation>/gpu.py``; MissingExtraError where torch or Triton is not installed."""
    try:
        return importlib.import_module(f"tallymill.kernels.{operation}.gpu")
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "triton"):
            raise
        raise MissingExtraError.of(error.name, "gpu") from None


def array(name: str, value: object, dtype: type[_Scalar], *shape: int | None) -> NDArray[_Scalar]:
    """Return ``value`` as a C-contiguous array, copied only when it is strided or misaligned.

    ``shape`` gives the wanted length of each dimension, None where any length will do. A wrong type or dtype is a
    TypeError and a wrong shape a ValueError; both name the argument, what was wanted and what was given.
    """
    checked = _typed(name, value, dtype, shape)
    flags = checked.flags
    if flags.c_contiguous and flags.aligned:
        return checked
    return np.array(checked, order="C")


def output(name: str, value: object, dtype: type[_Scalar], *shape: int | None) -> NDArray[_Scalar]:
    """Return ``value``, which is written in place: a copy would lose the result, so a strided array is refused."""
    checked = _typed(name, value, dtype, shape)
    if not checked.flags.carray:
        raise ValueError(f"{name}: wanted a C-contiguous, aligned, writable array, because it is changed in place")
    return checked


def offsets(name: str, value: object, end: int, what: str) -> NDArray[np.int64]:
    """Return ``value`` as the offsets of ragged segments: from 0, never falling, up to ``end`` (the number of
    ``what``).
    """
    return offsets_of(np.int64, name, value, end, what)


def offsets_of(dtype: type[_Whole], name: str, value: object, end: int, what: str) -> NDArray[_Whole]:
    """The same for another type of whole numbers."""
    checked = array(name, value, dtype, None)
    if checked.size == 0 or checked[0] != 0:
        got = "no entries" if checked.size == 0 else str(checked[0])
        raise ValueError(f"{name}: wanted offsets that start at 0, got {got}")
    if checked[-1] != end:
        raise ValueError(f"{name}: wanted offsets that end at the number of {what}, {end}, got {checked[-1]}")
    rising = checked[1:] >= checked[:-1]
    if not rising.all():
        at = int(rising.argmin())
        raise ValueError(f"{name}: wanted offsets that never fall, got {checked[at]}, {checked[at + 1]} at {at}")
    return checked


def within(name: str, values: NDArray[Any], low: float, high: float, interval: str) -> None:
    """Refuse values outside ``low`` to ``high``, ends included; NaN is outside."""
    # The reductions carry NaN along, and no comparison with NaN holds.
    if values.size == 0 or (np.minimum.reduce(values) >= low and np.maximum.reduce(values) <= high):
        return
    at = int(np.argmin((values >= low) & (values <= high)))
    raise ValueError(f"{name}: wanted values in {interval}, got {values[at]} at {at}")


def threads(value: object) -> int:
    """Return a number of threads, 1 to 256."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"threads: wanted an int, got {type(value).__name__}")
    if not 1 <= value <= MAX_THREADS:
        raise ValueError(f"threads: wanted 1 to {MAX_THREADS}, got {value}")
    return int(value)


def number(name: str, value: object) -> float:
    """Return ``value`` as a float; NaN and the infinities are for the caller to refuse."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}: wanted a number, got {type(value).__name__}")
    return float(value)


def fraction(name: str, value: object) -> float:
    """Return a number in [0, 1]."""
    checked = number(name, value)
    if not 0.0 <= checked <= 1.0:
        raise ValueError(f"{name}: wanted a number in [0, 1], got {value}")
    return checked


def _typed(name: str, value: object, dtype: type[_Scalar], shape: tuple[int | None, ...]) -> NDArray[_Scalar]:
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name}: wanted a NumPy array of {dtype.__name__}, got {type(value).__name__}")
    if value.dtype != dtype:
        raise TypeError(f"{name}: wanted dtype {dtype.__name__}, got {value.dtype}")
    if value.shape != shape and not _fits(value.shape, shape):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name}: wanted shape [{wanted}], got {list(value.shape)}")
    return (
        value if type(value) is np.ndarray else value.view(np.ndarray)
    )  # np.matrix stays two-dimensional whatever is asked


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(want in (None, got) for want, got in zip(wanted, shape, strict=True))
