"""The scores of a whole RUN straight from its proposals, as a table by system and count range; nothing is written.

Shard after shard, only the columns that a score depends on are read and counted, on as many threads as asked, so that
memory does not grow with the RUN. Sums are exact: neither threads nor shards show in the digits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tallymill.engine.exact_sum import exact_sums, rounded
from tallymill.engine.numbench.factors import COUNT_RANGES
from tallymill.engine.numbench.scores import MAX_COUNT, ScorePlan, count_targets, scores_of
from tallymill.engine.numbench.user_score import FailedItemError, UserScore
from tallymill.engine.proposals import ERROR, CountedBoxes
from tallymill.errors import RunError, UsageError
from tallymill.runners.parts import naming_damage, naming_values, open_part
from tallymill.runners.plan import ItemFile, Shard
from tallymill.runners.run import Run
from tallymill.runners.run_folder import stamps_of
from tallymill.runners.summary import Reasons, Summary, commonest

RANGES = len(COUNT_RANGES)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Group:
    """Images of one system whose larger requested count lies in ``count_range``.

    ``items`` = ``scored`` + ``error`` + ``uncovered``. Means are over the scored images, None when there are none;
    ``user_score`` over the ``user_scored`` ones for which the user's function gave a number.
    """

    system: str | None
    count_range: str
    items: int
    scored: int
    error: int
    uncovered: int
    cw_nps: float | None
    b_nps: float | None
    user_scored: int | None = None
    user_score: float | None = None


@dataclass(frozen=True, slots=True)
class ScoreTable(Summary):
    """A ``Summary`` and its parts: one ``Group`` a system and count range that has images.

    With a score that the user wrote, ``user_score`` has its ``name``, its mean ``value`` and the number ``scored``.
    """

    groups: list[Group] = field(default_factory=list)
    user_score: dict[str, Any] | None = None


def score_table(source: Run, plan: ScorePlan, user: UserScore | None = None, *, workers: int = 1) -> ScoreTable:
    """Score the proposals of every shard by ``plan``. A RUN that is not complete is a ``RunError``."""
    totals = _Totals(user is not None)
    columns = _Reader(source, plan)
    with closing(_Items(source)) as items, ThreadPoolExecutor(max(workers, 1)) as pool:

        def work(shard: Shard, systems: NDArray[np.int64]) -> _Scored:
            part = columns.read(shard)
            with naming_values(source.path, shard):
                return _score(part, systems, plan, user)

        jobs = ((shard, partial(work, shard, items.systems(shard))) for shard in source.shards)
        for shard, scored in in_order(pool, jobs, ahead=2 * max(workers, 1)):
            if user is not None and scored.failed is not None:
                raise user.failure(columns.item_id(shard, scored.failed.place), scored.failed)
            totals.add(scored)
            columns.note_errors(shard, scored)
            items.note_unknown(shard, scored)
    return totals.table(source, items, columns, user)


@dataclass(frozen=True, slots=True)
class _Part:
    """The proposals of one shard: ``found`` and ``counts`` in ensemble order, ``error`` bool [I] where one failed."""

    found: list[CountedBoxes]
    error: NDArray[np.bool_]
    counts: list[dict[str, int]]


@dataclass(frozen=True, slots=True)
class _Scored:
    """What the main thread adds up: ``numbers`` int64 [statuses, G] of items, exact sums of each group."""

    numbers: NDArray[np.int64]
    sums: list[list[int]]
    user_scored: NDArray[np.int64]
    error: NDArray[np.bool_]
    uncovered: NDArray[np.bool_]
    covering: NDArray[np.uint8]
    counts: list[dict[str, int]]
    failed: FailedItemError | None = None


def _score(part: _Part, systems: NDArray[np.int64], plan: ScorePlan, user: UserScore | None) -> _Scored:
    requested, offsets = part.found[0].requested, part.found[0].target_offsets
    counts = count_targets(requested, offsets, part.found, plan)
    result = scores_of(counts, requested, offsets)
    uncovered = _any(counts.covering == 0, offsets) & ~part.error
    scored = ~part.error & ~uncovered
    groups = systems * RANGES + _ranges(requested, offsets)
    number = int(groups.max(initial=0)) + 1
    columns, failed = [result.cw_nps, result.b_nps], None
    if user is not None:
        try:
            columns.append(user(result.soft_count, result.hard_count, requested, offsets, scored))
        except FailedItemError as exc:
            failed = exc
    given = [scored & ~np.isnan(values) for values in columns]
    return _Scored(
        numbers=np.stack([np.bincount(groups[of], minlength=number) for of in (scored, part.error, uncovered)]),
        sums=[exact_sums(v[of], groups[of], number) for v, of in zip(columns, given, strict=True)],
        user_scored=np.bincount(groups[given[-1]], minlength=number),
        error=part.error,
        uncovered=uncovered,
        covering=counts.covering,
        counts=part.counts,
        failed=failed,
    )


def _any(of_targets: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether one of an item's targets is marked: bool [I]."""
    before = np.concatenate([[0], np.cumsum(of_targets)])
    return np.asarray(np.diff(before[offsets]) > 0)


