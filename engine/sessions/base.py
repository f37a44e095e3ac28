"""A session runs one exported model: named arrays in, named arrays out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tallymill.engine.arrays import Array, stacked
from tallymill.errors import DeviceError, ModelError, TallymillError

__all__ = [
    "AFTER_A_FAILURE",
    "OF_TORCH",
    "Array",
    "Session",
    "TensorSpec",
    "any_tensor",
    "as_ours",
    "is_of_the_device",
    "stack",
    "stamp",
    "told_of",
]
AFTER_A_FAILURE = (
    "what was done is kept, and the same command goes on from there; where memory ran out, with fewer --workers"
)

# What torch raises of inputs that do not fit, of a card that fails and of memory that runs out.
OF_TORCH = (RuntimeError, IndexError, ValueError, MemoryError)

# How ONNX Runtime and torch word failures of a card, and that memory ran out, which concern no image more than the
# next. (Whatever else they raise may be of one image: a shape that does not fit the graph, which they alone find out.)
_OF_THE_CARD = re.compile(
    r"\b(CUDA|CUBLAS|CUDNN|CUFFT|CURAND|CUSOLVER|CUSPARSE|NVRTC)\w*( driver| runtime)? (failure|error)\b"
    r"|unable to find an engine to execute",
    re.IGNORECASE,
)
_OF_MEMORY = re.compile(
    r"allocate memory|out of memory|(not enough|insufficient) memory|\bbad[_ ]alloc"
    r"|available memory of \d+ is smaller than requested",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a model: its name, NumPy's name of its dtype, and its shape.

    A dimension of None may be anything, or is not declared; a shape of None has no declared rank.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None

    def fits(self, wanted: TensorSpec) -> bool:
        """Whether a tensor of the model, this, can be what is ``wanted``: undeclared dimensions may be any."""
        if (self.name, self.dtype) != (wanted.name, wanted.dtype):
            return False
        if self.shape is None or wanted.shape is None:
            return True
        return len(self.shape) == len(wanted.shape) and all(
            has is None or want is None or has == want for has, want in zip(self.shape, wanted.shape, strict=True)
        )

    def __str__(self) -> str:
        shape = "of any rank" if self.shape is None else [("?" if n is None else n) for n in self.shape]
        return f"{self.name} {self.dtype} {shape}".replace("'", "")


class Session(Protocol):
    """One loaded model on one device. Not thread-safe; a worker owns its sessions.

    ``device`` is "cpu", "cuda:0", "cuda:1" …; ``model`` is the file it was loaded from; ``inputs`` and ``outputs`` are
    what the file declares.
    """

    device: str
    model: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model once. Shapes and dtypes are the model's own; a mismatch is a ``ModelError``.

        Values are NumPy arrays, or tensors of torch on the session's device; what comes out is of the kind that went
        in, of the dtypes that ``outputs`` declares whatever the model computes in, and the caller's own: no later run
        writes to it. Where only some are tensors, the others are copied to the device, and tensors come out. Work on a
        card is in the order of the caller's current stream; a card that fails is a ``DeviceError``, as is memory that
        runs out, on the CPU too.
        """
        ...


def any_tensor(inputs: Mapping[str, Any]) -> bool:
    """Whether one of a session's inputs is a tensor of torch, so that tensors must come out."""
    return not all(isinstance(value, np.ndarray) for value in inputs.values())


def is_of_the_device(device: str, error: Exception) -> bool:
    """Whether an error, met while a model ran on ``device``, says that the card failed or that memory ran out, of the
    card or of the machine: a ``DeviceError``, then. Whether memory lasts depends on what else runs, such as workers.
    """
    if isinstance(error, MemoryError) or _OF_MEMORY.search(str(error)):
        return True
    return device != "cpu" and _OF_THE_CARD.search(str(error)) is not None


def told_of(device: str, error: Exception) -> str:
    """What such an error is told as: ``cuda:0 failed: …``."""
    what = "memory ran out" if device == "cpu" else f"{device} failed"
    return f"{what}: {str(error).strip() or type(error).__name__}"


@contextmanager
def as_ours(model: Path, device: str, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    """Errors of these kinds, met while ``model`` runs on ``device``, as ours and with its name: a ``DeviceError`` where
    they are of the device (see ``is_of_the_device``), a ``ModelError`` otherwise.
    """
    try:
        yield
    except TallymillError:
        raise
    except kinds as exc:
        if is_of_the_device(device, exc):
            raise DeviceError(f"{model}: {told_of(device, exc)}", hint=AFTER_A_FAILURE) from exc
        raise ModelError(f"{model}: {exc}") from exc


def stamp(status: os.stat_result) -> tuple[int, ...]:
    """What tells a file from another that took its place: device, inode, size and time of the last change."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def stack(rows: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Inputs by name, arrays or tensors of equal shapes [...] -> batches [B, ...]; a batch of one is no copy."""
    return {name: stacked([row[name] for row in rows]) for name in rows[0]}
