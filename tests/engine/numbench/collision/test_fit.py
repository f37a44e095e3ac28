from __future__ import annotations

import math

import numpy as np
import pytest

from tallymill.engine.numbench.analysis.results import VisiblePoint
from tallymill.engine.numbench.collision.closed import expected_by_recurrence, visible_of_capacity
from tallymill.engine.numbench.collision.fit import Fit, coordination, fit_capacity, fit_layouts

COUNTS = np.arange(1, 101)


@pytest.mark.parametrize("capacity", [1.001, 1.5, 2, 7.3, 25, 100, 144.4, 1e3, 1e5, 1e7])
def test_an_exact_curve_gives_its_capacity_back(capacity):
    fit = fit_capacity(COUNTS, visible_of_capacity(COUNTS, capacity))
    assert fit.verdict == "fitted"
    assert fit.capacity == pytest.approx(capacity, rel=1e-6)
    assert fit.rmse == pytest.approx(0, abs=1e-9)


def test_a_coordinated_curve_gives_regions_over_q():
    fit = fit_capacity(COUNTS, expected_by_recurrence(100, 120, 0.7)[1:])
    assert fit.capacity == pytest.approx(120 / 0.3, rel=1e-6)


def test_few_points_suffice():
    fit = fit_capacity([2], [1.9])
    assert (fit.verdict, fit.points) == ("fitted", 1)
    assert fit.capacity == pytest.approx(10)  # 2 - 1/A


@pytest.mark.parametrize("capacity", [3.0, 40.0, 300.0])
def test_noise_is_averaged_out(capacity):
    rng = np.random.default_rng(7)
    exact = visible_of_capacity(COUNTS, capacity)
    found = [fit_capacity(COUNTS, exact + rng.normal(0, 0.5, 100)).capacity for _ in range(40)]
    error = np.std(found) / math.sqrt(len(found))
    assert abs(np.mean(found) - capacity) < 4 * error
    assert np.std(found) < 0.02 * capacity


def test_it_is_the_least_of_the_squared_errors():
    rng = np.random.default_rng(3)
    for _ in range(20):
        n = rng.integers(1, 100, 12)
        seen, weight = n * rng.uniform(0, 1, 12), rng.uniform(0, 5, 12)
        fit = fit_capacity(n, seen, weight)

        others = np.geomspace(1, 1e7, 3000)
        capacities = np.array([fit.capacity, *others])
        errors = (weight * (seen - visible_of_capacity(n, capacities[:, None])) ** 2).sum(1)
        assert errors[0] <= errors[1:].min() * (1 + 1e-12)
        assert fit.rmse == pytest.approx(math.sqrt(errors[0] / weight.sum()))


def test_weights_are_repetitions_and_order_is_nothing():
    n, seen = [3, 10, 50], [2.5, 8.0, 30.0]
    weighted = fit_capacity(n, seen, [1, 2, 3])
    repeated = fit_capacity([50, 10, 3, 50, 10, 50], [30.0, 8.0, 2.5, 30.0, 8.0, 30.0])
    assert weighted.capacity == pytest.approx(repeated.capacity, rel=1e-12)
    assert weighted == fit_capacity(n[::-1], seen[::-1], [3, 2, 1])
    assert fit_capacity([3, 10, 99], [2.5, 8.0, 1.0], [1, 1, 0]).capacity == fit_capacity([3, 10], [2.5, 8.0]).capacity


@pytest.mark.parametrize("seen", [COUNTS, COUNTS + 3.0, COUNTS * 1.5])
def test_as_many_as_requested_is_infinite(seen):
    fit = fit_capacity(COUNTS, seen)
    assert (fit.verdict, fit.capacity) == ("infinite", math.inf)


def test_too_many_at_high_counts_alone_is_infinite_too():
    fit = fit_capacity([2, 100], [1.0, 100.5])  # below y = n on average, yet no finite A comes nearer than y = n
    assert fit.verdict == "infinite"


@pytest.mark.parametrize("seen", [0.0, 0.5, 1.0])
def test_no_more_than_one_object_is_the_least_capacity(seen):
    fit = fit_capacity(COUNTS, np.full(100, seen))
    assert (fit.verdict, fit.capacity) == ("least", 1.0)
    assert fit.rmse == pytest.approx(1 - seen)


@pytest.mark.parametrize(("n", "weight"), [([], []), ([1, 1], [3, 4]), ([1, 50], [3, 0])])
def test_without_a_second_object_there_is_no_data(n, weight):
    assert fit_capacity(n, [0.5] * len(n), weight) == Fit("no data", None, None, len(n), math.fsum(weight))


@pytest.mark.parametrize(
    ("n", "seen", "weight"),
    [([0], [0.0], [1]), ([2.5], [1.0], [1]), ([2], [math.nan], [1]), ([2], [1.0], [-1]), ([2, 3], [1.0], [1, 1])],
)
def test_what_is_no_curve_is_refused(n, seen, weight):
    with pytest.raises(ValueError, match="must be"):
        fit_capacity(n, seen, weight)


def points(system, layout, capacity, scored=10):
    return [
        VisiblePoint(system, layout, int(n), scored, float(seen), 0.0)
        for n, seen in zip(COUNTS, visible_of_capacity(COUNTS, capacity), strict=True)
    ]


def test_layouts_are_compared_with_free():
    rows = fit_layouts(
        [
            *points("b", "grid", 200.0),
            *points("b", "free", 50.0),
            *points("b", "scene", 40.0),
            *points("a", "grid", 9.0),
        ]
    )
    assert [(row.system, row.layout) for row in rows] == [
        (system, layout) for system in "ba" for layout in ("free", "grid", "scene", "random")
    ]
    free, grid, scene, random = rows[:4]
    assert (free.capacity, free.coordination) == (pytest.approx(50), None)
    assert (grid.capacity, grid.coordination) == (pytest.approx(200), pytest.approx(0.75))
    assert (scene.capacity, scene.coordination) == (pytest.approx(40), None)  # less than free: no lambda does that
    assert (random.verdict, random.capacity, random.points, random.scored) == ("no data", None, 0, 0)
    assert (grid.points, grid.scored) == (100, 1000)
    assert [row.coordination for row in rows[4:]] == [None] * 4


def test_coordination_at_the_ends():
    finite, infinite, none = (
        Fit("fitted", 50.0, 0, 1, 1),
        Fit("infinite", math.inf, 0, 1, 1),
        Fit("no data", None, None, 0, 0),
    )
    assert coordination(finite, infinite) == 1.0
    assert coordination(finite, finite) == 0.0
    assert coordination(infinite, infinite) is None
    assert coordination(infinite, finite) is None
    assert coordination(none, finite) is None
    assert coordination(finite, none) is None


def test_nothing_gives_no_rows():
    assert fit_layouts([]) == []