def _ranges(requested: NDArray[np.uint16], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The count range of each item, by its largest count: int64 [I]."""
    largest = np.zeros(len(offsets) - 1, np.int64)
    some = np.diff(offsets) > 0  # an item without targets is an error row; it stands in the first range
    if some.any():
        largest[some] = np.maximum.reduceat(requested, offsets[:-1][some])
    return (np.clip(largest, 1, MAX_COUNT) - 1) // 25


class _Reader:
    """Reads of a RUN's proposals what scores depend on, and the texts of what failed."""

    def __init__(self, source: Run, plan: ScorePlan) -> None:
        self._source, self._names = source, plan.detectors
        self._stamps = stamps_of(source.record).detectors
        self._columns = [*CountedBoxes.COLUMNS, *(["kept"] if source.record["keep_suppressed"] else [])]
        self.reasons = Reasons()
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in self._names}

    def read(self, shard: Shard) -> _Part:
        """All detectors' boxes of a shard."""
        found, counts = [], []
        error = np.zeros(len(shard), np.bool_)
        for name in self._names:
            path = self._source.proposals_folder / name / shard.part
            part = open_part(path, self._stamps[name], shard)
            if part is None:
                raise self._source.lacking(name, shard)
            file, count = part
            some_failed = count.get("failed", 1) > 0
            with naming_damage(path), file:
                table = file.read([*self._columns, *(["status"] if some_failed else [])], use_threads=False)
                if some_failed:
                    error |= np.asarray(
                        pc.equal(table["status"], ERROR).combine_chunks().to_numpy(zero_copy_only=False)
                    )
                    table = table.drop_columns("status")
                found.append(CountedBoxes.from_arrow(table))
            counts.append(count)
        return _Part(found, error, counts)

    def item_id(self, shard: Shard, place: int) -> str:
        """The id of an item."""
        item: str = self._texts(self._names[0], shard, ["item_id"])["item_id"][place].as_py()
        return item

    def note_errors(self, shard: Shard, scored: _Scored) -> None:
        """Add up what a shard's files say of themselves, and why items failed."""
        for name, counts in zip(self._names, scored.counts, strict=True):
            self.counts[name].update(counts)
        if not scored.error.any():
            return
        tables = [self._texts(name, shard, ["item_id", "error"]) for name in self._names]
        texts = pc.coalesce(*(table["error"].combine_chunks() for table in tables))
        failed = pa.array(scored.error)
        self.reasons.add(tables[0]["item_id"].combine_chunks().filter(failed), texts.filter(failed).fill_null(""))

    def _texts(self, name: str, shard: Shard, columns: list[str]) -> pa.Table:
        path = self._source.proposals_folder / name / shard.part
        part = open_part(path, self._stamps[name], shard)
        if part is None:
            raise self._source.lacking(name, shard)
        with naming_damage(path), part[0] as file:
            table = file.read(columns, use_threads=False)
            table.validate(full=True)
            return table


