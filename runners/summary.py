"""What a RUN came to: counts by status, mean scores, reasons of failure, where the time went."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymill.engine.numbench.analysis.tallies import Met, Tallies
from tallymill.engine.numbench.scores import UNCOVERED
from tallymill.runners.files import write_json
from tallymill.runners.parts import read_counts, read_part
from tallymill.runners.plan import Shard, shards_of
from tallymill.runners.run_folder import RunFolder, stamps_of
from tallymill.runners.sink import ShardSummary, Stamps

MAX_REASONS = 50


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished (or partly finished) RUN in numbers; written to ``summary.json``.

    ``cw_nps`` and ``b_nps`` are means over the scored images, None when there are none. ``reasons`` counts error texts,
    the commonest first, each with the first item that it struck; ``unknown`` the categories that no detector
    covers. ``detectors`` has counts of proposals; ``stage_seconds`` adds up over workers, and so
    does ``encoded``: categories that text models encoded, each once a worker. ``prompts`` is
    ``manifest.prompts`` of ``run.json``: of the prompts file that the RUN was made with, ``rows``, ``used`` and more.
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
    reasons: list[tuple[str, int, str]] = field(default_factory=list)
    unknown: list[tuple[str, int]] = field(default_factory=list)
    detectors: dict[str, dict[str, int]] = field(default_factory=dict)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    encoded: dict[str, int] = field(default_factory=dict)
    prompts: dict[str, Any] | None = None

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
    encoded: Counter[str] = Counter()
    done: list[Shard] = []
    for shard in shards:
        counts = read_counts(run.path / "scores" / shard.part, stamps.scores, shard)
        if counts is None:
            continue
        done.append(shard)
        summary = ShardSummary(**counts)
        total.update(scored=summary.scored, error=summary.error, uncovered=summary.uncovered, items=summary.items)
        seconds.update(summary.seconds)
        encoded.update(summary.encoded)
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
        unknown=_unknown(run, done) if total["uncovered"] else [],
        detectors=_detectors(proposals, shards, stamps.detectors),
        stage_seconds={stage: round(value, 3) for stage, value in sorted(seconds.items())},
        encoded=dict(sorted(encoded.items())),
        prompts=record["manifest"].get("prompts"),
    )
    if write:
        write_json(run.path / "summary.json", result.as_dict())
        # Of two jobs that share a RUN the slower one may just have put an older state over a newer one.
        if sum(_is_done(run, shard, stamps) for shard in shards) > len(done):
            return summarise(run)
    return result


def _is_done(run: RunFolder, shard: Shard, stamps: Stamps) -> bool:
    return read_counts(run.path / "scores" / shard.part, stamps.scores, shard) is not None


def _mean(run: RunFolder, shards: list[Shard], column: str, scored: int) -> float | None:
    """The correctly rounded mean, whatever the order or the number of shards (``math.fsum``)."""

    def values(shard: Shard) -> list[float]:
        part = read_part(run.path / "scores" / shard.part, [column])
        numbers: list[float] = part[column].drop_null().to_numpy().tolist()
        return numbers

    return math.fsum(chain.from_iterable(map(values, shards))) / scored if scored else None


class Reasons:
    """Error texts, each with how often it struck and the first item."""

    def __init__(self) -> None:
        self._found = Tallies("other reasons", MAX_REASONS, least=False)

    def add(self, items: pa.Array, texts: pa.Array) -> None:
        """Count the texts of some items, in the order of the manifest."""
        self._found.add(Met.of(np.zeros(len(items), np.int64), texts, items, least=False))

    def commonest(self) -> list[tuple[str, int, str]]:
        """The texts that struck most items."""
        return [(reason, tally.images, tally.first) for reason, tally in self._found.of(0)[:MAX_REASONS]]


def commonest(found: Counter[str]) -> list[tuple[str, int]]:
    """As much of a count as a summary tells, the commonest first, then by name."""
    return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))[:MAX_REASONS]


def _reasons(run: RunFolder, shards: list[Shard]) -> list[tuple[str, int, str]]:
    reasons = Reasons()
    for shard in shards:
        table = read_part(run.path / "scores" / shard.part, ["item_id", "error"])
        failed = table.filter(pc.is_valid(table["error"])).combine_chunks()
        reasons.add(failed["item_id"].combine_chunks(), failed["error"].combine_chunks())
    return reasons.commonest()


def _unknown(run: RunFolder, shards: list[Shard]) -> list[tuple[str, int]]:
    found: Counter[str] = Counter()
    for shard in shards:
        table = read_part(run.path / "scores" / shard.part, ["targets", "status"])
        targets = table.filter(pc.equal(table["status"], UNCOVERED))["targets"].combine_chunks().flatten()
        missing = targets.filter(pc.equal(targets.field("covering"), 0)).field("category").drop_null()
        found.update(missing.to_pylist())
    return commonest(found)


def _detectors(proposals: Path, shards: list[Shard], stamps: Any) -> dict[str, dict[str, int]]:
    found = {}
    for name, stamp in stamps.items():
        total: Counter[str] = Counter()
        for shard in shards:
            total.update(read_counts(proposals / name / shard.part, stamp, shard) or {})
        found[name] = dict(total)
    return found
