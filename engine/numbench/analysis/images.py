"""The images of one shard as arrays: what was asked for, what was counted, and by which factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tallymill.engine.numbench.analysis.codes import Codes, coded, encoded_strings
from tallymill.engine.numbench.factors import (
    COMPOSITIONS,
    COUNT_RANGES,
    GREATEST_COUNT,
    LEAST_COUNT,
    RangeBy,
    range_codes,
)
from tallymill.engine.numbench.scores import ERROR, SCORED, UNCOVERED

# What a shard's scores are read for; factors may be absent. ``item_id`` is read where an image needs it as its core.
FACTORS = ("composition", "layout", "appearance", "modifier_group", "count_range")
IDS = ("core_id", "prompt_id", "item_id")
# An image that asks for three categories or more is neither of the paper's compositions.
MULTIPLE, UNKNOWN = "multiple", "unknown"
STATUSES = (SCORED, ERROR, UNCOVERED)
MAX_SYSTEMS, MAX_LEVELS = 255, 31
# A score is 1 - e with e of at most 1: a whole number of 2^-53. Sums of such are exact in two whole numbers.
SCORE_BITS, LOW_BITS = 53, 26
# No detector returns nearly as many boxes.
MOST_OBJECTS = 1 << 20
T = TypeVar("T", bound=np.signedinteger[Any])


@dataclass(frozen=True, slots=True)
class Factors:
    """The levels met so far. A system is (number of its RUN, name or None); an appearance goes with its group."""

    systems: Codes[tuple[int, str | None]] = field(default_factory=lambda: Codes(MAX_SYSTEMS))
    compositions: Codes[str | None] = field(default_factory=lambda: Codes(MAX_LEVELS))
    layouts: Codes[str | None] = field(default_factory=lambda: Codes(MAX_LEVELS))
    looks: Codes[tuple[str | None, str | None]] = field(default_factory=lambda: Codes(MAX_LEVELS))


@dataclass(frozen=True, slots=True)
class Images:
    """I images with T targets. Codes are those of ``Factors``. ``altered`` bool [I]: not clean, as far as is known.

    ``core`` int64 [I] into ``cores``, distinct strings; ``prompt`` int64 [I] into ``prompts``, -1 where none is named.
    ``offsets`` int64 [I+1] into ``requested`` int64 [T] (clipped to 1..100), ``soft`` and ``hard`` float64 [T], NaN
    where there is none, and ``covering`` int64 [T] (D of equation 5). ``status`` int64 [I] into ``STATUSES``. ``cw``
    and ``b`` int64 [I], scores in units of 2^-53, 0 without one. ``ranges_differ`` counts images whose own
    ``count_range`` is not that of their largest count.
    """

    system: NDArray[np.int64]
    core: NDArray[np.int64]
    cores: pa.Array
    prompt: NDArray[np.int64]
    prompts: pa.Array
    composition: NDArray[np.int64]
    layout: NDArray[np.int64]
    look: NDArray[np.int64]
    altered: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    requested: NDArray[np.int64]
    soft: NDArray[np.float64]
    hard: NDArray[np.float64]
    covering: NDArray[np.int64]
    status: NDArray[np.int64]
    cw: NDArray[np.int64]
    b: NDArray[np.int64]
    ranges_differ: int

    def __len__(self) -> int:
        return len(self.status)

    @property
    def targets(self) -> NDArray[np.int64]:
        """The number of targets of each image: int64 [I]."""
        return np.diff(self.offsets)

    @property
    def image(self) -> NDArray[np.int64]:
        """The image of each target: int64 [T]."""
        return np.repeat(np.arange(len(self)), self.targets)


def images_of(table: pa.Table, factors: Factors, run: int) -> Images:
    """Read rows of a scores file: its columns ``system``, ``status``, ``cw_nps``, ``b_nps``, ``targets`` (requested,
    soft, hard and covering), and of ``IDS`` and ``FACTORS`` those that there are. A value that no sweep writes is a
    ``ValueError``.
    """
    table = table.unify_dictionaries()
    targets = table["targets"].combine_chunks()
    offsets = np.concatenate([[0], np.cumsum(np.asarray(targets.value_lengths(), np.int64))]).astype(np.int64)
    values = targets.flatten()
    requested = np.asarray(values.field("requested").fill_null(0), np.int64)
    soft, hard = (_floats(values.field(name)) for name in ("soft", "hard"))
    status = _status(table["status"])
    _require_counts(requested, soft, hard, np.repeat(status == 0, np.diff(offsets)))
    requested = requested.clip(LEAST_COUNT, GREATEST_COUNT)
    core, cores = encoded_strings(_cores(table))
    prompt, prompts = encoded_strings(table["prompt_id"])
    return Images(
        system=_systems(table["system"], factors, run),
        core=core,
        cores=cores,
        prompt=prompt,
        prompts=prompts,
        composition=_compositions(table, np.diff(offsets), factors),
        layout=_level(table, "layout", factors.layouts),
        look=_looks(table, factors),
        altered=_altered(table),
        offsets=offsets,
        requested=requested,
        soft=soft,
        hard=hard,
        covering=np.asarray(values.field("covering").fill_null(0), np.int64),
        status=status,
        cw=whole_scores(table["cw_nps"].to_numpy(), status == 0),
        b=whole_scores(table["b_nps"].to_numpy(), status == 0),
        ranges_differ=_ranges_differ(table, requested, offsets),
    )


def whole_scores(scores: NDArray[np.float64], of: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Scores in units of 2^-53, exactly: int64; 0 where ``of`` is false. Not such a number is a ``ValueError``."""
    scaled = np.ldexp(np.where(of, scores, 0.0), SCORE_BITS)
    if not ((scaled >= 0) & (scaled <= 2.0**SCORE_BITS) & (scaled == np.trunc(scaled))).all():
        raise ValueError("a score is not a number that equation 8 can give")
    return scaled.astype(np.int64)