class _Items:
    """What ``items.arrow`` knows and proposals do not: systems and categories. Unknown where it is gone."""

    def __init__(self, source: Run) -> None:
        path = source.items_path
        self._files = [ItemFile(path, [name]) for name in ("system", "targets")] if path.is_file() else []
        self._codes: dict[str | None, int] = {}
        self.unknown: Counter[str] = Counter()

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    @property
    def system_names(self) -> list[str | None]:
        """Systems, in the order in which they were first seen."""
        return list(self._codes)

    def systems(self, shard: Shard) -> NDArray[np.int64]:
        """The place of each item's system in ``system_names``."""
        if not self._files:
            return np.full(len(shard), self._codes.setdefault(None, len(self._codes)))
        found = []
        for rows in self._files[0].rows(shard):
            encoded = rows.column("system").dictionary_encode(null_encoding="encode")
            codes = [self._codes.setdefault(name, len(self._codes)) for name in encoded.dictionary.to_pylist()]
            found.append(np.array(codes, np.int64)[np.asarray(encoded.indices)])
        systems = np.concatenate(found)
        if len(systems) != len(shard):
            raise RunError(f"items.arrow has {len(systems)} of the {len(shard)} rows of {shard.part}")
        return systems

    def note_unknown(self, shard: Shard, scored: _Scored) -> None:
        """Count the categories that no detector covers, in items without another fault."""
        if not self._files or not scored.uncovered.any():
            return
        first, target = 0, 0
        for rows in self._files[1].rows(shard):
            targets = rows.column("targets")
            lengths = np.asarray(targets.value_lengths(), np.int64)
            pairs = targets.flatten()
            missing = scored.covering[target : target + len(pairs)] == 0
            missing &= np.repeat(scored.uncovered[first : first + len(rows)], lengths)
            self.unknown.update(pairs.field("category").filter(pa.array(missing)).to_pylist())
            first, target = first + len(rows), target + len(pairs)


class _Totals:
    """Numbers and exact sums of all shards, by group."""

    def __init__(self, user: bool) -> None:
        self._numbers = np.zeros((3, 0), np.int64)
        self._user_scored = np.zeros(0, np.int64)
        self._sums: list[list[int]] = [[] for _ in range(3 if user else 2)]

    def add(self, scored: _Scored) -> None:
        """Add a shard."""
        size = max(self._numbers.shape[1], scored.numbers.shape[1])
        self._numbers = _padded(self._numbers, size) + _padded(scored.numbers, size)
        self._user_scored = _padded(self._user_scored, size) + _padded(scored.user_scored, size)
        for mine, new in zip(self._sums, scored.sums, strict=True):
            mine += [0] * (size - len(mine))
            for group, value in enumerate(new):
                mine[group] += value

    def table(self, source: Run, items: _Items, columns: _Reader, user: UserScore | None) -> ScoreTable:
        """The finished table."""
        scored, error, uncovered = (int(total) for total in self._numbers.sum(axis=1))
        return ScoreTable(
            run=str(source.path),
            complete=True,
            items=scored + error + uncovered,
            done=scored + error + uncovered,
            scored=scored,
            error=error,
            uncovered=uncovered,
            cw_nps=_mean(sum(self._sums[0]), scored),
            b_nps=_mean(sum(self._sums[1]), scored),
            reasons=columns.reasons.commonest(),
            unknown=commonest(items.unknown),
            detectors={name: dict(counts) for name, counts in columns.counts.items()},
            prompts=source.record["manifest"].get("prompts"),
            groups=list(self._groups(items.system_names, user)),
            user_score=None if user is None else self._own(user),
        )

    def _own(self, user: UserScore) -> dict[str, Any]:
        scored = int(self._user_scored.sum())
        return {"name": user.name, "value": _mean(sum(self._sums[2]), scored), "scored": scored}

    def _groups(self, systems: list[str | None], user: UserScore | None) -> Iterator[Group]:
        for code in sorted(range(len(systems)), key=lambda at: (systems[at] is None, systems[at] or "")):
            for place, count_range in enumerate(COUNT_RANGES):
                g = code * RANGES + place
                if g >= self._numbers.shape[1] or not self._numbers[:, g].any():
                    continue
                scored, error, uncovered = self._numbers[:, g].tolist()
                user_scored = int(self._user_scored[g])
                means = _mean(self._sums[0][g], scored), _mean(self._sums[1][g], scored)
                own = (user_scored, _mean(self._sums[2][g], user_scored)) if user else (None, None)
                items = scored + error + uncovered
                yield Group(systems[code], count_range, items, scored, error, uncovered, *means, *own)


def _mean(total: int, number: int) -> float | None:
    try:
        return rounded(total) / number if number else None
    except OverflowError:
        raise UsageError("the scores add up to more than a float64 can be", hint="scale them down") from None


def _padded(values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, size - values.shape[-1])])


def in_order(
    pool: ThreadPoolExecutor, jobs: Iterator[tuple[Shard, Callable[[], T]]], ahead: int
) -> Iterator[tuple[Shard, T]]:
    """The results in the order of the jobs, of which ``ahead`` are begun before they are asked for."""
    waiting: deque[tuple[Shard, Future[T]]] = deque()
    try:
        for shard, job in jobs:
            waiting.append((shard, pool.submit(job)))
            if len(waiting) > ahead:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        for _, future in waiting:
            future.cancel()
