"""New scores from stored proposals: other temperatures, schedules or ensembles, without a model."""

from __future__ import annotations

import datetime
import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tallymill.engine.ensemble import DetectorConfig, EnsembleConfig, load_ensemble
from tallymill.engine.numbench.scores import ScorePlan, score_batch, tabulate_schedule
from tallymill.engine.proposals import Proposals
from tallymill.engine.settings import Settings, with_overrides
from tallymill.errors import RunError, UsageError
from tallymill.runners.files import appearing, remove_leftovers
from tallymill.runners.plan import Shard
from tallymill.runners.run import Run
from tallymill.runners.run_folder import RunFolder, ensemble_of, plan_of, stamps_of, versions
from tallymill.runners.sink import ScoresPart, Sink
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
    without a model. Raises ``RunError`` where the RUN is not complete.
    """
    source = run if isinstance(run, Run) else Run(run)
    target = RunFolder.to_write(out)
    if target.path.resolve() == source.path.resolve():
        raise UsageError(f"--out {target.path} is the RUN itself", hint="choose another folder for the new scores")
    record = _record(source, target, taus or {}, schedule, ensemble, overrides)
    plan_of(record).require_floor(record["settings"]["floor"])
    record = target.continue_with(record)
    remove_leftovers(target.path)
    plan, sink = plan_of(record), Sink(target.path, stamps_of(record), with_proposals=False)
    for shard in source.shards:
        # What failed may have been tried again by the sweep since.
        if not sink.done(shard) or sink.summary(shard).error:
            _rescore_shard(source, shard, plan, sink)
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
    except (Exception, SystemExit) as exc:  # the user's own code can do anything
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
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
        "ensemble": {
            "name": config.name,
            "detectors": [{**by_name[d.name], "tau": float(d.tau)} for d in config.detectors],
        },
        "settings": _settings(before["settings"], overrides),
        "rescored_from": str(source.path),
        "source_created": before["created"],
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


def _rescore_shard(source: Run, shard: Shard, plan: ScorePlan, sink: Sink) -> None:
    tables = [source.proposals_of_shard(name, shard) for name in plan.detectors]
    found = [table for table in tables if table is not None]
    if len(found) < len(tables):
        lacking = plan.detectors[tables.index(None)]
        raise RunError(
            f"{source.path} has no whole proposals of {lacking} for {shard.part}",
            hint="complete it first: run its sweep again, which continues where it stopped",
        )
    with appearing(sink.scores_path(shard)) as path:
        scores = ScoresPart(path, sink.stamps.scores, shard)
        for batch in source.items(shard, found[0]):
            proposals = [Proposals.from_arrow(table.slice(scores.rows, len(batch))) for table in found]
            scores.write(score_batch(batch, proposals, plan))
        if scores.rows != len(shard):
            raise RunError(f"{source.path}: items.arrow has {scores.rows} of the {len(shard)} rows of {shard.part}")
        scores.close({})
