"""The prompts file that ``prompt_id`` refers to, and prompts read as targets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymill.engine.manifests.base import CORE_COLUMNS, RESERVED, TARGETS, Faults, RawBatch
from tallymill.engine.manifests.digest import Digest
from tallymill.engine.manifests.readers import open_table_file
from tallymill.engine.manifests.targets import Converted, Pairs, from_column, from_values
from tallymill.engine.numbench.natural import parse_prompt
from tallymill.errors import ManifestError

_KEYS = ("prompt_id", "targets")
_TEXTS = ("text", "prompt")


class PromptsTable:
    """A prompts file in memory: ``targets`` and ``factors`` have a row a prompt; memory grows with the prompts.

    ``sha256`` is a digest of what its rows say: files of the same ids that ask for other things differ in it.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        reader = open_table_file(path)
        _check_columns(path.name, reader.schema)
        kept = [f for f in reader.schema if f.name not in _KEYS]
        schema = pa.schema([pa.field(f.name, f.type) for f in kept])
        faults = Faults(path.name)
        targets, factors = [], []
        digest = Digest()
        self._rows: dict[str, int] = {}
        for raw in reader.batches(faults):
            self._index(raw, faults)
            targets.append(_targets(raw, faults))
            factors.append(pa.RecordBatch.from_arrays([raw.data.column(n) for n in schema.names], schema=schema))
            ids = raw.data.column("prompt_id").cast(pa.string())
            said = [ids, targets[-1], *factors[-1].columns]
            digest.update(pa.RecordBatch.from_arrays(said, names=[*_KEYS, *schema.names]))
        faults.raise_if_any()
        if not self._rows:
            raise ManifestError(f"{path.name}: has no prompts")
        self._used = np.zeros(len(self._rows), np.bool_)
        self.sha256 = digest.hexdigest()
        self.targets: pa.Array = pa.concat_arrays(targets)
        self.factors: pa.RecordBatch = pa.concat_batches(factors)

    @property
    def ids(self) -> list[str]:
        """Every prompt id, in the order of the rows."""
        return list(self._rows)

    def find(self, names: pa.Array) -> tuple[pa.Array, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Row of each prompt id (int64, null for null and unknown ones) and where an id is unknown."""
        rows = [self._rows.get(name) for name in names.to_pylist()]
        positions = pa.array(rows, pa.int64())
        self._used[positions.drop_null().to_numpy()] = True
        unknown = pc.and_(pc.is_null(positions), pc.is_valid(names))
        return positions, unknown.to_numpy(zero_copy_only=False)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def used(self) -> int:
        """How many of the prompts a row has referred to so far."""
        return int(self._used.sum())

    def _index(self, raw: RawBatch, faults: Faults) -> None:
        first = len(self._rows)
        for row, name in enumerate(raw.data.column("prompt_id").cast(pa.string()).to_pylist()):
            if not name:
                faults.add(raw.where(row), "is empty", column="prompt_id")
            elif self._rows.setdefault(name, first + row) != first + row:
                faults.add(raw.where(row), "stands more than once", column="prompt_id", value=name)


def prompt_targets(texts: Sequence[str | None]) -> Converted:
    """Read each prompt as targets; what cannot be read is a fault of that row."""
    parsed = [None if text is None else _parse(text) for text in texts]
    faults = {row: pairs for row, pairs in enumerate(parsed) if isinstance(pairs, str)}
    lists = [
        [{"category": c, "count": n} for c, n in pairs] if isinstance(pairs, list) else pairs and [] for pairs in parsed
    ]
    return Converted(from_values(lists).array, faults)


@lru_cache(maxsize=65_536)
def _parse(text: str) -> Pairs | str:
    try:
        return parse_prompt(text)
    except ManifestError as error:
        return error.message


def _targets(raw: RawBatch, faults: Faults) -> pa.Array:
    """Targets of each prompt, from the first of targets, text and prompt that is there."""
    targets = pa.nulls(raw.data.num_rows, TARGETS)
    for column in ("targets", *_TEXTS):
        if column not in raw.data.schema.names or not targets.null_count:
            continue
        values = raw.data.column(column)
        if column == "targets":
            converted = from_column(values)
        else:
            missing = pc.is_null(targets)
            converted = prompt_targets(pc.if_else(missing, values, pa.scalar(None, pa.string())).to_pylist())
        for row, reason in sorted(converted.faults.items()):
            faults.add(raw.where(row), reason, column=column)
        rows = np.arange(len(targets))
        missing = pc.is_null(targets).to_numpy(zero_copy_only=False)
        both = pa.concat_arrays([targets, converted.array])
        targets = both.take(pa.array(np.where(missing, rows + len(rows), rows)))
    for row in np.flatnonzero(pc.is_null(targets).to_numpy(zero_copy_only=False)).tolist():
        faults.add(raw.where(row), "neither targets nor text")
    return targets


def _check_columns(name: str, schema: pa.Schema) -> None:
    if "prompt_id" not in schema.names or not {"targets", *_TEXTS} & set(schema.names):
        raise ManifestError(
            f"{name}: a prompts file has prompt_id and targets or text; this one has {', '.join(schema.names)}",
        )
    taken = (RESERVED | set(CORE_COLUMNS.names)) - set(_KEYS)
    if clash := taken & set(schema.names):
        raise ManifestError(f"{name}: column {', '.join(sorted(clash))} belongs in the manifest or is reserved")
    for column in ("prompt_id", *_TEXTS):
        if column not in schema.names:
            continue
        kind = schema.field(column).type
        if not (pa.types.is_string(kind) or (column == "prompt_id" and pa.types.is_integer(kind))):
            raise ManifestError(f"{name}: column {column} is of type {kind}, not text")