def counts_of(images: Images, range_by: RangeBy) -> NDArray[np.int64]:
    """The one count by which an image has its range: int64 [I], 1 where it has no targets.

    The largest, also where each target has its own range; or the mean, rounded up.
    """
    found = np.ones(len(images), np.int64)
    number = images.targets
    some = number > 0
    if some.any():
        starts = images.offsets[:-1][some]
        if range_by == "mean":
            found[some] = -(-np.add.reduceat(images.requested, starts) // number[some])
        else:
            found[some] = np.maximum.reduceat(images.requested, starts)
    return found


def _floats(column: pa.Array) -> NDArray[np.float64]:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)


def _require_counts(
    requested: NDArray[np.int64], soft: NDArray[np.float64], hard: NDArray[np.float64], of: NDArray[np.bool_]
) -> None:
    """What scored images asked for and were counted to have must be such numbers."""
    if not ((requested >= LEAST_COUNT) & (requested <= GREATEST_COUNT))[of].all():
        raise ValueError("a scored image asks for a count outside 1..100")
    for counted in (soft, hard):
        if not (np.isfinite(counted) & (counted >= 0))[of].all():
            raise ValueError("a count of a scored image is not a number of objects")
        if (counted > MOST_OBJECTS)[of].any():
            raise ValueError(f"a count of a scored image is more than {MOST_OBJECTS:,} objects")


def _status(column: pa.ChunkedArray) -> NDArray[np.int64]:
    local, words = encoded_strings(column)
    places = {word: place for place, word in enumerate(STATUSES)}
    found = np.array([places.get(word, -1) for word in [*words.to_pylist(), None]], np.int64)[local]
    if (found < 0).any():
        raise ValueError("a status is none of " + ", ".join(STATUSES))
    return found


def _systems(column: pa.ChunkedArray, factors: Factors, run: int) -> NDArray[np.int64]:
    local, names = encoded_strings(column)
    used, place = np.unique(local, return_inverse=True)  # a system without images is none
    told = [*names.to_pylist(), None]
    return factors.systems.of([(run, told[at] or None) for at in used.tolist()])[place]


def _cores(table: pa.Table) -> pa.Array:
    """What an image is a version of: its core, else its prompt, else itself."""
    columns = [table[name] for name in IDS if name in table.column_names]
    if not columns[0].null_count:
        return columns[0]
    return pc.coalesce(*(column.cast(pa.string()) for column in columns))


def _level(table: pa.Table, name: str, codes: Codes[str | None]) -> NDArray[np.int64]:
    if name not in table.column_names:
        return np.full(len(table), codes.of([None])[0])
    return coded(table[name], codes)


def _compositions(table: pa.Table, number: NDArray[np.int64], factors: Factors) -> NDArray[np.int64]:
    """The manifest's word, or what the number of targets says."""
    words: Sequence[str | None] = (None, *COMPOSITIONS, MULTIPLE)
    by_number = factors.compositions.of(words)[np.clip(number, 0, 3)]
    if "composition" not in table.column_names:
        return by_number
    told = coded(table["composition"], factors.compositions)
    return np.where(told == factors.compositions.of([None])[0], by_number, told)


def _looks(table: pa.Table, factors: Factors) -> NDArray[np.int64]:
    """Appearance and group together; an image that is not modified has no group."""
    parts: list[tuple[NDArray[np.int64], list[Any]]] = []
    for name in ("appearance", "modifier_group"):
        local, words = (np.full(len(table), -1), pa.array([], pa.string()))
        if name in table.column_names:
            local, words = encoded_strings(table[name])
        parts.append((local, [*words.to_pylist(), None]))
    (look, looks), (group, groups) = parts
    pairs = [(a, None if a == "clean" else g) for a in looks for g in groups]
    number = len(groups)
    used, inverse = np.unique(look % len(looks) * number + group % number, return_inverse=True)
    return factors.looks.of([pairs[at] for at in used.tolist()])[inverse]


def _altered(table: pa.Table) -> NDArray[np.bool_]:
    if "appearance" not in table.column_names:
        return np.zeros(len(table), np.bool_)
    local, words = encoded_strings(table["appearance"])
    return np.array([*(word != "clean" for word in words.to_pylist()), False], np.bool_)[local]


def _ranges_differ(table: pa.Table, requested: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
    if "count_range" not in table.column_names:
        return 0
    told, words = encoded_strings(table["count_range"])
    places = {word: place for place, word in enumerate(COUNT_RANGES)}
    ranges = np.array([places.get(word, -1) for word in [*words.to_pylist(), None]], np.int64)[told]
    asks = np.diff(offsets) > 0  # of all of these, lest one that does not tell its range lends its targets to another
    largest = np.ones(len(told), np.int64)
    largest[asks] = np.maximum.reduceat(requested, offsets[:-1][asks]) if asks.any() else 1
    some = asks & (told >= 0)
    return int((ranges[some] != range_codes(largest[some])).sum())
