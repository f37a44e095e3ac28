"""The 640,000 prompts of NumBench as a table: each core free-form and guided, each of these clean and modified."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tallymill.engine.manifests.digest import Digest
from tallymill.engine.numbench.factors import (
    APPEARANCES,
    COMPOSITIONS,
    COUNT_RANGES,
    LAYOUTS,
    modifier_group,
)
from tallymill.engine.numbench.prompts.cores import CATEGORIES, CORES, Cores, double_cores, single_cores
from tallymill.engine.numbench.prompts.text import Ints, prompt_texts, terms_of
from tallymill.errors import UsageError

TARGETS = pa.list_(pa.struct([("category", pa.string()), ("count", pa.uint16())]))
SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("core_id", pa.string()),
        ("text", pa.string()),
        ("composition", pa.string()),
        ("layout", pa.string()),
        ("appearance", pa.string()),
        ("modifiers", pa.list_(pa.string())),
        ("modifier_group", pa.string()),
        ("targets", TARGETS),
        ("count_range", pa.string()),
    ]
)
METADATA_KEY = b"tallymill.prompts"
FULL, SUBSET = "full", "subset"
PROMPTS_PER_CORE = 4
FULL_ROWS = PROMPTS_PER_CORE * CORES * len(COMPOSITIONS)
SUBSET_ROWS = 3_200


def build(categories: Sequence[str], plurals: Sequence[str], seed: int = 0) -> pa.Table:
    """The 640,000 prompts (columns: ``SCHEMA``), single ones first, the four prompts of a core together.

    ``categories`` are 1,600 names and ``plurals`` theirs. The same arguments give the same rows, whatever the version
    of NumPy. The schema's metadata has, under ``METADATA_KEY``, JSON with the kind, the seed, and the SHA-256 of the
    vocabulary.
    """
    _require_vocabulary(categories, plurals)
    halves = [
        _prompts(composition, cores, categories, plurals)
        for composition, cores in zip(COMPOSITIONS, (single_cores(seed), double_cores(seed)), strict=True)
    ]
    facts = {
        "kind": FULL,
        "seed": seed,
        "vocabulary_sha256": vocabulary_sha256(categories, plurals),
        "count_range": "max",
    }
    return with_facts(pa.concat_tables(halves), facts)


def with_facts(table: pa.Table, facts: dict[str, object]) -> pa.Table:
    """The same rows with these facts in the schema's metadata."""
    return table.replace_schema_metadata({METADATA_KEY: json.dumps(facts)})


def facts_of(schema: pa.Schema) -> dict[str, object]:
    """What the metadata says of a prompt file; empty for a file that has none of ours."""
    try:
        facts = json.loads((schema.metadata or {}).get(METADATA_KEY, b"{}"))
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def rows_sha256(table: pa.Table) -> str:
    """SHA-256 of what the rows say, whatever their encoding and batches."""
    digest = Digest()
    for batch in table.to_batches():
        digest.update(batch)
    return digest.hexdigest()


def vocabulary_sha256(categories: Sequence[str], plurals: Sequence[str]) -> str:
    """SHA-256 of the names and plurals in their order."""
    lines = "".join(f"{name}\t{plural}\n" for name, plural in zip(categories, plurals, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()


def _require_vocabulary(categories: Sequence[str], plurals: Sequence[str]) -> None:
    if len(categories) != CATEGORIES or len(plurals) != CATEGORIES:
        raise UsageError(f"{len(categories):,} categories and {len(plurals):,} plurals: must be {CATEGORIES:,} of each")
    for what, words in (("category", categories), ("plural", plurals)):
        seen: set[str] = set()
        for word in words:
            if not word or word in seen:
                raise UsageError(f"{what} {word!r}: stands twice" if word else f"a {what} is empty")
            seen.add(word)


def _prompts(composition: str, cores: Cores, categories: Sequence[str], plurals: Sequence[str]) -> pa.Table:
    """The prompts of one composition, from four arrays that say which core, layout, appearance and terms a row has."""
    n = len(cores.layouts)
    core = np.repeat(np.arange(n), PROMPTS_PER_CORE)
    layout = np.stack([np.zeros(n, np.int64)] * 2 + [cores.layouts + 1] * 2, axis=1).ravel()
    appearance = np.tile(np.array([0, 1, 0, 1]), n)
    modifiers = np.where(appearance == 1, cores.modifiers[core], 0).astype(np.int64)
    asked, counts = cores.categories[core], cores.counts[core]
    core_id, layouts = _core_ids(composition, core), _words(LAYOUTS, layout)
    appearances = _words(APPEARANCES, appearance)
    columns = {
        "prompt_id": pc.binary_join_element_wise(core_id, layouts, appearances, "-"),
        "core_id": core_id,
        "text": prompt_texts(categories, plurals, asked, counts, layout, modifiers),
        "composition": _words([composition], np.zeros(len(core), np.int64)),
        "layout": layouts,
        "appearance": appearances,
        "modifiers": _TERMS.take(pa.array(modifiers)),
        "modifier_group": _GROUPS.take(pa.array(modifiers)),
        "targets": _targets(categories, asked, counts),
        "count_range": _words(COUNT_RANGES, (counts.max(axis=1) - 1) // (100 // len(COUNT_RANGES))),
    }
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _words(words: Sequence[str], codes: Ints) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(codes))


def _core_ids(composition: str, core: Ints) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(core).cast(pa.string()), width=5, padding="0")
    return pc.binary_join_element_wise(pa.scalar(composition[0]), digits, "-")


def _targets(names: Sequence[str], categories: Ints, counts: NDArray[np.int64]) -> pa.Array:
    pairs = pa.StructArray.from_arrays(
        [_words(names, categories.ravel()), pa.array(counts.ravel().astype(np.uint16))], fields=list(TARGETS.value_type)
    )
    k = counts.shape[1]
    return pa.ListArray.from_arrays(pa.array(np.arange(0, counts.size + 1, k, dtype=np.int32)), pairs, type=TARGETS)


_SETS = [terms_of(bits) for bits in range(256)]
_TERMS = pa.array(_SETS, pa.list_(pa.string()))
_GROUPS = pa.array([modifier_group(terms) if terms else None for terms in _SETS], pa.string())
