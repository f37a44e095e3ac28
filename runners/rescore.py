"""New scores from stored proposals: other temperatures, schedules, scores or ensembles, without a model."""

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
from tallymill.engine.numbench.user_score import FailedItemError, UserScore
from tallymill.engine.proposals import Proposals
from tallymill.engine.settings import Settings, with_overrides
from tallymill.errors import RunError, UsageError
from tallymill.runners.files import appearing, remove_leftovers, require_writable, write_json
from tallymill.runners.local import require_workers
from tallymill.runners.parts import naming_values
from tallymill.runners.plan import Shard
from tallymill.runners.run import Run
from tallymill.runners.run_folder import RunFolder, ensemble_of, plan_of, stamps_of, versions
from tallymill.runners.score_table import ScoreTable, score_table
from tallymill.runners.sink import ScoresPart, Sink

Schedule = Callable[[int], float]


def rescore(
    run: str | Path | Run,
    out: str | Path | None = None,
    *,
    taus: Mapping[str, float] | None = None,
    schedule: Schedule | str | None = None,
    score: Callable[..., Any] | str | None = None,
    ensemble: str | Path | EnsembleConfig | None = None,
    overrides: Iterable[str] = (),
    workers: int | None = None,
) -> ScoreTable:
    """Score the stored proposals of ``run`` again; with ``out`` also write a row an image into that folder.

    ``taus`` replaces temperatures by detector name; ``schedule`` is T(n) as a function or as ``FILE.py:FUNC``,
    tabulated over 1..100; ``score`` is a score of your own, likewise, which takes (soft, hard, requested) of an image
    and is compiled with numba (see ``UserScore``); ``ensemble`` names detectors of the RUN to keep, with their
    temperatures, in the order in which their boxes are summed; ``overrides`` are ``NAME=VALUE`` settings, of which
    only ``coverage`` can change without a model. ``workers`` threads count; the result does not depend on them.
    Raises ``RunError`` where the RUN is not complete.
    """
    threads = require_workers(workers)
    source = run if isinstance(run, Run) else Run(run)
    target = source.folder if out is None else RunFolder.to_write(out)
    if out is not None:
        _require_outside(target.path, source)
        require_writable(target.path)
    user = None if score is None else UserScore(load_function(score) if isinstance(score, str) else score)
    record = _record(source, target, taus or {}, schedule, user, ensemble, overrides)
    plan_of(record).require_floor(record["settings"]["floor"], recorded=True)
    table = None
    if out is None or user is not None:  # a score of the user's that fails leaves nothing behind
        table = score_table(source, plan_of(record), user, workers=threads)
    if out is None:
        assert table is not None
        return table
    record = target.continue_with(record, hint=f"{_changeable(user)} have changed since; choose another --out")
    remove_leftovers(target.path)
    plan, sink = plan_of(record), Sink(target.path, stamps_of(record), with_proposals=False)
    for shard in source.shards:
        # What failed may have been tried again by the sweep since.
        if not sink.done(shard) or sink.summary(shard).error:
            _rescore_shard(source, shard, plan, user, sink)
    table = replace(table or score_table(source, plan, user, workers=threads), run=str(target.path))
    write_json(target.path / "summary.json", table.as_dict())
    return table


def _require_outside(out: Path, source: Run) -> None:
    """Refuse to write into the RUN that is scored, or into the one whose proposals it has."""
    place = out.resolve()
    if place == source.path.resolve():
        raise UsageError(f"--out {out} is the RUN itself", hint="choose another folder for the new scores")
    for run in {source.path.resolve(), source.proposals_folder.parent.resolve()}:
        if run in place.parents:
            raise UsageError(f"--out {out} lies in the RUN {run}", hint="choose another folder for the new scores")


def _changeable(user: UserScore | None) -> str:
    return "the RUN, or the options," if user is None else f"{user.record()['file']} or the options"


def load_function(reference: str) -> Callable[..., Any]:
    """A function given as ``FILE.py:FUNC``. Faults are a ``UsageError``."""
    file, _, name = reference.rpartition(":")
    path = Path(file)
    if not name.isidentifier() or not file:
        lacking = "file" if name.isidentifier() and reference.startswith(":") else "function"
        raise UsageError(f"{reference.removesuffix(':')} names no {lacking}; give it as FILE.py:FUNC")
    if not path.is_file():
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
    user: UserScore | None,
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
    record.pop("user_score", None)
    if user is not None:
        record["user_score"] = user.record()
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
    now, then = ({"decoder": Settings().decoder, **values} for values in (after, before))
    fixed = [name for name in then if now[name] != then[name] and name != "coverage"]
    if fixed:
        raise UsageError(
            f"{fixed[0]} = {now[fixed[0]]!r}: the stored proposals were made with {then[fixed[0]]!r}",
            hint="only a new sweep can change it",
        )
    return after


def _rescore_shard(source: Run, shard: Shard, plan: ScorePlan, user: UserScore | None, sink: Sink) -> None:
    found = []
    for name in plan.detectors:
        table = source.proposals_of_shard(name, shard)
        if table is None:
            raise source.lacking(name, shard)
        found.append(table)
    with appearing(sink.scores_path(shard)) as path:
        scores = ScoresPart(path, sink.stamps.scores, shard)
        for batch in source.items(shard, found[0]):
            try:
                with naming_values(source.path, shard):
                    proposals = [Proposals.from_arrow(table.slice(scores.rows, len(batch))) for table in found]
                    scored = score_batch(batch, proposals, plan, user)
                scores.write(scored)
            except FailedItemError as exc:
                assert user is not None
                raise user.failure(batch.rows.column("item_id")[exc.place].as_py(), exc) from exc
        if scores.rows != len(shard):
            raise RunError(f"{source.path}: items.arrow has {scores.rows} of the {len(shard)} rows of {shard.part}")
        scores.close({})
