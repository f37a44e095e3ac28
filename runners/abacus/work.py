"""One worker of a RUN that verifies edits: opens the models once, then makes the evidence of shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tallymill.engine.abacus.models import open_models
from tallymill.engine.abacus.panoptic import Panoptic
from tallymill.engine.abacus.pipeline import EditPipeline
from tallymill.engine.abacus.settings import EditSettings
from tallymill.engine.abacus.suite import Suite
from tallymill.engine.clock import StageClock
from tallymill.engine.pipeline import Report
from tallymill.engine.sources.reader import ImageReader
from tallymill.runners.abacus.record import stamp_of
from tallymill.runners.files import appearing
from tallymill.runners.parts import read_counts
from tallymill.runners.plan import ItemFile, Shard
from tallymill.runners.run_folder import RunFolder
from tallymill.runners.sink import ScoresPart, ShardSummary
from tallymill.runners.worker import WorkerSpec, naming_the_device

EVIDENCE = "evidence"


def evidence_path(run: Path, shard: Shard) -> Path:
    """The file of a shard."""
    return run / EVIDENCE / shard.part


def summary_of(run: Path, stamp: str, shard: Shard) -> ShardSummary | None:
    """What a shard came to; None where it is not done."""
    counts = read_counts(evidence_path(run, shard), stamp, shard)
    return None if counts is None else ShardSummary(**counts)


def prove_shard(
    shard: Shard, items: ItemFile, pipe: EditPipeline, run: Path, stamp: str, report: Report
) -> ShardSummary:
    """Make the evidence of a shard and commit it; a shard that is done is left alone.

    ``report(edits, failed)`` is called as batches are done.
    """
    done = summary_of(run, stamp, shard)
    if done is not None:
        return done
    with appearing(evidence_path(run, shard)) as temporary:
        out = ScoresPart(temporary, stamp, shard)
        for cases in pipe.batches(items.rows(shard)):
            report(len(cases), out.write(pipe.evidence(cases)))
        return out.close(pipe.clock.take(), pipe.clock.take_encoded())


class EditWorker:
    """The models and files of one RUN, in this process."""

    def __init__(self, spec: WorkerSpec) -> None:
        record: dict[str, Any] = spec.record
        self._device, self._run = spec.devices[0], Path(spec.run)
        self._stamp = stamp_of(record)
        settings = EditSettings.from_dict(record["settings"])
        paths = {role: None if path is None else Path(path) for role, path in spec.models.items()}
        panoptic = record["panoptic"]
        self._pipe = EditPipeline(
            open_models(Suite.from_dict(record["suite"]), paths, settings, self._device),
            settings,
            ImageReader(record["manifest"]["image_root"]),
            None if panoptic is None else Panoptic(Path(panoptic["file"]), Path(panoptic["folder"])),
            StageClock(),
        )
        self._items = ItemFile(RunFolder(self._run).items_path)

    def score(self, shard: Shard, report: Report) -> ShardSummary:
        """Make the evidence of one shard (see ``prove_shard``)."""
        with naming_the_device(self._device):
            return prove_shard(shard, self._items, self._pipe, self._run, self._stamp, report)

    def close(self) -> None:
        """Close the files that are held open."""
        self._items.close()
        self._pipe.reader.close()
