"""Prompt files of NumBench: built, checked, and cut down to the balanced subset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tallymill
from tallymill.engine.manifests.base import Faults, canonical_array, canonical_type
from tallymill.engine.manifests.readers import open_table_file
from tallymill.engine.numbench.prompts.build import build, facts_of, with_facts
from tallymill.engine.numbench.prompts.check import check
from tallymill.engine.numbench.prompts.conditions import PromptsCheck
from tallymill.engine.numbench.prompts.subset import choose_subset
from tallymill.engine.numbench.vocabulary.categories import load_vocabulary
from tallymill.errors import ManifestError, UsageError
from tallymill.runners.files import appearing
from tallymill.runners.outputs import require_file

_ROW_GROUP = 1 << 16


def build_prompts(out: str | Path | None = None, *, seed: int = 0) -> pa.Table:
    """The 640,000 prompts of NumBench, one row each, also written to the Parquet file ``out`` where it is given.

    Columns: ``prompt_id``, ``core_id``, ``text``, ``composition``, ``layout``, ``appearance``, ``modifiers``,
    ``modifier_group``, ``targets``, ``count_range`` (docs/files.md). The same seed and vocabulary give the same rows.
    """
    path = _require_parquet(out)
    table = build(*_vocabulary(), seed)
    table = with_facts(table, {**facts_of(table.schema), "tallymill": tallymill.__version__})
    _write(table, path)
    return table


def subset_prompts(
    source: str | Path | pa.Table | None = None, out: str | Path | None = None, *, seed: int = 0
) -> pa.Table:
    """The balanced 3,200 of the prompts in ``source`` (a full prompt file or table; None: built from ``seed``).

    50 in each cell of count range, composition, layout and appearance, no core twice, ids as in the full file. Also
    written to the Parquet file ``out`` where it is given. A source from which this cannot be chosen is a
    ``ManifestError``.
    """
    path = _require_parquet(out, None if isinstance(source, pa.Table) else source)
    name, table, facts = _read(build_prompts(seed=seed) if source is None else source)
    chosen = choose_subset(with_facts(table, facts), _vocabulary()[0], seed, file=name)
    chosen = with_facts(chosen, {**facts_of(chosen.schema), "tallymill": tallymill.__version__})
    _write(chosen, path)
    return chosen


def check_prompts(source: str | Path | pa.Table, *, subset: bool | None = None) -> PromptsCheck:
    """Check every condition of NumBench on a prompt file (Parquet, JSONL or CSV) or table.

    ``subset``: whether it is the balanced subset of 3,200; None: as its metadata or its number of rows says. A file
    that is no prompt file at all is a ``ManifestError``; whatever else is wrong is a condition that fails.
    """
    name, table, facts = _read(source)
    return check(table, *_vocabulary(), file=name, facts=facts, subset=subset)


def _vocabulary() -> tuple[list[str], list[str]]:
    categories = load_vocabulary().categories
    return [category.name for category in categories], [category.plural for category in categories]


def _require_parquet(out: str | Path | None, source: str | Path | None = None) -> Path | None:
    if out is None:
        return None
    path = Path(out)
    if path.suffix.lower() != ".parquet":
        raise UsageError(f"{out}: prompts are written as Parquet", hint="name the file something.parquet")
    return require_file(path, source)


def _write(table: pa.Table, path: Path | None) -> None:
    if path is not None:
        # Opened here: Arrow opens no file of a name that is not UTF-8.
        with appearing(path) as temporary, temporary.open("wb") as file:
            pq.write_table(table, file, compression="zstd", row_group_size=_ROW_GROUP)


def _read(source: str | Path | pa.Table) -> tuple[str, pa.Table, dict[str, Any]]:
    """Name, rows in canonical types, and what the metadata says of a prompt file or table."""
    if isinstance(source, pa.Table):
        columns = [_canonical(column) for column in source.columns]
        return "the table", pa.table(columns, names=source.column_names), facts_of(source.schema)
    path = Path(source)
    reader = open_table_file(path)
    faults = Faults(reader.name)
    batches = []
    for raw in reader.batches(faults):
        try:
            raw.data.validate(full=True)
        except pa.ArrowException as error:
            raise ManifestError(f"{raw.where(0)} and following: damaged: {error}") from None
        batches.append(raw.data)
    try:
        faults.raise_if_any()
    except ManifestError as error:
        raise ManifestError(error.message, hint="mend these rows; nothing was checked") from None
    facts = facts_of(pq.read_schema(path)) if path.suffix.lower() == ".parquet" else {}
    return reader.name, pa.Table.from_batches(batches, reader.schema), facts


def _canonical(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([canonical_array(chunk) for chunk in column.chunks], type=canonical_type(column.type))
