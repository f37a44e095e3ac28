"""Finding repeated item ids among millions with one 64-bit hash an item."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from tallymill.engine.manifests.base import brief
from tallymill.engine.manifests.hashing import UInt64s, hash64
from tallymill.errors import ManifestError

SHOWN_IDS = 10
# Repeated hashes looked up in one pass: it bounds the ids held in memory when everything is repeated.
_BLOCK = 4096


class DuplicateCheck:
    """Collects a hash an item, about 8 bytes (10 while growing), and settles equal hashes by reading again.

    ``again`` returns a fresh iterator over the same batches; it is called only when two hashes are equal. ``hasher``
    maps a string array to uint64.
    """

    def __init__(
        self,
        again: Callable[[], Iterable[pa.RecordBatch]],
        *,
        hasher: Callable[[pa.Array], UInt64s] = hash64,
    ) -> None:
        self._again = again
        self._hasher = hasher
        self._hashes: UInt64s = np.empty(0, np.uint64)
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in the ``item_id`` column of a batch."""
        self._reserve(self._rows + batch.num_rows)
        self._hashes[self._rows : self._rows + batch.num_rows] = self._hasher(batch.column("item_id"))
        self._rows += batch.num_rows

    def finish(self) -> None:
        """Raise ``ManifestError`` naming repeated ids and their rows (from 1); return when every id is unique."""
        hashes = self._hashes[: self._rows]
        hashes.sort()
        repeated = _repeated(hashes)
        for start in range(0, len(repeated), _BLOCK):
            block = repeated[start : start + _BLOCK]
            found = self._look_up(block)
            if found:
                self._fail(found, all_seen=len(repeated) <= _BLOCK)

    @property
    def nbytes(self) -> int:
        """Memory held for the hashes, in bytes."""
        return int(self._hashes.nbytes)

    def _reserve(self, rows: int) -> None:
        if rows > len(self._hashes):
            # In place: the allocator can extend or remap a large block, so that no second copy is needed.
            self._hashes.resize(max(rows, len(self._hashes) * 5 // 4, 65_536), refcheck=False)

    def _look_up(self, wanted: UInt64s) -> dict[str, list[int]]:
        """Row numbers of each id that truly stands twice, among the ids with a wanted hash (sorted)."""
        rows_of: dict[str, list[int]] = {}
        first = 1
        for batch in self._again():
            ids = batch.column("item_id")
            hashes = self._hasher(ids)
            at = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
            for row in np.flatnonzero(wanted[at] == hashes):
                rows = rows_of.setdefault(ids[int(row)].as_py(), [])
                if len(rows) <= SHOWN_IDS:
                    rows.append(first + int(row))
            first += batch.num_rows
        return {name: rows for name, rows in rows_of.items() if len(rows) > 1}

    def _fail(self, found: dict[str, list[int]], *, all_seen: bool) -> None:
        lines = [
            f"{brief(name)}: rows {', '.join(map(str, rows[:SHOWN_IDS]))}{', …' if len(rows) > SHOWN_IDS else ''}"
            for name, rows in sorted(found.items(), key=lambda entry: entry[1][:2])[:SHOWN_IDS]
        ]
        many = f"{len(found)}" if all_seen else f"at least {len(found)}"
        raise ManifestError(
            "\n  ".join([f"{many} item_id{'s stand' if len(found) > 1 else ' stands'} more than once", *lines]),
            hint="give each row an item_id of its own (without an item_id column it is the image reference)",
        )


def _repeated(hashes: UInt64s) -> UInt64s:
    """Each value that stands more than once in a sorted array, once, looked for piece by piece."""
    pieces: list[Any] = []
    for start in range(0, len(hashes), 1 << 20):
        piece = hashes[start : start + (1 << 20) + 1]
        pieces.append(np.unique(piece[1:][piece[1:] == piece[:-1]]))
    return np.unique(np.concatenate(pieces)) if pieces else np.empty(0, np.uint64)
