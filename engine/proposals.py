"""Ragged proposals of one detector over a batch of items, and their Arrow form (one row an item)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

OK, ERROR = "ok", "error"

SCHEMA = pa.schema(
    [
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("image_hash", pa.string()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("saturated", pa.bool_(), nullable=False),
        pa.field("requested", pa.list_(pa.uint16()), nullable=False),
        pa.field("covered", pa.list_(pa.bool_()), nullable=False),
        pa.field("target", pa.list_(pa.uint8()), nullable=False),
        pa.field("confidence", pa.list_(pa.float32()), nullable=False),
        pa.field("box", pa.list_(pa.list_(pa.float32(), 4)), nullable=False),
    ]
)
SCHEMA_WITH_SUPPRESSED = SCHEMA.append(pa.field("kept", pa.list_(pa.bool_()), nullable=False))


@dataclass(frozen=True, slots=True)
class Proposals:
    """What one detector found in I items: T targets and P retained boxes, flat with offsets.

    ``image_hash`` is that of the file the detector looked at, null where it looked at none;
    ``sizes`` int32 [I, 2] (height, width), 0 where unknown; ``errors[i]`` is None for an item that went well;
    ``target_offsets`` int64 [I+1] into ``requested`` uint16 [T] and ``covered`` bool [T];
    ``offsets`` int64 [I+1] into ``target`` uint8 [P], ``confidence`` float32 [P] (raw), ``boxes`` float32 [P, 4]
    xyxy in pixels of the upright image. Boxes stand target after target, each in the order of NMS. ``kept`` bool [P] is
    given only when suppressed boxes are stored too. ``dropped`` counts degenerate boxes left out before NMS.
    """

    item_id: pa.Array
    image_hash: pa.Array
    sizes: NDArray[np.int32]
    errors: Sequence[str | None]
    saturated: NDArray[np.bool_]
    target_offsets: NDArray[np.int64]
    requested: NDArray[np.uint16]
    covered: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    target: NDArray[np.uint8]
    confidence: NDArray[np.float32]
    boxes: NDArray[np.float32]
    kept: NDArray[np.bool_] | None = None
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def survivors(self) -> Proposals:
        """Only the boxes that NMS retained."""
        if self.kept is None:
            return self
        cumulative = np.concatenate([[0], np.cumsum(self.kept)])
        return Proposals(
            item_id=self.item_id,
            image_hash=self.image_hash,
            sizes=self.sizes,
            errors=self.errors,
            saturated=self.saturated,
            target_offsets=self.target_offsets,
            requested=self.requested,
            covered=self.covered,
            offsets=cumulative[self.offsets].astype(np.int64),
            target=self.target[self.kept],
            confidence=self.confidence[self.kept],
            boxes=self.boxes[self.kept],
            dropped=self.dropped,
        )

    def to_arrow(self) -> pa.RecordBatch:
        """One row an item, by ``SCHEMA`` (and ``kept`` where suppressed boxes are stored)."""
        unknown = self.sizes[:, 0] == 0
        boxes = pa.FixedSizeListArray.from_arrays(pa.array(self.boxes.reshape(-1)), 4)
        columns = [
            self.item_id,
            self.image_hash,
            pa.array(self.sizes[:, 1], mask=unknown),
            pa.array(self.sizes[:, 0], mask=unknown),
            pa.array([OK if error is None else ERROR for error in self.errors], pa.string()),
            pa.array(self.errors, pa.string()),
            pa.array(self.saturated),
            _lists(self.target_offsets, pa.array(self.requested)),
            _lists(self.target_offsets, pa.array(self.covered)),
            _lists(self.offsets, pa.array(self.target)),
            _lists(self.offsets, pa.array(self.confidence)),
            _lists(self.offsets, boxes),
        ]
        if self.kept is None:
            return pa.record_batch(columns, schema=SCHEMA)
        return pa.record_batch([*columns, _lists(self.offsets, pa.array(self.kept))], schema=SCHEMA_WITH_SUPPRESSED)

    @classmethod
    def from_arrow(cls, rows: pa.RecordBatch | pa.Table) -> Proposals:
        """Read what ``to_arrow`` wrote (any slice of it)."""
        batch = rows.combine_chunks().to_batches() if isinstance(rows, pa.Table) else [rows]
        row = batch[0] if batch else pa.record_batch([pa.array([], f.type) for f in rows.schema], schema=rows.schema)
        boxes = row.column("box").flatten().flatten()
        sizes = np.stack([np.asarray(row.column(c).fill_null(0)) for c in ("height", "width")], axis=1)
        has_kept = "kept" in row.schema.names
        return cls(
            item_id=row.column("item_id"),
            image_hash=row.column("image_hash"),
            sizes=sizes.astype(np.int32),
            errors=row.column("error").to_pylist(),
            saturated=_numpy(row.column("saturated")),
            target_offsets=_offsets(row.column("requested")),
            requested=_numpy(row.column("requested").flatten()),
            covered=_numpy(row.column("covered").flatten()),
            offsets=_offsets(row.column("target")),
            target=_numpy(row.column("target").flatten()),
            confidence=_numpy(row.column("confidence").flatten()),
            boxes=_numpy(boxes).reshape(-1, 4),
            kept=_numpy(row.column("kept").flatten()) if has_kept else None,
        )


@dataclass(frozen=True, slots=True)
class CountedBoxes:
    """Of ``Proposals`` only what a score depends on: retained boxes without their coordinates, and no texts."""

    target_offsets: NDArray[np.int64]
    requested: NDArray[np.uint16]
    covered: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    target: NDArray[np.uint8]
    confidence: NDArray[np.float32]

    COLUMNS: ClassVar = ("requested", "covered", "target", "confidence")

    @classmethod
    def from_arrow(cls, rows: pa.Table) -> CountedBoxes:
        """Read ``COLUMNS`` of what ``Proposals.to_arrow`` wrote, and ``kept`` where it is there."""
        columns = {name: rows[name].combine_chunks() for name in rows.column_names}
        offsets = _offsets(columns["target"])
        target, confidence = (_numpy(columns[name].flatten()) for name in ("target", "confidence"))
        if "kept" in columns:
            kept = _numpy(columns["kept"].flatten())
            offsets = np.concatenate([[0], np.cumsum(kept)])[offsets].astype(np.int64)
            target, confidence = target[kept], confidence[kept]
        return cls(
            target_offsets=_offsets(columns["requested"]),
            requested=_numpy(columns["requested"].flatten()),
            covered=_numpy(columns["covered"].flatten()),
            offsets=offsets,
            target=target,
            confidence=confidence,
        )


def _lists(offsets: NDArray[np.int64], values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)


def _offsets(column: Any) -> NDArray[np.int64]:
    lengths = np.asarray(column.value_lengths(), dtype=np.int64)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _numpy(column: Any) -> NDArray[Any]:
    return np.asarray(column.to_numpy(zero_copy_only=False))
