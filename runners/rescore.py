"""New scores from stored proposals: other temperatures, schedules or ensembles, without a model."""

from __future__ import annotations

import datetime
import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tallymill.engine.ensemble import DetectorConfig, EnsembleConfig, load_ensemble
from tallymill.engine.numbench.scores import ERROR, SCORED, UNCOVERED, score_batch, tabulate_schedule
from tallymill.engine.proposals import Proposals
from tallymill.engine.settings import Settings, with_overrides
from tallymill.errors import RunError, UsageError
from tallymill.runners.files import appearing
from tallymill.runners.parts import PartWriter
from tallymill.runners.plan import Shard
from tallymill.runners.run import Run
from tallymill.runners.run_folder import RunFolder, ensemble_of, plan_of, stamps_of, versions
from tallymill.runners.sink import ShardSummary, Sink
from tallymill.runners.summary import Summary, summarise

Schedule = Callable[[int], float]


def rescore(
    run: str | Path | Run,
    out: str | Path,
    *,
    taus: Mapping[str, float] | None = None,
    schedule: Schedule | str | None = None,
    ensemble: str | Path | EnsembleConfig | None = None,
    overrides: Iterable[str] = (),
) -> Summary:
    """Score the stored proposals of ``run`` again, into the folder ``out``.

    ``taus`` replaces temperatures by detector name; ``schedule`` is T(n) as a function or as ``FILE.py:FUNC``,
    tabulated over 1..100; ``ensemble`` names detectors of the RUN to keep, with their temperatures, in the order in
    which their boxes are summed; ``overrides`` are ``NAME=VALUE`` settings, of which only ``coverage`` can change
    without a model. Shards without proposals of every detector are left out, and the summary is then not complete.
    """
    source = run if isinstance(run, Run) else Run(run)
    target = RunFolder.to_write(out)
    if target.path.resolve() == source.path.resolve():
        raise UsageError(f"--out {target.path} is the RUN itself", hint="choose another folder for the new scores")
    record = _record(source, target, taus or {}, schedule, ensemble, overrides)
    plan_of(record).require_floor(record["settings"]["floor"])
    record = target.continue_with(record)
    sink = Sink(target.path, stamps_of(record))
    for shard in source.shards:
        if not sink.done(shard):
            _rescore_shard(source, shard, record, sink)
    return summarise(target)


def load_function(reference: str) -> Callable[..., Any]:
    """A function given as ``FILE.py:FUNC``. Faults are a ``UsageError``."""
    file, _, name = reference.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise UsageError(f"{reference}: no such file", hint="give it as FILE.py:FUNC")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as exc:  # the user's own code can raise anything
        raise UsageError(f"{path}: importing it raised {type(exc).__name__}: {exc}") from exc
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None or not callable(function):
        raise UsageError(f"{path} has no function {name!r}")
    return function


def _record(
    source: Run,
    target: RunFolder,
    taus: Mapping[str, float],
    schedule: Schedule | str | None,
    ensemble: str | Path | EnsembleConfig | None,
    overrides: Iterable[str],
) -> dict[str, Any]:
    before = source.record
    by_name = {d["name"]: d for d in before["ensemble"]["detectors"]}
    config = _chosen(source, ensemble)
    unknown = set(taus) - {d.name for d in config.detectors}
    if unknown:
        raise UsageError(f"--tau {sorted(unknown)[0]}: no such detector here", hint=f"one of {', '.join(by_name)}")
    config = replace(config, detectors=tuple(replace(d, tau=taus.get(d.name, d.tau)) for d in config.detectors))
    if isinstance(schedule, str):
        schedule = load_function(schedule)
    record = {
        **before,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "ensemble": {
            "name": config.name,
            "detectors": [{**by_name[d.name], "tau": float(d.tau)} for d in config.detectors],
        },
        "settings": _settings(before["settings"], overrides),
        "rescored_from": str(source.path),
        "proposals_of": os.path.relpath(source.proposals_folder.parent.resolve(), target.path.resolve()),
        "versions": versions(),
    }
    if schedule is not None:
        record["schedule"] = list(tabulate_schedule(schedule))
    record.pop("continued", None)
    return record


def _chosen(source: Run, ensemble: str | Path | EnsembleConfig | None) -> EnsembleConfig:
    """The detectors to sum: those of the RUN, or a choice among them."""
    own = ensemble_of(source.record)
    if ensemble is None:
        return own
    config = ensemble if isinstance(ensemble, EnsembleConfig) else load_ensemble(ensemble)
    for detector in config.detectors:
        _require_known(detector, own, source)
    return config


def _require_known(detector: DetectorConfig, own: EnsembleConfig, source: Run) -> None:
    if detector.name not in {d.name for d in own.detectors}:
        raise UsageError(
            f"{source.path} has no proposals of {detector.name!r}",
            hint=f"it has {', '.join(source.detectors)}; `tallymill sweep` over it with the larger ensemble adds one",
        )


def _settings(before: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    after = with_overrides(Settings.from_dict(before), overrides).as_dict()
    fixed = [name for name in before if after[name] != before[name] and name != "coverage"]
    if fixed:
        raise UsageError(
            f"{fixed[0]} = {after[fixed[0]]!r}: the stored proposals were made with {before[fixed[0]]!r}",
            hint="only a new sweep can change it",
        )
    return after


def _rescore_shard(source: Run, shard: Shard, record: dict[str, Any], sink: Sink) -> None:
    plan = plan_of(record)
    tables = [source.proposals_of_shard(name, shard) for name in plan.detectors]
    found = [table for table in tables if table is not None]
    if len(found) < len(tables):
        return
    statuses: Counter[str] = Counter()
    with appearing(sink.scores_path(shard)) as path:
        writer: PartWriter | None = None
        row = 0
        for batch in source.items(shard, found[0]):
            proposals = [Proposals.from_arrow(table.slice(row, len(batch))) for table in found]
            scores = score_batch(batch, proposals, plan)
            if writer is None:
                writer = PartWriter(path, scores.schema, sink.stamps.scores)
            writer.write(scores)
            statuses.update(scores.column("status").to_pylist())
            row += len(batch)
        if writer is None or row != len(shard):
            raise RunError(f"{source.path}: its items file has {row} of the {len(shard)} rows of shard {shard.index}")
        writer.close(ShardSummary(row, statuses[SCORED], statuses[ERROR], statuses[UNCOVERED]).as_dict())
