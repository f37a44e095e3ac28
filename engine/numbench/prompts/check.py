"""Whether a prompt file is what SPEC says: conditions on rows, on cores, and on the balance of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tallymill.engine.numbench.prompts.build import FULL, FULL_ROWS, SUBSET, SUBSET_ROWS, rows_sha256, vocabulary_sha256
from tallymill.engine.numbench.prompts.columns import read_columns
from tallymill.engine.numbench.prompts.conditions import DIMENSIONS, Condition, PromptsCheck
from tallymill.engine.numbench.prompts.core_conditions import full_conditions
from tallymill.engine.numbench.prompts.row_conditions import row_conditions
from tallymill.engine.numbench.prompts.subset_conditions import subset_conditions


def check(
    table: pa.Table,
    categories: Sequence[str],
    plurals: Sequence[str],
    *,
    file: str = "the table",
    facts: dict[str, Any] | None = None,
    subset: bool | None = None,
) -> PromptsCheck:
    """Check every condition on the prompts of a table in canonical types (``canonical_type``).

    ``facts`` are those of the file's metadata (``facts_of``). ``subset`` says whether it is the balanced subset of
    3,200; None: as the metadata says, else by the size. A table without the columns of a prompt file, or without
    rows, is a ``ManifestError``; everything else is a condition that fails.
    """
    facts = facts or {}
    if subset is None:
        # Without metadata: a file of about 3,200 rows was meant to be the subset, though some lack or are too many.
        near = abs(table.num_rows - SUBSET_ROWS) <= SUBSET_ROWS // 10
        subset = facts.get("kind") == SUBSET or (facts.get("kind") != FULL and near)
    prompts = read_columns(file, table, list(categories))
    found = row_conditions(prompts, categories, plurals, SUBSET_ROWS if subset else FULL_ROWS)
    found += subset_conditions(prompts, categories) if subset else full_conditions(prompts, categories)
    if "vocabulary_sha256" in facts:
        found.append(_vocabulary(facts["vocabulary_sha256"], vocabulary_sha256(categories, plurals)))
    conditions = sorted(found, key=lambda line: DIMENSIONS.index(line.dimension))
    return PromptsCheck(
        file=file,
        kind=SUBSET if subset else FULL,
        rows=prompts.n,
        rows_sha256=rows_sha256(table),
        passed=all(condition.passed is not False for condition in conditions),
        conditions=conditions,
        facts=facts,
    )


def _vocabulary(written: object, now: str) -> Condition:
    """Whether the file was made with the vocabulary of today; rows that fit another one fail for themselves."""
    same = written == now
    found = "the same" if same else f"another one ({written!s:.12})"
    return Condition("Category", "the vocabulary it was made with", f"that of now ({now:.12})", found, same or None)
