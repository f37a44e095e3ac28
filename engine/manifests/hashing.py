"""A 64-bit hash of strings, computed for a whole Arrow array at once."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

UInt64s = np.ndarray[Any, np.dtype[np.uint64]]

# Above this, eight bytes a step for a whole batch costs more than hashing the few long strings one by one.
_LONG = 256
_SEED = np.uint64(0x2545F4914F6CDD1D)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX2 = np.uint64(0xC4CEB9FE1A85EC53)


def string_parts(array: pa.Array) -> tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.uint8]]]:
    """Offsets (int32, n + 1, from the array's own start) and bytes (uint8) of a string or binary array."""
    if len(array) == 0:
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]


def hash64(array: pa.Array) -> UInt64s:
    """Hash each string of a string array without nulls: uint64, one a row, the same for any batching."""
    offsets, data = string_parts(array)
    lengths = np.diff(offsets).astype(np.int64)
    # Seven bytes of padding, so that an eight-byte read that starts at the last byte stays inside.
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    words = np.ndarray((len(data) + 1,), np.dtype("<u8"), padded.data, 0, (1,))
    state = _mix(_SEED ^ (lengths.astype(np.uint64) * _ODD))
    active = np.flatnonzero((lengths > 0) & (lengths <= _LONG))
    step = 0
    while len(active):
        left = lengths[active] - 8 * step
        chunk = words[offsets[active] + 8 * step]
        unused = (8 * np.clip(8 - left, 0, 7)).astype(np.uint64)
        chunk = (chunk << unused) >> unused
        state[active] = _mix((state[active] ^ chunk) * _ODD)
        active = active[left > 8]
        step += 1
    for row in np.flatnonzero(lengths > _LONG):
        text = data[offsets[row] : offsets[row + 1]].tobytes()
        state[row] = np.frombuffer(hashlib.blake2b(text, digest_size=8).digest(), "<u8")[0]
    return state


def _mix(value: UInt64s) -> UInt64s:
    """Spread every bit of the input over all bits (multiply and shift, invertible)."""
    value = (value ^ (value >> np.uint64(33))) * _MIX1
    value = (value ^ (value >> np.uint64(33))) * _MIX2
    return value ^ (value >> np.uint64(33))
