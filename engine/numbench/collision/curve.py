"""The model's curve for one coordination: closed form and simulation side by side, a row a count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tallymill.engine.numbench.collision.closed import (
    expected_deficit,
    expected_occupied,
    leading_deficit,
    log_bound_all_distinct,
    log_probability_all_distinct,
)
from tallymill.engine.numbench.collision.simulate import simulate


@dataclass(frozen=True, slots=True)
class ModelPoint:
    """n instances: E[R] (equation 3), E[n - R] and its leading term (equations 2 and 4), P(R = n) and its bound (1).

    ``simulated_*`` are None without trials. ``z``: simulated mean minus E[R] in standard errors of the simulation;
    None where all trials agree.
    """

    count: int
    expected: float
    deficit: float
    leading: float
    distinct: float
    bound: float
    simulated: float | None = None
    simulated_sd: float | None = None
    simulated_distinct: float | None = None
    z: float | None = None


@dataclass(frozen=True, slots=True)
class ModelCurve:
    """All counts of one coordination. ``effective_capacity`` is A = M/q, None where q = 0 (infinite)."""

    coordination: float
    effective_capacity: float | None
    points: list[ModelPoint]


def model_curve(
    counts: Sequence[int], capacity: int, coordination: float, *, trials: int, seed: int = 0, threads: int = 1
) -> ModelCurve:
    """The curve at each of ``counts``, ascending and once; with ``trials`` = 0 without the simulation.

    Raises what ``simulate`` does.
    """
    n = np.unique(np.asarray(counts, np.int64))
    columns: dict[str, Any] = {
        "expected": expected_occupied(n, capacity, coordination),
        "deficit": expected_deficit(n, capacity, coordination),
        "leading": leading_deficit(n, capacity, coordination),
        "distinct": np.exp(log_probability_all_distinct(n, capacity, coordination)),
        "bound": np.exp(log_bound_all_distinct(n, capacity, coordination)),
    }
    if trials:
        found = simulate(n.tolist(), capacity, coordination, trials=trials, seed=seed, threads=threads)
        columns |= {
            "simulated": found.mean(),
            "simulated_sd": found.deviation(),
            "simulated_distinct": found.all_distinct(),
        }
    rows = [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]
    points = [ModelPoint(int(count), **row, z=_z(row, trials)) for count, row in zip(n, rows, strict=True)]
    return ModelCurve(coordination, None if coordination == 1 else capacity / (1 - coordination), points)


def _z(row: dict[str, float], trials: int) -> float | None:
    if not row.get("simulated_sd"):
        return None
    return (row["simulated"] - row["expected"]) / row["simulated_sd"] * float(np.sqrt(trials))
