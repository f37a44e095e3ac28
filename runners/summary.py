"""What a RUN came to: counts by status, mean scores, reasons of failure, where the time went."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tallymill.runners.files import write_json
from tallymill.runners.parts import read_counts
from tallymill.runners.plan import Shard, shards_of
from tallymill.runners.run_folder import RunFolder, stamps_of
from tallymill.runners.sink import ShardSummary

MAX_REASONS = 50


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished (or partly finished) RUN in numbers; written to ``summary.json``.

    ``cw_nps`` and ``b_nps`` are means over the scored images, None when there are none. ``reasons`` counts error texts,
    the commonest first. ``detectors`` has counts of proposals; ``stage_seconds`` adds up over workers.
    """

    run: str
    complete: bool
    items: int
    done: int
    scored: int
    error: int
    uncovered: int
    cw_nps: float | None
    b_nps: float | None
    reasons: list[tuple[str, int]] = field(default_factory=list)
    detectors: dict[str, dict[str, int]] = field(default_factory=dict)
    stage_seconds: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)


def summarise(run: RunFolder, *, write: bool = True) -> Summary:
    """Add up what the part files of a RUN say, reading of the scores only what is needed."""
    record = run.read()
    stamps = stamps_of(record)
    rows = record["manifest"]["rows"]
    shards = shards_of(rows, record["shard_items"])
    proposals = run.proposals_path(record)
    total: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    done: list[Shard] = []
    for shard in shards:
        counts = read_counts(run.path / "scores" / shard.part, stamps.scores, len(shard))
        if counts is None:
            continue
        done.append(shard)
        summary = ShardSummary(**counts)
        total.update(scored=summary.scored, error=summary.error, uncovered=summary.uncovered, items=summary.items)
        seconds.update(summary.seconds)
    result = Summary(
        run=str(run.path),
        complete=len(done) == len(shards),
        items=rows,
        done=total["items"],
        scored=total["scored"],
        error=total["error"],
        uncovered=total["uncovered"],
        cw_nps=_mean(run, done, "cw_nps", total["scored"]),
        b_nps=_mean(run, done, "b_nps", total["scored"]),
        reasons=_reasons(run, done) if total["error"] else [],
        detectors=_detectors(proposals, shards, stamps.detectors),
        stage_seconds={stage: round(value, 3) for stage, value in sorted(seconds.items())},
    )
    if write:
        write_json(run.path / "summary.json", result.as_dict())
    return result


def _mean(run: RunFolder, shards: list[Shard], column: str, scored: int) -> float | None:
    """The correctly rounded mean, whatever the order or the number of shards (``math.fsum``)."""

    def values(shard: Shard) -> list[float]:
        table = pq.read_table(run.path / "scores" / shard.part, columns=[column])
        return table[column].drop_null().to_numpy().tolist()  # type: ignore[no-any-return]

    return math.fsum(chain.from_iterable(map(values, shards))) / scored if scored else None


def _reasons(run: RunFolder, shards: list[Shard]) -> list[tuple[str, int]]:
    found: Counter[str] = Counter()
    for shard in shards:
        table = pq.read_table(run.path / "scores" / shard.part, columns=["error"])
        found.update(table["error"].drop_null().to_pylist())
        if len(found) > 20 * MAX_REASONS:
            found = Counter(dict(found.most_common(10 * MAX_REASONS)))
    return found.most_common(MAX_REASONS)


def _detectors(proposals: Path, shards: list[Shard], stamps: Any) -> dict[str, dict[str, int]]:
    found = {}
    for name, stamp in stamps.items():
        total: Counter[str] = Counter()
        for shard in shards:
            total.update(read_counts(proposals / name / shard.part, stamp, len(shard)) or {})
        found[name] = dict(total)
    return found
