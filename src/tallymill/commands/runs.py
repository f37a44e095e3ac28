"""``tallymill rescore`` and ``dump``: what can be made of a RUN without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import tallymill
from tallymill.commands.base import DONE, SOME_FAILED, Json, SetAgain, app, code_of, print_json
from tallymill.engine.words import counted
from tallymill.errors import UsageError
from tallymill.runners import console


@app.command
def rescore(
    run: Path,
    *,
    out: Path | None = None,
    tau: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, help="DETECTOR=VALUE, repeatable: a temperature."),
    ] = (),
    schedule: str | None = None,
    score: str | None = None,
    ensemble: str | None = None,
    workers: int | None = None,
    settings: SetAgain = (),
    as_json: Json = False,
) -> int:
    """Score stored proposals again, without a model: other temperatures, thresholds, detectors, or a score of your own.

    Parameters
    ----------
    run
        A RUN folder.
    out
        Folder for a row an image; without it only the table is shown, and nothing is written.
    schedule
        FILE.py:FUNC, a function of the requested count that gives T(n).
    score
        FILE.py:FUNC, a function (soft, hard, requested) that gives the score of an image; compiled with numba.
    ensemble
        A TOML file or name with the detectors of the RUN to use.
    workers
        Threads; by default one for each processor.
    """
    table = tallymill.rescore(
        run,
        out,
        taus=dict(map(_tau, tau)),
        schedule=schedule,
        score=score,
        ensemble=ensemble,
        overrides=settings,
        workers=workers,
    )
    if as_json:
        print_json(table.as_dict())
    else:
        console.show_score_table(table, written=out is not None)
    return code_of(table)


@app.command
def dump(
    run: Path,
    *,
    out: Path,
    form: Annotated[str | None, Parameter(name="--format", help="parquet or coco; else by the file's name.")] = None,
    detector: Annotated[
        tuple[str, ...], Parameter(negative=(), show_default=False, help="Only this one; repeatable.")
    ] = (),
    as_json: Json = False,
) -> int:
    """Write every stored proposal, raw and calibrated, for an audit.

    Parameters
    ----------
    run
        A RUN folder.
    out
        The file to write.
    """
    source = tallymill.load(run)
    rows = tallymill.dump(source, out, form=form, detectors=detector, partial=True)
    undone = source.undone(detector)
    if as_json:
        print_json({"out": str(out), "proposals": rows, "shards": len(source.shards), "shards_undone": undone})
    else:
        console.tell(f"{rows:,} proposals written to {out}")
        if undone:
            console.tell(
                f"{undone:,} of {counted(len(source.shards), 'shard')} not done yet: the file lacks their images"
            )
    return SOME_FAILED if undone else DONE


def _tau(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise UsageError(f"--tau {text}: must be DETECTOR=NUMBER") from None
