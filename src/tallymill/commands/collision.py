"""``tallymill collision``: the model of objects that merge, to play with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import tallymill
from tallymill.commands.base import DONE, Json, app, print_json
from tallymill.errors import UsageError
from tallymill.runners.numbench.collision import MAX_COUNT, show_collision

# Not unbounded: "1-999999999999" would be written out first.
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


@app.command
def collision(
    *,
    capacity: int = 100,
    coordination: Annotated[
        tuple[float, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="Lambda, the chance that an object is put where none is yet; repeatable, a curve each; by default 0.",
        ),
    ] = (0.0,),
    counts: str = "1-100",
    trials: int = 10_000,
    seed: int = 0,
    workers: int | None = None,
    out: Path | None = None,
    as_json: Json = False,
) -> int:
    """Show how many of n objects stay visible when they compete for M regions: closed form beside simulation.

    Parameters
    ----------
    capacity
        M, the regions of an image.
    counts
        Requested counts, such as 1-100 or 5,10,20-30.
    trials
        Simulated images for each coordination; 0 for the closed form alone. The simulation needs numba.
    seed
        Of the simulation.
    workers
        Threads; by default one for each processor. The result does not depend on them.
    out
        A .png, .svg or .pdf file for a plot.
    """
    model = tallymill.collision(
        capacity, coordination, _counts(counts), trials=trials, seed=seed, workers=workers, out=out
    )
    if as_json:
        print_json(model.as_dict())
    else:
        show_collision(model, out)
    return DONE


def _counts(text: str) -> list[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"--counts {text}: must be counts and ranges, such as 1-100 or 5,10,20-30")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > MAX_COUNT:
            raise UsageError(f"--counts {text}: {part.strip()} must be ascending and lie in 1..{MAX_COUNT:,}")
        found.update(range(first, last + 1))
    return sorted(found)
