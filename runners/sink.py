"""Where a shard's results go: proposals first, scores last, each file whole or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tallymill.engine.batch import ItemBatch
from tallymill.engine.numbench.scores import ERROR, SCORED, UNCOVERED
from tallymill.engine.proposals import SCHEMA, SCHEMA_WITH_SUPPRESSED, Proposals
from tallymill.runners.files import appearing
from tallymill.runners.parts import PartWriter, read_counts
from tallymill.runners.plan import Shard


@dataclass(frozen=True, slots=True)
class Stamps:
    """What part files must carry to belong to this run: one stamp a detector (ensemble order), one for the scores."""

    detectors: Mapping[str, str]
    scores: str


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """Counts of one shard's rows by status, the seconds that it took by stage, and how many categories each detector
    that reads text encoded for it (those that were new to its worker).
    """

    items: int
    scored: int = 0
    error: int = 0
    uncovered: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    encoded: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form, and the arguments to make the summary again."""
        return {
            "items": self.items,
            "scored": self.scored,
            "error": self.error,
            "uncovered": self.uncovered,
            "seconds": {stage: round(value, 6) for stage, value in self.seconds.items()},
            "encoded": dict(self.encoded),
        }


class Sink:
    """The proposals and scores folders of one RUN."""

    def __init__(
        self, run: Path, stamps: Stamps, *, keep_suppressed: bool = False, with_proposals: bool = True
    ) -> None:
        self.run = run
        self.stamps = stamps
        self._with_proposals = with_proposals  # a re-scored RUN has scores alone
        self.schema = SCHEMA_WITH_SUPPRESSED if keep_suppressed else SCHEMA

    def scores_path(self, shard: Shard) -> Path:
        """The scores file of a shard."""
        return self.run / "scores" / shard.part

    def proposals_path(self, detector: str, shard: Shard) -> Path:
        """The proposals file of a shard and detector."""
        return self.run / "proposals" / detector / shard.part

    def done(self, shard: Shard) -> bool:
        """Whether the shard's scores exist whole and name the ensemble of this run, and its proposals are all there."""
        proposals = self.stamps.detectors.items() if self._with_proposals else ()
        return read_counts(self.scores_path(shard), self.stamps.scores, shard) is not None and all(
            read_counts(self.proposals_path(name, shard), stamp, shard) is not None for name, stamp in proposals
        )

    def summary(self, shard: Shard) -> ShardSummary:
        """The summary of a shard that is done."""
        counts = read_counts(self.scores_path(shard), self.stamps.scores, shard)
        assert counts is not None, "summary() is for shards that are done"
        return ShardSummary(**counts)

    def forget(self, shard: Shard) -> None:
        """Remove what is stored of a shard, the scores first, so that it counts as not done at every moment."""
        self.scores_path(shard).unlink(missing_ok=True)
        for name in self.stamps.detectors:
            self.proposals_path(name, shard).unlink(missing_ok=True)

    @contextmanager
    def open(self, shard: Shard) -> Iterator[ShardOutput]:
        """Collect a shard's results; nothing appears in the RUN before ``commit``."""
        with ExitStack() as stack:
            yield ShardOutput(self, shard, stack)


class ScoresPart:
    """The scores file of one shard while it is written; the first rows bring its schema."""

    def __init__(self, path: Path, stamp: str, shard: Shard) -> None:
        self._path, self._stamp, self._shard = path, stamp, shard
        self._writer: PartWriter | None = None
        self._statuses = Counter[str]()

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return self._statuses.total()

    def write(self, scores: pa.RecordBatch) -> int:
        """Store scores rows; give the number of error rows among them."""
        if self._writer is None:
            self._writer = PartWriter(self._path, scores.schema, self._stamp, self._shard)
        self._writer.write(scores)
        statuses = Counter(scores.column("status").to_pylist())
        self._statuses.update(statuses)
        return statuses[ERROR]

    def close(self, seconds: Mapping[str, float], encoded: Mapping[str, int] | None = None) -> ShardSummary:
        """Finish the file with the counts of its rows."""
        assert self._writer is not None, "a shard has at least one row"
        statuses = self._statuses
        summary = ShardSummary(
            self.rows, statuses[SCORED], statuses[ERROR], statuses[UNCOVERED], seconds, encoded or {}
        )
        self._writer.close(summary.as_dict())
        return summary


class ShardOutput:
    """The results of one shard while it is worked on.

    ``missing`` names the detectors that have yet to run; proposals of the others are read back from their files.
    """

    def __init__(self, sink: Sink, shard: Shard, stack: ExitStack) -> None:
        self._sink, self._shard = sink, shard
        self._present = {
            name: table
            for name, stamp in sink.stamps.detectors.items()
            if (table := _whole_table(sink.proposals_path(name, shard), stamp, shard)) is not None
        }
        self.missing = [name for name in sink.stamps.detectors if name not in self._present]
        # A stack unwinds last in, first out: the scores go in first, so that they appear after all proposals.
        self._scores = ScoresPart(stack.enter_context(appearing(sink.scores_path(shard))), sink.stamps.scores, shard)
        self._proposals = {
            name: PartWriter(
                stack.enter_context(appearing(sink.proposals_path(name, shard), sync_folder=False)),
                sink.schema,
                sink.stamps.detectors[name],
                shard,
            )
            for name in self.missing
        }
        self._counts = {name: Counter[str]() for name in self.missing}

    def check(self, batch: ItemBatch) -> None:
        """An image whose bytes changed since other detectors looked at it cannot be scored: an error of that item."""
        for table in self._present.values():
            known = table["image_hash"].slice(self._scores.rows, len(batch)).to_pylist()
            for i, (before, now) in enumerate(zip(known, batch.hashes, strict=True)):
                if before is not None and now is not None and before != now:
                    batch.errors[i] = "image: the file changed since the other detectors of this RUN looked at it"

    def keep(self, batch: ItemBatch, found: Mapping[str, Proposals]) -> dict[str, Proposals]:
        """Store what the missing detectors found in a batch; give the proposals of all detectors for it."""
        for name, proposals in found.items():
            self._proposals[name].write(proposals.to_arrow())
            self._counts[name].update(_counts_of(proposals))
        row, rows = self._scores.rows, len(batch)
        kept = {name: Proposals.from_arrow(table.slice(row, rows)) for name, table in self._present.items()}
        return {**kept, **found}

    def write(self, scores: pa.RecordBatch) -> int:
        """Store scores rows; give the number of error rows among them."""
        return self._scores.write(scores)

    def commit(self, seconds: Mapping[str, float], encoded: Mapping[str, int]) -> ShardSummary:
        """Finish every file; they appear when the ``with`` block of ``Sink.open`` ends."""
        for name, writer in self._proposals.items():
            writer.close(dict(self._counts[name]))
        return self._scores.close(seconds, encoded)


def _whole_table(path: Path, stamp: str, shard: Shard) -> pa.Table | None:
    """The rows of a part file, or None where it is absent, of another run, or damaged: then it is written anew."""
    if read_counts(path, stamp, shard) is None:
        return None
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid):
        return None


def _counts_of(proposals: Proposals) -> dict[str, int]:
    retained = len(proposals.confidence) if proposals.kept is None else int(proposals.kept.sum())
    return {
        "items": len(proposals),
        "failed": sum(error is not None for error in proposals.errors),
        "proposals": retained,
        "dropped": proposals.dropped,
        "saturated": int(proposals.saturated.sum()),
    }
