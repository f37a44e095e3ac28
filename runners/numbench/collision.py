"""``tallymill.collision``: the collision model to play with, as numbers, a table and a plot."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from tallymill.engine.numbench.collision.curve import ModelCurve, ModelPoint, model_curve
from tallymill.engine.report.canvas import FORMS, save_figure
from tallymill.engine.report.collision import model_figure
from tallymill.errors import UsageError
from tallymill.runners import console
from tallymill.runners.files import appearing
from tallymill.runners.local import require_workers
from tallymill.runners.outputs import require_file

# The model has no limit; a table and a plot of more are of no use.
MAX_COUNT, MAX_CAPACITY, MAX_TRIALS = 1_000, 1_000_000, 10_000_000
# Of more rows the table on a terminal shows so many.
SHOWN = 20


@dataclasses.dataclass(frozen=True, slots=True)
class CollisionModel:
    """What was asked of the model, and a curve for each coordination."""

    capacity: int
    trials: int
    seed: int
    curves: list[ModelCurve]

    def as_dict(self) -> dict[str, Any]:
        """As JSON shows it."""
        return dataclasses.asdict(self)


def collision(
    capacity: int = 100,
    coordination: Sequence[float] = (0.0,),
    counts: Sequence[int] = range(1, 101),
    *,
    trials: int = 10_000,
    seed: int = 0,
    workers: int | None = None,
    out: Path | str | None = None,
) -> CollisionModel:
    """Visible instances by the collision model (paper, equations 1 to 4), in closed form and by simulation.

    ``capacity`` M regions; ``coordination`` lambdas, a curve each; ``trials`` = 0 leaves the simulation out, which
    needs numba. The result does not depend on ``workers`` threads. ``out`` is a .png, .svg or .pdf file for a plot.
    Raises ``UsageError`` for numbers out of range, ``MissingExtraError`` without a package that is needed.
    """
    threads = max(1, require_workers(workers))
    _check(capacity, coordination, counts, trials, seed)
    target = None if out is None else Path(out)
    if target is not None and target.suffix.lower() not in FORMS:
        raise UsageError(f"--out {target}: a plot is written as one of {', '.join(FORMS)}")
    if target is not None:
        require_file(target)
    lambdas = dict.fromkeys(coordination)
    curves = [model_curve(counts, capacity, each, trials=trials, seed=seed, threads=threads) for each in lambdas]
    if target is not None:
        figure = model_figure(capacity, curves)
        with appearing(target) as temporary:
            save_figure(figure, temporary, target.suffix.lower().removeprefix("."))
    return CollisionModel(capacity, trials, seed, curves)


def _check(capacity: int, coordination: Sequence[float], counts: Sequence[int], trials: int, seed: int) -> None:
    if not 1 <= capacity <= MAX_CAPACITY:
        raise UsageError(f"capacity {capacity}: must lie in 1..{MAX_CAPACITY:,}")
    if not coordination:
        raise UsageError("no coordination given", hint="0 is uniform placement, 1 leaves no collision")
    for each in coordination:
        if not 0 <= each <= 1:
            raise UsageError(f"coordination {each:g}: a probability lies in 0..1")
    for count in counts:
        if not 1 <= count <= MAX_COUNT:
            raise UsageError(f"count {count}: must lie in 1..{MAX_COUNT:,}")
    if not counts:
        raise UsageError("no count given")
    if not 0 <= trials <= MAX_TRIALS:
        raise UsageError(f"trials {trials}: must lie in 0..{MAX_TRIALS:,}; 0 leaves the simulation out")
    if not 0 <= seed < 1 << 64:
        raise UsageError(f"seed {seed}: must lie in 0..2^64-1")


def show_collision(model: CollisionModel, out: Path | None) -> None:
    """A table a curve, and what its columns mean."""
    for curve in model.curves:
        console.out.print(collision_table(model, curve))
    tell = (
        "E[R]: expected visible objects of n (equation 3; exact beyond M too). lost: E[n - R]; leading: its first term "
        "q n(n-1)/2M (equations 2 and 4). all visible: P(R = n), and its bound (equation 1)."
    )
    if model.trials:
        tell += " z: simulated minus E[R], in standard errors of the simulation."
    console.out.print(tell, markup=False)
    if out is not None:
        console.tell(f"plot: {out}")


def collision_table(model: CollisionModel, curve: ModelCurve) -> Table:
    """The rows of one curve; of many, some evenly chosen ones."""
    size = "infinite" if curve.effective_capacity is None else f"{curve.effective_capacity:,.4g}"
    shown = _some(curve.points)
    left_out = len(curve.points) - len(shown)
    names = ["n", "E[R]", "lost", "leading", "all visible", "bound"]
    if model.trials:
        names += ["simulated", "sd", "all visible, simulated", "z"]
    table = console.columns(
        [],
        names,
        title=f"M = {model.capacity:,}, lambda = {curve.coordination:g}: A = M/q is {size}",
        title_justify="left",
        caption=f"and {left_out:,} more counts: --json lists all" if left_out else None,
        caption_justify="left",
    )
    for point in shown:
        table.add_row(*_cells(point))
    return table


def _cells(point: ModelPoint) -> list[str]:
    cells = [str(point.count), f"{point.expected:.3f}", f"{point.deficit:#.4g}", f"{point.leading:#.4g}"]
    cells += [f"{point.distinct:.3g}", f"{point.bound:.3g}"]
    if point.simulated is not None:
        cells += [f"{point.simulated:.3f}", f"{point.simulated_sd:.3f}", f"{point.simulated_distinct:.3g}"]
        cells.append("-" if point.z is None else f"{point.z:+.2f}")
    return cells


def _some(points: list[ModelPoint]) -> list[ModelPoint]:
    if len(points) <= SHOWN:
        return points
    return [points[round(place * (len(points) - 1) / (SHOWN - 1))] for place in range(SHOWN)]
