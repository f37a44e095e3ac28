"""Score a manifest into a RUN: plan, resume, commit."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from tallymill.engine.ensemble import EnsembleConfig, load_ensemble
from tallymill.engine.items import ManifestOptions, manifest_root
from tallymill.engine.settings import Settings
from tallymill.errors import UsageError
from tallymill.runners.acceptance import require_not_refused
from tallymill.runners.build import find_models, paths_of, plan_for, read_prompt, require_loadable
from tallymill.runners.devices import choose_devices, require_device
from tallymill.runners.files import appearing, made_for, remove_leftovers, require_writable
from tallymill.runners.local import require_workers, run_shards
from tallymill.runners.plan import ManifestFacts, Shard, default_shard_items, lay_out, shards_of
from tallymill.runners.record import require_shards
from tallymill.runners.run_folder import RunFolder, device_of, make_record, stamps_of
from tallymill.runners.sink import Sink
from tallymill.runners.summary import Summary, summarise
from tallymill.runners.worker import WorkerSpec


class SweepProgress(Protocol):
    """Told how a sweep goes; see ``cli`` for one that draws a bar."""

    def start(self, total: int, done: int) -> None:
        """Called once: the items of this part of the sweep, and those that were done before."""

    def advance(self, items: int, failed: int) -> None:
        """Called after each batch (with negative numbers when a worker was lost with its shard)."""


class Quiet:
    """Progress that nobody watches."""

    def start(self, total: int, done: int) -> None:
        """See ``SweepProgress``."""

    def advance(self, items: int, failed: int) -> None:
        """See ``SweepProgress``."""


def sweep(
    manifest: str | Path | pa.Table,
    out: str | Path,
    *,
    ensemble: str | Path | EnsembleConfig = "coco-cpu",
    prompts: str | Path | None = None,
    prompt: str | None = None,
    system: str | None = None,
    settings: Settings | None = None,
    device: str = "auto",
    workers: int | None = None,
    part: tuple[int, int] | None = None,
    shard_items: int | None = None,
    keep_suppressed: bool = False,
    retry_errors: bool = False,
    unaccepted: bool = False,
    progress: SweepProgress | None = None,
) -> Summary:
    """Score every image of a manifest into the folder ``out``, or continue a sweep that was stopped there.

    ``manifest`` is Parquet, JSONL, CSV, a folder, an archive, or an Arrow table. ``prompts`` names a prompt file that
    ``prompt_id`` refers to; ``prompt`` and ``system`` stand in where a row has none. ``part`` = (i, n) takes every n-th
    shard, i from 1, so that n jobs can share one RUN. ``retry_errors`` does shards with error rows anew, for faults
    that can pass. ``device`` is "auto", "cpu", "cuda", or cards such as "cuda:0,1", over which the workers are spread.
    ``unaccepted`` uses engines that were never compared with their model on a card. Results depend neither on
    ``workers`` nor on interruptions.

    Raises ``ManifestError`` with every faulty row before any work, ``RunError`` when ``out`` was made with other
    settings or on another kind of device, ``ModelError`` when a model is not there, or cannot use the device. A bad
    image is an error row.
    """
    # Arguments that make no sense are told before the manifest is read.
    shards_of(0, 1, part)
    require_workers(workers)
    if shard_items is not None and (type(shard_items) is not int or shard_items < 1):
        raise UsageError(f"shard_items = {shard_items!r}: must be a whole number, at least 1")
    if settings is not None and not isinstance(settings, Settings):
        raise UsageError(f"settings = {settings!r}: must be tallymill.Settings(...)")
    if prompt is not None:
        read_prompt(prompt)
    prepared = prepare(
        manifest,
        out,
        ensemble=ensemble,
        options=ManifestOptions(None if prompts is None else Path(prompts), prompt, system),
        settings=settings or Settings(),
        device=device,
        shard_items=shard_items,
        keep_suppressed=keep_suppressed,
        unaccepted=unaccepted,
    )
    shards = prepared.shards(part)
    if retry_errors:
        _forget_errors(shards, prepared.sink)
    _run(shards, prepared, workers, progress or Quiet())
    return summarise(prepared.run)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A RUN whose manifest is checked and laid out: what is left is to score its shards."""

    run: RunFolder
    spec: WorkerSpec

    @property
    def sink(self) -> Sink:
        """Where its results go."""
        record = self.spec.record
        return Sink(self.run.path, stamps_of(record), keep_suppressed=record["keep_suppressed"])

    def shards(self, part: tuple[int, int] | None = None) -> list[Shard]:
        """Its shards, or those of one part (see ``shards_of``)."""
        return shards_of(self.spec.record["manifest"]["rows"], self.spec.record["shard_items"], part)


