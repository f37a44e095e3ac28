"""Raw rows of any reader -> canonical batches: core columns, then factor columns; faulty rows are left out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymill.engine.manifests.base import CORE_COLUMNS, RESERVED, TARGETS, Faults, RawBatch
from tallymill.engine.manifests.checked_rows import CheckedRows, Mask, blank_to_null
from tallymill.engine.manifests.prompts import PromptsTable, prompt_targets
from tallymill.engine.manifests.targets import Converted, from_column, row_errors
from tallymill.errors import ManifestError

_OWN = frozenset({"item_id", "image", "sample", "system", "prompt_id", "targets"})
_NO_TARGETS = "a row needs targets, a prompt_id (with a prompts file) or a prompt"


@dataclass(frozen=True, slots=True)
class ManifestOptions:
    """What is said about a manifest from outside: ``prompts``, a file that prompt_id refers to; ``prompt``, the text
    for rows that have no targets of their own; ``system``, for rows that name none."""

    prompts: Path | None = None
    prompt: str | None = None
    system: str | None = None


class Canonical:
    """Turns the batches of one reader into canonical ones; its ``schema`` is known before the first row."""

    def __init__(self, name: str, raw: pa.Schema, options: ManifestOptions, prompts: PromptsTable | None) -> None:
        self._options = options
        self._prompts = prompts if prompts is not None and "prompt_id" in raw.names else None
        self._default: Converted | None = None
        if options.prompt is not None:
            self._default = prompt_targets([options.prompt])
            if self._default.faults:
                raise ManifestError(f"--prompt: {self._default.faults[0]}", hint="say for example '3 cats and 2 dogs'")
        _check_columns(name, raw, self._prompts, self._default)
        self._own_factors = [f for f in raw if f.name not in _OWN]
        joined = [] if self._prompts is None else list(self._prompts.factors.schema)
        own = {f.name: f for f in self._own_factors}
        for other in joined:
            if other.name in own and own[other.name].type != other.type:
                raise ManifestError(
                    f"{name}: column {other.name} is {own[other.name].type}, in the prompts file {other.type}",
                    hint="drop it from the manifest: the prompts file brings it in",
                )
        self._joined = joined
        extra = [f for f in joined if f.name not in own]
        self.schema = pa.schema([*CORE_COLUMNS, *(pa.field(f.name, f.type) for f in [*self._own_factors, *extra])])

    def batch(self, raw: RawBatch, faults: Faults) -> pa.RecordBatch:
        """Convert one batch; each faulty row is recorded and left out."""
        rows = CheckedRows(raw, faults)
        image = rows.text("image")
        rows.fault(_is_blank(image), "image", "no image is named")
        positions = self._positions(rows)
        targets, errors = self._targets(rows, positions)
        system = rows.text("system")
        if self._options.system is not None:
            system = pc.fill_null(blank_to_null(system), self._options.system)
        columns = {
            "item_id": pc.coalesce(blank_to_null(rows.text("item_id")), image),
            "image": image,
            "sample": rows.whole("sample"),
            "system": system,
            "prompt_id": rows.text("prompt_id"),
            "targets": targets,
            "error": errors,
        }
        for field in self._own_factors:
            columns[field.name] = raw.data.column(field.name)
        self._join(rows, positions, columns)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        return batch if rows.ok.all() else batch.filter(pa.array(rows.ok))

    def _positions(self, rows: CheckedRows) -> pa.Array | None:
        """Row of the prompts file for each row (int64, null where it names none)."""
        if self._prompts is None:
            return None
        names = rows.text("prompt_id")
        positions, unknown = self._prompts.find(names)
        rows.fault(unknown, "prompt_id", f"not in {self._prompts.name}", names)
        return positions

    def _targets(self, rows: CheckedRows, positions: pa.Array | None) -> tuple[pa.Array, pa.Array]:
        """Each row's targets from the first source that has any, and the texts of error rows."""
        targets = pa.nulls(rows.size, TARGETS)
        if (column := rows.column("targets")) is not None:
            converted = from_column(column)
            rows.faults_at(converted.faults, "targets")
            targets = converted.array
        if positions is not None and self._prompts is not None and targets.null_count:
            targets = _coalesce(targets, self._prompts.targets.take(positions))
        if (column := rows.column("prompt")) is not None and targets.null_count:
            texts = pc.if_else(pc.is_null(targets), rows.text("prompt"), pa.scalar(None, pa.string()))
            converted = prompt_targets(texts.to_pylist())
            rows.faults_at(converted.faults, "prompt")
            targets = _coalesce(targets, converted.array)
        if self._default is not None and targets.null_count:
            everywhere = pa.array(np.zeros(rows.size, np.int64))
            targets = _coalesce(targets, self._default.array.take(everywhere))
        lengths = pc.list_value_length(targets)
        rows.fault(pc.is_null(lengths), "targets", _NO_TARGETS)
        rows.fault(pc.equal(lengths, 0), "targets", "the list of targets is empty")
        return targets, row_errors(targets)

    def _join(self, rows: CheckedRows, positions: pa.Array | None, columns: dict[str, pa.Array]) -> None:
        """Add the factor columns of the prompts file; where the manifest has them too they must agree."""
        for field in self._joined if self._prompts is not None else []:
            assert self._prompts is not None
            joined = self._prompts.factors.column(field.name).take(positions)
            own = columns.get(field.name)
            if own is not None:
                rows.fault(_differ(own, joined), field.name, f"differs from {self._prompts.name}", own)
                joined = _coalesce(own, joined)
            columns[field.name] = joined


