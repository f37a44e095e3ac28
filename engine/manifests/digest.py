"""One SHA-256 over the rows of a manifest, whatever their file format, batches and encodings were."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymill.engine.manifests.base import canonical_array, canonical_type, is_list
from tallymill.engine.manifests.hashing import string_parts


class Digest:
    """Running hash of canonical batches.

    Each column (and each field inside it) feeds separate streams: a validity byte a row, the lengths (uint32) of
    strings and lists, and the bytes of the values that are not null. Streams do not know where batches end, so
    batching and chunking leave no trace; columns are combined in order of name.
    """

    def __init__(self) -> None:
        self._streams: dict[str, Any] = {}
        self._types: dict[str, str] = {}
        self._rows = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch; every batch must have the same columns."""
        self._rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._types.setdefault(name, str(canonical_type(column.type)))
            self._feed(f"column {name!r}", canonical_array(column))

    def hexdigest(self) -> str:
        """The digest of all rows so far: 64 hexadecimal digits."""
        whole = hashlib.sha256(f"{self._rows} rows\n".encode())
        for name, kind in sorted(self._types.items()):
            whole.update(f"{name!r}: {kind}\n".encode())
        for path, stream in sorted(self._streams.items()):
            whole.update(f"{path}\n".encode() + stream.digest())
        return whole.hexdigest()

    def _stream(self, path: str, data: Any) -> None:
        self._streams.setdefault(path, hashlib.sha256()).update(data)

    def _feed(self, path: str, array: pa.Array) -> None:
        valid = pc.is_valid(array).cast(pa.uint8())
        self._stream(f"{path} valid", _fixed_bytes(valid))
        if array.null_count:
            array = array.drop_null()
        kind = array.type
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            offsets, data = string_parts(array)
            self._stream(f"{path} lengths", np.diff(offsets).astype("<u4"))
            self._stream(f"{path} bytes", data)
        elif is_list(kind):
            self._stream(f"{path} lengths", _fixed_bytes(pc.list_value_length(array).cast(pa.uint32())))
            self._feed(f"{path}[]", array.flatten())
        elif pa.types.is_struct(kind):
            for child, values in zip(kind, array.flatten(), strict=True):
                self._feed(f"{path}.{child.name}", values)
        elif pa.types.is_boolean(kind):
            self._stream(f"{path} bytes", _fixed_bytes(array.cast(pa.uint8())))
        elif not pa.types.is_null(kind):
            self._stream(f"{path} bytes", _fixed_bytes(array))


def _fixed_bytes(array: pa.Array) -> Any:
    """The bytes of a fixed-width array, its offset respected."""
    if len(array) == 0:
        return b""
    width = array.type.bit_width // 8
    return memoryview(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]