def prepare(
    manifest: str | Path | pa.Table,
    out: str | Path,
    *,
    ensemble: str | Path | EnsembleConfig = "coco-cpu",
    options: ManifestOptions | None = None,
    settings: Settings | None = None,
    device: str = "auto",
    shard_items: int | None = None,
    keep_suppressed: bool = False,
    unaccepted: bool = False,
) -> Prepared:
    """Check everything that can be checked before work begins, and write ``run.json`` (see ``sweep`` for errors)."""
    config = ensemble if isinstance(ensemble, EnsembleConfig) else load_ensemble(ensemble)
    settings = settings or Settings()
    require_device(device)
    plan = plan_for(config, settings)
    plan.require_floor(settings.floor)
    models = find_models(config)
    paths = paths_of(models)
    run = RunFolder.to_write(out)
    require_writable(run.path)
    if run.record_path.exists():
        choice = choose_devices(device, paths, run=run.path, made_on=device_of(run.read()))
    else:
        choice = choose_devices(device, paths)
    accepted = require_not_refused(paths, choice.kind, unaccepted=unaccepted)
    if choice.kind == "cuda" or not run.record_path.exists():
        # A RUN that cannot be scored would stand in the way of the right one, and cards may differ from call to call.
        require_loadable(config, paths, choice.devices)
    with made_for(run.path), appearing(run.items_path) as items:
        facts = lay_out(manifest, options or ManifestOptions(), items)
        size = _shard_items(shard_items, facts.rows, run)
        require_shards(facts.rows, size)
        record = run.continue_with(
            make_record(
                manifest=_manifest_entry(manifest, facts),
                shard_items=size,
                ensemble=config,
                model_hashes={name: None if model is None else model.sha256 for name, model in models.items()},
                settings=settings,
                plan=plan,
                keep_suppressed=keep_suppressed,
                device=choice,
                accepted=accepted,
                created=datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
            )
        )
    texts = {name: None if path is None else str(path) for name, path in paths.items()}
    return Prepared(run, WorkerSpec(str(run.path), record, texts, choice.devices))


def _forget_errors(shards: list[Shard], sink: Sink) -> None:
    for shard in shards:
        if sink.done(shard) and sink.summary(shard).error:
            sink.forget(shard)


def _run(shards: list[Shard], prepared: Prepared, workers: int | None, progress: SweepProgress) -> None:
    sink = prepared.sink
    remove_leftovers(sink.run)
    waiting = [shard for shard in shards if not sink.done(shard)]
    total = sum(map(len, shards))
    progress.start(total, total - sum(map(len, waiting)))
    try:
        run_shards(waiting, prepared.spec, workers, progress.advance)
    except KeyboardInterrupt:
        done = sum(len(shard) for shard in shards if sink.done(shard))
        raise KeyboardInterrupt(
            f"{done:,} of {total:,} items are done and kept; the same command goes on from there "
            f"(images of unfinished shards, of {len(shards[0]):,} items, are looked at again)"
        ) from None


def _shard_items(asked: int | None, rows: int, run: RunFolder) -> int:
    """The size asked for; else that of the RUN, when there is one; else the default."""
    if asked is None and run.record_path.exists():
        asked = run.read()["shard_items"]
    return asked or default_shard_items(rows)


def _manifest_entry(manifest: str | Path | pa.Table, facts: ManifestFacts) -> dict[str, object]:
    source = "(table)" if isinstance(manifest, pa.Table) else str(manifest)
    root = (manifest_root(manifest) or str(Path.cwd())) if facts.relative else None
    prompts = None if facts.prompts is None else asdict(facts.prompts)
    return {"source": source, "image_root": root, "rows": facts.rows, "sha256": facts.sha256, "prompts": prompts}