def _check_columns(name: str, raw: pa.Schema, prompts: PromptsTable | None, default: Converted | None) -> None:
    """Stop before the first row when no row could be right."""
    if "image" not in raw.names:
        raise ManifestError(
            f"{name}: no column image; the columns are {', '.join(raw.names) or 'none'}",
            hint="call it image (it is file_name only in the metadata of a folder of images)",
        )
    if prompts is None and default is None and not {"targets", "prompt"} & set(raw.names):
        known = " (prompt_id needs --prompts FILE)" if "prompt_id" in raw.names else ""
        raise ManifestError(f"{name}: nothing says what was asked for{known}", hint=_NO_TARGETS)
    joined = [] if prompts is None else prompts.factors.schema.names
    taken = RESERVED & {*raw.names, *joined}
    if taken:
        raise ManifestError(f"{name}: column {', '.join(sorted(taken))} is reserved", hint="rename it or leave it out")
    _check_types(name, raw)


def _check_types(name: str, raw: pa.Schema) -> None:
    t = pa.types
    for column in ("item_id", "image", "system", "prompt_id", "prompt", "sample"):
        if column not in raw.names:
            continue
        kind = raw.field(column).type
        number = t.is_integer(kind) and column in ("item_id", "prompt_id", "sample")
        number = number or (t.is_floating(kind) and column == "sample")
        if not (t.is_string(kind) or t.is_null(kind) or number):
            wanted = "whole numbers" if column == "sample" else "text"
            raise ManifestError(f"{name}: column {column} is of type {kind}, not {wanted}")


def _is_blank(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.equal(column, ""), True)


def _coalesce(first: pa.Array, second: pa.Array) -> pa.Array:
    """The first where it is not null, else the second (any type, also nested)."""
    if not first.null_count or second.null_count == len(second):
        return first
    if first.null_count == len(first):
        return second
    rows = np.arange(len(first))
    missing = pc.is_null(first).to_numpy(zero_copy_only=False)
    return pa.concat_arrays([first, second]).take(pa.array(np.where(missing, rows + len(first), rows)))


def _differ(own: pa.Array, joined: pa.Array) -> Mask:
    if pa.types.is_nested(own.type):
        pairs = zip(own.to_pylist(), joined.to_pylist(), strict=True)
        return np.array([a is not None and b is not None and a != b for a, b in pairs], np.bool_)
    mask: Mask = pc.fill_null(pc.not_equal(own, joined), False).to_numpy(zero_copy_only=False)
    return mask
