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

from tallymill.engine.abacus.models import open_models
from tallymill.engine.abacus.panoptic import Panoptic
from tallymill.engine.abacus.score import RESAMPLES
from tallymill.engine.abacus.settings import EditSettings
from tallymill.engine.abacus.suite import DEFAULT, Suite, load_suite
from tallymill.engine.items import manifest_root
from tallymill.engine.numbench.scores import ERROR
from tallymill.errors import ManifestError, UsageError
from tallymill.exporters import hub
from tallymill.runners.abacus.plan import default_shard_edits, lay_out_edits
from tallymill.runners.abacus.questions import Asked, ask_questions
from tallymill.runners.abacus.record import begin, make_record, read_record, stamp_of
from tallymill.runners.abacus.results import HumanAgreement, Results, groups_as_rows, results_of, score_evidence
from tallymill.runners.abacus.work import evidence_path, summary_of
from tallymill.runners.build import ModelFile, find_model, paths_of
from tallymill.runners.devices import choose_devices, require_device
from tallymill.runners.files import appearing, made_for, remove_leftovers, require_writable, write_json
from tallymill.runners.local import require_workers, run_shards
from tallymill.runners.physcount.client import KEY_VARIABLE, endpoint_of, read_key
from tallymill.runners.plan import Shard, shards_of
from tallymill.runners.run_folder import RunFolder, device_of
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
) -> EditSummary:
    """Verify every edit of a manifest into the folder ``out``, or continue what was stopped there.

    ``panoptic`` is a COCO panoptic JSON file of the sources, its PNG files in ``panoptic_images`` (by default the
    folder beside it that is called as it is); without, what the segmenter finds in a source stands for its instances.
    ``settings`` default to those of the suite. ``endpoint`` and ``model`` name an OpenAI-compatible server that is
    asked about instances which not both detectors confirmed; a finished RUN can be asked later. ``part`` = (i, n) takes
    every n-th shard. Results depend neither on ``workers`` nor on interruptions.

    Raises ``ManifestError`` with every faulty row before any work, ``RunError`` when ``out`` was made with other
    settings, ``ModelError`` when a model is not there. An edit that cannot be scored is an error row.
    """
    shards_of(0, 1, part)
    require_workers(workers)
    if shard_items is not None and (type(shard_items) is not int or shard_items < 1):
        raise UsageError(f"shard_items = {shard_items!r}: must be a whole number, at least 1")
    asked = _asked(endpoint, model, key_from)
    run, record, spec = _prepare(
        manifest, out, _annotations(panoptic, panoptic_images), suite, settings, device, shard_items
    )
    shards = shards_of(record["manifest"]["rows"], record["shard_items"], part)
    stamp = stamp_of(record)
    if retry_errors:
        for shard in shards:
            done = summary_of(run.path, stamp, shard)
            if done is not None and done.error:
                evidence_path(run.path, shard).unlink()
    _prove(run, shards, stamp, spec, workers, progress or Quiet())
    if asked is not None:
        ask_questions(run, read_record(run.path), shards, asked, Quiet())
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


def _annotations(file: str | Path | None, folder: str | Path | None) -> tuple[Path, Path] | None:
    if file is None:
        if folder is not None:
            raise UsageError("--panoptic-images goes with --panoptic FILE.json")
        return None
    path = Path(file).absolute()
    images = path.with_suffix("") if folder is None else Path(folder).absolute()
    if not images.is_dir():
        raise ManifestError(f"{images}: no such folder", hint="--panoptic-images names the folder of the PNG files")
    return path, images


def _asked(endpoint: str | None, model: str | None, key_from: str) -> Asked | None:
    if endpoint is None and model is None:
        return None
    if endpoint is None or not model:
        raise UsageError(
            "--endpoint and --model go together", hint="the server, and the name by which it knows the model"
        )
    return Asked(endpoint_of(endpoint, read_key(key_from)), model)


def _prepare(
    manifest: str | Path | pa.Table,
    out: str | Path,
    annotations: tuple[Path, Path] | None,
    suite: str | Path | Suite,
    settings: EditSettings | None,
    device: str,
    shard_items: int | None,
) -> tuple[RunFolder, dict[str, Any], WorkerSpec]:
    """Check everything that can be checked before work begins, and write ``run.json``."""
    chosen = suite if isinstance(suite, Suite) else load_suite(suite)
    settings = settings or chosen.settings
    require_device(device)
    models: dict[str, ModelFile | None] = {role: find_model(name) for role, name in chosen.models()}
    paths = paths_of(models)
    run = RunFolder.to_write(out)
    require_writable(run.path)
    if run.record_path.exists():
        choice = choose_devices(device, paths, run=run.path, made_on=device_of(read_record(run.path)))
    else:
        choice = choose_devices(device, paths)
    opened = open_models(chosen, paths, settings, choice.devices[0])  # what cannot be opened would stand in the way
    if annotations is not None:
        Panoptic(*annotations)
    with made_for(run.path), appearing(run.items_path) as items:
        facts = lay_out_edits(manifest, items)
        if shard_items is None and run.record_path.exists():
            shard_items = read_record(run.path)["shard_items"]
        record = begin(
            run,
            make_record(
                manifest={
                    "source": "(table)" if isinstance(manifest, pa.Table) else str(manifest),
                    "image_root": manifest_root(manifest) or str(Path.cwd()),
                    "rows": facts.rows,
                    "sha256": facts.sha256,
                    "ignored": list(facts.ignored),
                },
                panoptic=None if annotations is None else _panoptic_entry(*annotations),
                shard_items=shard_items or default_shard_edits(facts.rows),
                suite=chosen,
                models=models,
                masks=opened.segmenter.masks,
                settings=settings,
                device=choice,
            ),
        )
    texts = {role: None if path is None else str(path) for role, path in paths.items()}
    return run, record, WorkerSpec(str(run.path), record, texts, choice.devices)


def _panoptic_entry(file: Path, folder: Path) -> dict[str, str]:
    return {"file": str(file), "folder": str(folder), "sha256": hub.sha256(file)}


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
