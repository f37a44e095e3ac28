"""A batch of items on its way through the detectors: columns, not objects, so that a million rows cost little."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

MAX_TARGETS = 255


@dataclass(frozen=True, slots=True)
class Targets:
    """The requested (category, count) pairs of a batch of I items, flat.

    ``offsets`` int64 [I+1]; ``codes`` int64 [T] into ``categories``, where None stands for a category that is not
    known (of items made from proposals alone); ``count`` int64 [T] as written, null as -1;
    ``requested`` uint16 [T] is the count clipped to what that type holds (items whose count is outside 1..100 are
    error rows, so a clipped value is never scored).
    """

    offsets: NDArray[np.int64]
    codes: NDArray[np.int64]
    categories: list[str | None]
    count: NDArray[np.int64]

    @property
    def requested(self) -> NDArray[np.uint16]:
        """Counts as uint16 [T]."""
        return np.clip(self.count, 0, np.iinfo(np.uint16).max).astype(np.uint16)

    @property
    def item(self) -> NDArray[np.int64]:
        """The item that each target belongs to: int64 [T]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(slots=True)
class ItemBatch:
    """I rows of the manifest and, where a detector needs pixels, their images.

    ``rows`` is a canonical record batch (see ``items.py``); ``contents[i]`` is the bytes of the image's file, its
    pixels (RGB uint8 [H, W, 3]), or None where nobody looks, or looked already;
    ``sizes`` int32 [I, 2] holds (height, width), 0 where unknown; ``errors[i]`` says why item i cannot be scored.
    """

    rows: pa.RecordBatch
    targets: Targets
    contents: list[bytes | NDArray[np.uint8] | None]
    sizes: NDArray[np.int32]
    hashes: list[str | None]
    errors: list[str | None] = field(default_factory=list)

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Items without an error so far: bool [I]."""
        return np.array([error is None for error in self.errors], dtype=np.bool_)


def batch_of(rows: pa.RecordBatch) -> ItemBatch:
    """Unpack a canonical record batch; images are filled in later."""
    targets = _targets(rows.column("targets"))
    errors = _row_errors(rows.column("error"), np.diff(targets.offsets))
    return ItemBatch(
        rows=rows,
        targets=targets,
        contents=[None] * rows.num_rows,
        sizes=np.zeros((rows.num_rows, 2), np.int32),
        hashes=[None] * rows.num_rows,
        errors=errors,
    )


def _targets(column: Any) -> Targets:
    lengths = np.asarray(column.value_lengths().fill_null(0), dtype=np.int64)
    pairs = column.flatten()
    encoded = pairs.field("category").dictionary_encode(null_encoding="encode")
    return Targets(
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        codes=np.asarray(encoded.indices, dtype=np.int64),
        categories=encoded.dictionary.to_pylist(),
        count=np.asarray(pairs.field("count").fill_null(-1), dtype=np.int64),
    )


def _row_errors(column: Any, lengths: NDArray[np.int64]) -> list[str | None]:
    errors: list[str | None] = [None] * len(lengths)
    if column.null_count < len(column):
        errors = [None if text is None else f"targets: {text}" for text in column.to_pylist()]
    for i in np.flatnonzero(lengths > MAX_TARGETS):
        errors[i] = f"targets: {lengths[i]} categories asked of one image; at most {MAX_TARGETS} can be told apart"
    return errors
