from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymill.engine.numbench.collision.closed import (
    distribution,
    expected_by_recurrence,
    expected_deficit,
    expected_occupied,
    leading_deficit,
    log_bound_all_distinct,
    log_probability_all_distinct,
    visible_of_capacity,
)

MODELS = [(1, 0.0), (1, 0.4), (3, 0.0), (3, 0.25), (10, 0.9), (40, 0.5), (7, 1.0), (100, 0.0)]


def enumerated(n: int, capacity: int) -> list[float]:
    """P(R = r), r = 0..n, for uniform placement: every one of M^n ways to place n instances."""
    found = [0.0] * (n + 1)
    for regions in itertools.product(range(capacity), repeat=n):
        found[len({*regions})] += capacity**-n
    return found


def coordinated(n: int, capacity: int, coordination: float) -> list[float]:
    """The same with coordination: every way in which each instance is coordinated or not, and where it goes."""
    found = [0.0] * (n + 1)

    def place(occupied: frozenset[int], left: int, chance: float) -> None:
        if not left:
            found[len(occupied)] += chance
            return
        unused = [region for region in range(capacity) if region not in occupied]
        share = coordination if unused else 0.0
        for region in unused:
            place(occupied | {region}, left - 1, chance * share / len(unused))
        for region in range(capacity):
            place(occupied | {region}, left - 1, chance * (1 - share) / capacity)

    place(frozenset(), n, 1.0)
    return found


@pytest.mark.parametrize(("n", "capacity"), [(0, 3), (1, 1), (2, 3), (4, 3), (5, 4), (6, 6)])
def test_uniform_placement_by_enumeration(n, capacity):
    found = enumerated(n, capacity)
    assert distribution(n, capacity)[n] == pytest.approx(found[: min(n, capacity) + 1])
    assert expected_occupied(n, capacity) == pytest.approx(sum(r * chance for r, chance in enumerate(found)))
    assert math.exp(log_probability_all_distinct(n, capacity)) == pytest.approx(found[n])


@pytest.mark.parametrize(("n", "capacity"), [(2, 3), (3, 3), (5, 3), (4, 1)])
@pytest.mark.parametrize("coordination", [0.0, 0.3, 1.0])
def test_coordinated_placement_by_enumeration(n, capacity, coordination):
    found = coordinated(n, capacity, coordination)
    assert distribution(n, capacity, coordination)[n] == pytest.approx(found[: min(n, capacity) + 1])
    assert expected_occupied(n, capacity, coordination) == pytest.approx(sum(r * p for r, p in enumerate(found)))
    assert math.exp(log_probability_all_distinct(n, capacity, coordination)) == pytest.approx(found[n])


def test_known_values():
    assert math.exp(log_probability_all_distinct(23, 365)) == pytest.approx(0.4927027656760145)  # birthdays
    assert expected_occupied(2, 10) == pytest.approx(1.9)
    assert expected_occupied(3, 2, 0.5) == pytest.approx(1.9375)  # R_2 = 2 with 3/4, else one more with 3/4


@pytest.mark.parametrize(("capacity", "coordination"), MODELS)
def test_equation_3_is_exact_up_to_capacity_whatever_lambda_is(capacity, coordination):
    n, q = np.arange(capacity + 1), 1 - coordination
    equation = capacity / q * (1 - (1 - q / capacity) ** n) if q else n
    exact = expected_by_recurrence(capacity, capacity, coordination)
    assert equation == pytest.approx(exact, rel=1e-11)
    assert expected_occupied(n, capacity, coordination) == pytest.approx(exact, rel=1e-12)
    assert visible_of_capacity(n, capacity / q if q else math.inf) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("capacity", "coordination"), MODELS)
def test_beyond_capacity_the_expectation_is_that_of_the_distribution(capacity, coordination):
    n = np.arange(3 * capacity + 5)
    found = expected_occupied(n, capacity, coordination)
    assert found == pytest.approx(expected_by_recurrence(int(n[-1]), capacity, coordination), rel=1e-12)
    assert (found <= capacity * (1 + 1e-12)).all()
    assert (np.diff(found) >= -1e-12).all()


def test_beyond_capacity_equation_3_alone_says_too_much():
    assert visible_of_capacity(60, 10 / 0.3) > 25 > 10 >= expected_occupied(60, 10, 0.7) == pytest.approx(10)


@given(st.integers(0, 300), st.integers(1, 500), st.floats(0, 1))
def test_equation_1_lies_below_its_bound(n, capacity, coordination):
    chance = log_probability_all_distinct(n, capacity, coordination)
    assert chance <= log_bound_all_distinct(n, capacity, coordination) + 1e-9
    assert (chance == -np.inf) == (n > capacity)


