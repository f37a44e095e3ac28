from __future__ import annotations

import builtins

import numpy as np
import pytest

from tallymill.engine.numbench.collision import simulate as module
from tallymill.engine.numbench.collision.closed import distribution, expected_occupied, log_probability_all_distinct
from tallymill.engine.numbench.collision.simulate import simulate
from tallymill.errors import MissingExtraError

COUNTS = [1, 2, 3, 5, 10, 20, 40, 70, 100]
MODELS = [
    (capacity, coordination)
    for capacity in (1, 2, 10, 50, 144, 1000, 1_000_000)
    for coordination in (0.0, 0.2, 0.5, 0.9, 1.0)
]


@pytest.mark.parametrize(("capacity", "coordination"), MODELS)
def test_simulation_and_closed_form_agree_to_sampling_error(capacity, coordination):
    found = simulate(COUNTS, capacity, coordination, trials=20_000, seed=11)
    exact = expected_occupied(found.counts, capacity, coordination)
    chances = distribution(100, capacity, coordination)[found.counts]
    occupied = np.arange(chances.shape[1])
    # The exact spread, not the sample's: that may be 0 where a collision is rare.
    spread = np.sqrt(np.maximum(chances @ occupied**2 - (chances @ occupied) ** 2, 0))
    off = (found.mean() - exact) * found.trials
    # A mean is normal where not nearly all trials fall on one value; where they do, a few may miss it.
    normal = (1 - chances.max(1)) * found.trials >= 25
    assert np.abs(off[normal] / spread[normal] / np.sqrt(found.trials)).max(initial=0) < 4
    assert np.abs(off[~normal]).max(initial=0) < 50
    assert found.deviation()[normal] == pytest.approx(spread[normal], rel=0.45)  # 25 events
    expected = chances * found.trials
    often = (expected >= 25) & (expected <= found.trials - 25)
    assert np.abs((found.histogram - expected)[often] / np.sqrt(expected[often])).max(initial=0) < 4.5
    assert not found.histogram[expected == 0].any()
    distinct = np.exp(log_probability_all_distinct(found.counts, capacity, coordination))
    error = np.sqrt(distinct * (1 - distinct) / found.trials)
    assert (np.abs(found.all_distinct() - distinct) <= 4 * error + 10 / found.trials).all()
    assert (found.histogram.sum(1) == found.trials).all()


def test_the_z_values_of_independent_runs_are_standard_normal():
    """Not only small: neither biased nor too narrow."""
    z = []
    for seed in range(200):
        found = simulate([30], 40, 0.3, trials=500, seed=seed)
        z.append((found.mean()[0] - expected_occupied(30, 40, 0.3)) / found.deviation()[0] * np.sqrt(500))
    assert abs(np.mean(z)) * np.sqrt(200) < 4
    assert np.std(z) == pytest.approx(1, abs=0.2)


def test_the_seed_decides_and_threads_do_not():
    one = simulate(COUNTS, 50, 0.3, trials=1001, seed=5)
    for threads in (2, 3, 2000):
        assert (simulate(COUNTS, 50, 0.3, trials=1001, seed=5, threads=threads).histogram == one.histogram).all()
    assert (simulate(COUNTS, 50, 0.3, trials=1001, seed=6).histogram != one.histogram).any()


def test_a_count_sees_the_same_trials_with_and_without_others():
    alone, among = simulate([40], 50, 0.3, trials=500), simulate([100, 40, 7, 40], 50, 0.3, trials=500)
    assert among.counts.tolist() == [7, 40, 100]
    assert (among.histogram[1, :41] == alone.histogram[0]).all()


def test_known_answers():
    found = simulate([0, 1, 2, 9], 4, 1.0, trials=50)
    assert found.mean().tolist() == [0, 1, 2, 4]
    assert found.deviation().tolist() == [0, 0, 0, 0]
    assert found.all_distinct().tolist() == [1, 1, 1, 0]
    assert simulate([5], 3, trials=1).deviation().tolist() == [0]
    found = simulate([30], 40, trials=1000)
    trials = np.repeat(np.arange(31), found.histogram[0])
    assert found.mean()[0] == pytest.approx(trials.mean())
    assert found.deviation()[0] == pytest.approx(trials.std(ddof=1))
    assert found.all_distinct()[0] == np.mean(trials == 30)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": []}, "counts"),
        ({"counts": [-1]}, "counts"),
        ({"counts": [10**7]}, "counts"),
        ({"counts": range(20_000), "capacity": 10_000}, "histogram"),
        ({"capacity": 0}, "capacity"),
        ({"coordination": 1.5}, "coordination"),
        ({"coordination": float("nan")}, "coordination"),
        ({"trials": 0}, "trials"),
        ({"threads": 0}, "threads"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 64}, "seed"),
    ],
)
def test_what_makes_no_sense_is_refused(change, message):
    good = {"counts": [3], "capacity": 5, "coordination": 0.0, "trials": 1}
    with pytest.raises(ValueError, match=message):
        simulate(**{**good, **change})


def test_the_largest_seed_is_taken():
    assert simulate([3], 5, trials=10, seed=(1 << 64) - 1).trials == 10


def test_without_numba_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "numba":
            raise ModuleNotFoundError("No module named 'numba'", name="numba")
        return real(name, *args, **kwargs)

    module._kernel.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"tallymill\[numba\]"):
        simulate([3], 5, trials=1)
