"""``abacus score``: a manifest of edits into a RUN: evidence by shards, questions, scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tallymill.engine.abacus.score import RESAMPLES
from tallymill.engine.abacus.settings import EditSettings
from tallymill.engine.abacus.suite import DEFAULT, Suite
from tallymill.engine.numbench.scores import ERROR
from tallymill.errors import UsageError
from tallymill.runners.abacus.annotations import find_annotations
from tallymill.runners.abacus.prepare import prepare
from tallymill.runners.abacus.questions import Asked, ask_questions
from tallymill.runners.abacus.record import read_record, stamp_of
from tallymill.runners.abacus.results import HumanAgreement, Results, groups_as_rows, results_of, score_evidence
from tallymill.runners.abacus.work import evidence_path, summary_of
from tallymill.runners.files import appearing, remove_leftovers, write_json
from tallymill.runners.local import require_workers, run_shards
from tallymill.runners.physcount.client import KEY_VARIABLE, endpoint_of, read_key
from tallymill.runners.plan import Shard, shards_of
from tallymill.runners.run_folder import RunFolder
from tallymill.runners.summary import MAX_REASONS, Reasons
from tallymill.runners.sweep import Quiet, SweepProgress
from tallymill.runners.worker import WorkerSpec

SCORES, SUMMARY = "scores.parquet", "summary.json"


@dataclass(frozen=True, slots=True)
class EditSummary:
    """A RUN in numbers, as ``summary.json`` has them. ``table`` is empty where nothing is scored; ``counts`` are of
    edits and of instances; ``reasons`` are (text, edits, the first of them); ``seconds`` by stage add up over workers.
    """

    run: str
    complete: bool
    edits: int
    done: int
    error: int
    instances: str
    counts: dict[str, int]
    table: list[dict[str, Any]]
    agreement: HumanAgreement
    reasons: list[tuple[str, int, str]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)


def score(
    manifest: str | Path | pa.Table,
    out: str | Path,
    *,
    panoptic: str | Path | None = None,
    panoptic_images: str | Path | None = None,
    suite: str | Path | Suite = DEFAULT,
    settings: EditSettings | None = None,
    device: str = "auto",
    workers: int | None = None,
    part: tuple[int, int] | None = None,
    shard_items: int | None = None,
    endpoint: str | None = None,
    model: str | None = None,
    key_from: str = KEY_VARIABLE,
    retry_errors: bool = False,
    resamples: int = RESAMPLES,
    progress: SweepProgress | None = None,
    asking: SweepProgress | None = None,
) -> EditSummary:
    """Verify every edit of a manifest into the folder ``out``, or continue what was stopped there.

    ``panoptic`` is a COCO panoptic JSON file of the sources, its PNG files in ``panoptic_images`` (by default the
    folder beside it that is called as it is); without, what the segmenter finds in a source stands for its instances.
    ``settings`` default to those of the suite. ``endpoint`` and ``model`` name an OpenAI-compatible server that is
    asked about instances which not both detectors confirmed; a finished RUN can be asked later. ``part`` = (i, n) takes
    every n-th shard. Results depend neither on ``workers`` nor on interruptions. ``progress`` is told how edits go, and
    ``asking`` how questions do (by default ``progress`` again).

    Raises ``ManifestError`` with every faulty row before any work, ``RunError`` when ``out`` was made with other
    settings, ``ModelError`` when a model is not there. An edit that cannot be scored is an error row.
    """
    shards_of(0, 1, part)
    require_workers(workers)
    if shard_items is not None and (type(shard_items) is not int or shard_items < 1):
        raise UsageError(f"shard_items = {shard_items!r}: must be a whole number, at least 1")
    asked = _asked(endpoint, model, key_from)
    annotations = find_annotations(panoptic, panoptic_images)
    run, record, spec = prepare(manifest, out, annotations, suite, settings, device, shard_items)
    shards = shards_of(record["manifest"]["rows"], record["shard_items"], part)
    stamp = stamp_of(record)
    if retry_errors:
        for shard in shards:
            done = summary_of(run.path, stamp, shard)
            if done is not None and done.error:
                evidence_path(run.path, shard).unlink()
    _prove(run, shards, stamp, spec, workers, progress or Quiet())
    if asked is not None:
        ask_questions(run, read_record(run.path), shards, asked, asking or progress or Quiet())
    return summarise(run, resamples)


def summarise(run: RunFolder, resamples: int = RESAMPLES) -> EditSummary:
    """Score the evidence that is there, and write ``scores.parquet`` and ``summary.json``."""
    summary, results = read_run(run.path, resamples)
    with appearing(run.path / SCORES) as temporary:
        pq.write_table(results.scores, temporary, compression="zstd")
    write_json(run.path / SUMMARY, summary.as_dict())
    return summary


def read_run(path: Path, resamples: int = RESAMPLES) -> tuple[EditSummary, Results]:
    """What a RUN has come to, from its evidence and answers alone."""
    record = read_record(path)
    stamp, rows = stamp_of(record), record["manifest"]["rows"]
    shards = shards_of(rows, record["shard_items"])
    summaries = {shard: summary_of(path, stamp, shard) for shard in shards}
    done = [shard for shard, summary in summaries.items() if summary is not None]
    results = results_of(score_evidence(path, done, EditSettings.from_dict(record["settings"])), resamples)
    seconds: Counter[str] = Counter()
    for summary in summaries.values():
        seconds.update({} if summary is None else summary.seconds)
    failed = results.scores.filter(pc.equal(results.scores["status"], ERROR)).combine_chunks()
    reasons = Reasons()
    if failed.num_rows:
        reasons.add(failed["edit_id"].combine_chunks(), failed["error"].combine_chunks())
    found = EditSummary(
        run=str(path),
        complete=len(done) == len(shards),
        edits=rows,
        done=len(results.scores),
        error=results.counts["error"],
        instances=str(record.get("instances", "")),
        counts=results.counts,
        table=groups_as_rows(results.groups) if results.counts["scored"] else [],
        agreement=results.agreement,
        reasons=reasons.commonest()[:MAX_REASONS],
        ignored=list(record["manifest"].get("ignored", [])),
        seconds={stage: round(value, 3) for stage, value in sorted(seconds.items())},
    )
    return found, results


def _asked(endpoint: str | None, model: str | None, key_from: str) -> Asked | None:
    if endpoint is None and model is None:
        return None
    if endpoint is None or not model:
        raise UsageError(
            "--endpoint and --model go together", hint="the server, and the name by which it knows the model"
        )
    return Asked(endpoint_of(endpoint, read_key(key_from)), model)


def _prove(
    run: RunFolder, shards: Sequence[Shard], stamp: str, spec: WorkerSpec, workers: int | None, progress: SweepProgress
) -> None:
    remove_leftovers(run.path)
    waiting = [shard for shard in shards if summary_of(run.path, stamp, shard) is None]
    total = sum(map(len, shards))
    progress.start(total, total - sum(map(len, waiting)))
    try:
        run_shards(waiting, spec, workers, progress.advance)
    except KeyboardInterrupt:
        done = sum(len(shard) for shard in shards if summary_of(run.path, stamp, shard) is not None)
        raise KeyboardInterrupt(
            f"{done:,} of {total:,} edits are done and kept; the same command goes on from there"
        ) from None