@given(st.integers(0, 40), st.integers(1, 40), st.floats(0, 1))
def test_equation_1_is_the_end_of_the_distribution(n, capacity, coordination):
    if n <= capacity:
        chance = np.exp(log_probability_all_distinct(n, capacity, coordination))
        assert chance == pytest.approx(distribution(n, capacity, coordination)[n, n], abs=1e-300, rel=1e-9)


def test_probabilities_too_small_for_a_float_keep_their_logarithm():
    assert log_probability_all_distinct(2000, 2000) == pytest.approx(math.lgamma(2001) - 2000 * math.log(2000))
    assert np.exp(log_probability_all_distinct(2000, 2000)) == 0.0


@pytest.mark.parametrize("coordination", [0.0, 0.3, 0.9])
def test_the_leading_term_takes_over_as_occupancy_falls(coordination):
    """Equations 2 and 4: deficit / leading -> 1, with an error of n^3 / M^2, whose constant is q^2 / 6."""
    n, q = 50, 1 - coordination
    capacities = np.array([10**k for k in range(3, 9)])
    deficit = expected_deficit(n, capacities, coordination)
    ratio = deficit / leading_deficit(n, capacities, coordination)
    assert (np.diff(ratio) > 0).all()
    assert 1 - ratio[-1] < 1e-6
    error = (leading_deficit(n, capacities, coordination) - deficit)[:4]
    assert -np.diff(np.log10(error)) == pytest.approx(2, abs=0.01)  # falls with M^2
    assert error[-1] * capacities[3] ** 2 == pytest.approx(q**2 * math.comb(n, 3), rel=1e-3)
    counts = np.array([20, 40, 80, 160])
    error = leading_deficit(counts, 10**6, coordination) - expected_deficit(counts, 10**6, coordination)
    slopes = np.diff(np.log2(error))
    assert slopes == pytest.approx([np.log2(math.comb(2 * n, 3) / math.comb(n, 3)) for n in (20, 40, 80)], abs=0.01)
    assert slopes[-1] == pytest.approx(3, abs=0.05)  # and grows with n^3


def test_the_deficit_grows_nearly_quadratically_at_low_occupancy():
    deficit = expected_deficit([16, 32, 64], 10**7)
    assert np.diff(np.log2(deficit)) == pytest.approx(2, abs=0.1)


def test_a_deficit_far_below_the_count_keeps_its_digits():
    assert expected_deficit(2, 10**12) == pytest.approx(1e-12, rel=1e-12)
    assert expected_deficit(100, 10**12, 0.5) == pytest.approx(0.5 * 4950e-12, rel=1e-9)


@given(st.floats(1, 1e6), st.integers(0, 1000))
def test_the_curve_lies_between_one_object_and_all(capacity, n):
    seen = visible_of_capacity(n, capacity)
    assert min(n, 1) - 1e-12 <= seen <= min(n, capacity) * (1 + 1e-12)


def test_arrays_broadcast():
    n, capacity, coordination = np.arange(5)[:, None, None], np.array([2, 3, 50])[:, None], np.array([0, 0.5, 1])
    found = expected_occupied(n, capacity, coordination)
    assert found.shape == (5, 3, 3)
    for i, j, k in np.ndindex(found.shape):
        assert found[i, j, k] == expected_occupied(i, [2, 3, 50][j], [0, 0.5, 1][k])
    assert log_probability_all_distinct(n, capacity, coordination).shape == (5, 3, 3)
    assert expected_deficit(n, capacity, coordination) == pytest.approx(n - found)
    assert expected_occupied([], 3).shape == log_probability_all_distinct([], 3).shape == (0,)


@pytest.mark.parametrize(
    ("n", "capacity", "coordination", "name"),
    [
        (-1, 3, 0, "n:"),
        (1.5, 3, 0, "n:"),
        (math.nan, 3, 0, "n:"),
        (3, 0, 0, "M:"),
        (3, 2.5, 0, "M:"),
        (3, math.inf, 0, "M:"),
        (3, 3, -0.1, "lambda:"),
        (3, 3, 1.1, "lambda:"),
        (3, 3, math.nan, "lambda:"),
    ],
)
def test_what_the_model_does_not_know_is_refused(n, capacity, coordination, name):
    for function in (expected_occupied, log_probability_all_distinct, expected_deficit, leading_deficit):
        with pytest.raises(ValueError, match=name):
            function(n, capacity, coordination)


@pytest.mark.parametrize(("n", "capacity"), [(3, 0.5), (3, math.nan), (-1, 2), (2.5, 4)])
def test_a_capacity_below_one_has_no_curve(n, capacity):
    with pytest.raises(ValueError, match="must be"):
        visible_of_capacity(n, capacity)
