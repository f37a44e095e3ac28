from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from tallymill.engine.abacus.tiers import ranks, tiers
from tallymill.errors import UsageError


def test_ranks_are_those_of_scipy():
    values = np.random.default_rng(0).integers(0, 20, 300).astype(float)
    np.testing.assert_allclose(ranks(values), (scipy.stats.rankdata(values) - 0.5) / 300)


def test_crowded_scenes_with_small_targets_are_hard():
    n = 9
    rising = np.arange(n, dtype=float)
    found = tiers(rising, rising, -rising)
    assert found.names == ["easy"] * 3 + ["medium"] * 3 + ["hard"] * 3
    np.testing.assert_allclose(found.difficulty, 3 * (rising + 0.5) / n)


def test_cuts_of_another_set_are_taken():
    rising = np.arange(9, dtype=float)
    assert tiers(rising, rising, -rising, (0.5, 0.6)).names == ["easy"] * 2 + ["hard"] * 7
    low, high = tiers(rising, rising, -rising).cuts
    assert tiers(rising, rising, -rising, (low, high)).names == tiers(rising, rising, -rising).names


@pytest.mark.parametrize("size", [3, 4, 7, 50, 999])
def test_equal_sums_of_ranks_are_equally_difficult(size):
    order = np.arange(size, dtype=float)
    columns = order, np.roll(order, -1), np.roll(order, 1)  # the rank of each edit is another one in each column
    sums = sum(scipy.stats.rankdata(column) for column in columns)
    found = tiers(columns[0], columns[1], -columns[2])
    for value in np.unique(sums):
        alike = sums == value
        assert len(set(found.difficulty[alike])) == len(set(found.tier[alike])) == 1


def test_edits_that_are_alike_share_a_tier():
    assert tiers(np.ones(5), np.ones(5), np.ones(5)).names == ["easy"] * 5


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (([], [], []), "0 values"),
        (([1, 2], [1], [1, 2]), "capacity: 1 values of 2"),
        (([1, 2], [1, np.nan], [1, 2]), "capacity of edit 1 is nan"),
    ],
)
def test_what_cannot_be_ranked_is_refused(values, said):
    with pytest.raises(UsageError, match=said):
        tiers(*(np.array(each, float) for each in values))


def test_cuts_that_fall_are_refused():
    with pytest.raises(UsageError, match="the second is below"):
        tiers(np.ones(2), np.ones(2), np.ones(2), (0.7, 0.2))
