"""What NumPy arrays and tensors of torch are asked in different words; torch is imported only for tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any  # an array of NumPy, or a tensor of torch


def is_array(value: Array) -> bool:
    """Whether it is NumPy's; a tensor otherwise."""
    return isinstance(value, np.ndarray)


def to_host(value: Array) -> NDArray[Any]:
    """As an array of NumPy, which waits for the device; one that is one already, or a tensor of the CPU, is shared."""
    found: NDArray[Any] = value if is_array(value) else value.detach().cpu().numpy()
    return found


def to_device(value: NDArray[Any], device: Any) -> Array:
    """An array as a tensor on a device (``cpu`` too, where memory is shared unless the array may not be written to, or
    runs backwards: torch has no tensors of either).
    """
    import torch

    if not value.flags.writeable or min(value.strides, default=0) < 0:
        value = value.copy()
    return torch.from_numpy(value).to(device)


def beside(value: NDArray[Any], other: Array) -> Array:
    """An array as what ``other`` is, where that is."""
    return value if is_array(other) else to_device(value, other.device)


class Picture:
    """A decoded image, RGB uint8 [H, W, 3], wherever a detector takes it: it is sent to a device once."""

    def __init__(self, pixels: Array) -> None:
        self._there: dict[str | None, Array] = {None if is_array(pixels) else str(pixels.device): pixels}
        self.size: tuple[int, int] = (int(pixels.shape[0]), int(pixels.shape[1]))

    def at(self, place: str | None) -> Array:
        """A tensor on the device ``place``, or an array where that is None."""
        if place not in self._there:
            first = next(iter(self._there.values()))
            if place is None:
                self._there[place] = to_host(first)
            else:
                self._there[place] = to_device(first, place) if is_array(first) else first.to(place)
        return self._there[place]


def joined(parts: Sequence[Array]) -> Array:
    """Parts [N, ...] of one kind, end to end; a single one as it is."""
    if len(parts) == 1:
        return parts[0]
    if is_array(parts[0]):
        return np.concatenate(parts)
    import torch

    return torch.cat(list(parts))


def stacked(parts: Sequence[Array]) -> Array:
    """Parts [...] of equal shapes -> [B, ...], without a copy of a single one."""
    if len(parts) == 1:
        return parts[0][None]
    if is_array(parts[0]):
        return np.stack(parts)
    import torch

    return torch.stack(list(parts))


def rising(keys: Array) -> Array:
    """The places of ``keys`` [N] in rising order, of equal ones the first before the others: int64 [N]."""
    return keys.argsort(kind="stable") if is_array(keys) else keys.argsort(stable=True)


def chosen(condition: Array, value: Array, other: float) -> Array:
    """``value`` where the condition holds, and the number where it does not."""
    if is_array(value):
        return np.where(condition, value, value.dtype.type(other))
    return value.masked_fill(~condition, other)


def least_of(rows: Array) -> Array:
    """The least of each row of [B, N], N at least 1: [B]."""
    return rows.min(1) if is_array(rows) else rows.min(1).values


def widened(rows: Array, width: int) -> Array:
    """Rows [N, C] with zeros behind: [N, width]."""
    missing = width - rows.shape[1]
    if not missing:
        return rows
    if is_array(rows):
        return np.pad(rows, ((0, 0), (0, missing)))
    import torch

    return torch.nn.functional.pad(rows, (0, missing))
