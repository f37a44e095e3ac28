"""What is checked before edits are verified, and what their RUN then says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from tallymill.engine.abacus.models import open_models
from tallymill.engine.abacus.panoptic import Panoptic
from tallymill.engine.abacus.settings import EditSettings
from tallymill.engine.abacus.suite import Suite, load_suite
from tallymill.engine.items import manifest_root
from tallymill.runners.abacus.annotations import digests_of, entry_of, remember, require_same
from tallymill.runners.abacus.plan import EditFacts, default_shard_edits, lay_out_edits
from tallymill.runners.abacus.record import begin, make_record, read_record
from tallymill.runners.build import ModelFile, find_model, paths_of
from tallymill.runners.devices import DeviceChoice, choose_devices, require_device
from tallymill.runners.files import appearing, made_for, require_writable
from tallymill.runners.run_folder import RunFolder, device_of
from tallymill.runners.worker import WorkerSpec


def prepare(
    manifest: str | Path | pa.Table,
    out: str | Path,
    annotations: Panoptic | None,
    suite: str | Path | Suite,
    settings: EditSettings | None,
    device: str,
    shard_items: int | None,
) -> tuple[RunFolder, dict[str, Any], WorkerSpec]:
    """Check everything that can be checked before work begins, and write ``run.json``, or compare with it.

    Workers are told where models and annotations lie now: the record has where they lay when the RUN was begun.
    """
    chosen = suite if isinstance(suite, Suite) else load_suite(suite)
    settings = settings or chosen.settings
    require_device(device)
    models: dict[str, ModelFile | None] = {role: find_model(name) for role, name in chosen.models()}
    paths = paths_of(models)
    run = RunFolder.to_write(out)
    require_writable(run.path)
    choice = _devices(run, device, paths)
    opened = open_models(chosen, paths, settings, choice.devices[0])  # what cannot be opened would stand in the way
    entry = entry_of(annotations)
    with made_for(run.path), appearing(run.items_path) as items:
        facts = lay_out_edits(manifest, items, annotations)
        if shard_items is None:
            shard_items = read_record(run.path)["shard_items"] if run.record_path.exists() else None
        record = make_record(
            manifest=_manifest_entry(manifest, facts),
            panoptic=entry,
            shard_items=shard_items or default_shard_edits(facts.rows, facts.sources),
            suite=chosen,
            models=models,
            masks=opened.segmenter.masks,
            settings=settings,
            device=choice,
        )
        record = _begun(run, record, annotations, facts)
    texts = {role: None if path is None else str(path) for role, path in paths.items()}
    return run, record, WorkerSpec(str(run.path), {**record, "panoptic": entry}, texts, choice.devices)


def _devices(run: RunFolder, device: str, paths: dict[str, Path | None]) -> DeviceChoice:
    if not run.record_path.exists():
        return choose_devices(device, paths)
    return choose_devices(device, paths, run=run.path, made_on=device_of(read_record(run.path)))


def _begun(run: RunFolder, record: dict[str, Any], annotations: Panoptic | None, facts: EditFacts) -> dict[str, Any]:
    """The record in force. Several processes may begin a RUN at once: what each found is compared with what stands."""
    digests = None if annotations is None else digests_of(annotations, facts.annotations)
    if digests is not None and not run.record_path.exists():
        remember(run, digests)
    record = begin(run, record)
    if digests is not None:
        require_same(run, digests)
    return record


def _manifest_entry(manifest: str | Path | pa.Table, facts: EditFacts) -> dict[str, Any]:
    return {
        "source": "(table)" if isinstance(manifest, pa.Table) else str(manifest),
        "image_root": manifest_root(manifest) or str(Path.cwd()),
        "rows": facts.rows,
        "sha256": facts.sha256,
        "ignored": list(facts.ignored),
    }
