"""The sensitivity that chance alone shows."""

import numpy as np
import pyarrow as pa
import pytest

from tallymill.engine.numbench.analysis.chance import chance_of
from tallymill.engine.numbench.analysis.grid import Axes, Grid, sums_of
from tallymill.engine.numbench.analysis.leaves import Leaves
from tallymill.engine.numbench.analysis.sensitivity import sensitivity_of
from tallymill.engine.numbench.factors import LAYOUTS

CORES = 160


def grid_of(seed, effect=0.0, shared=0.0):
    """Cores that have an image of the free layout and one of a guided one, as the prompts of NumBench have."""
    rng = np.random.default_rng(seed)
    looks = [("clean", None), ("modified", "quality"), ("unknown", None)]
    axes = Axes(["a", "b"], ["single"], [*LAYOUTS, "unknown"], looks, [])
    core = np.repeat(np.arange(CORES), 8)
    system, look = np.tile([0, 0, 0, 0, 1, 1, 1, 1], CORES), np.tile([0, 0, 1, 1], 2 * CORES)
    layout = np.where(np.arange(8 * CORES) % 2, 1 + core % 3, 0)
    scores = 0.4 + shared * rng.normal(size=CORES)[core] + 0.1 * rng.normal(size=8 * CORES) + effect * (layout == 2)
    whole = (scores.clip(0, 1) * 2**53).astype(np.int64)
    order = rng.permutation(8 * CORES)
    leaves = Leaves(0)
    leaves.names.add(pa.array([f"{k:04d}" for k in range(CORES)]))
    leaves.names.settle()
    leaves.core = core[order]
    one, none = np.ones(len(core), np.int64), np.zeros(len(core), np.int64)
    score = [(whole >> 26)[order], (whole & ((1 << 26) - 1))[order]]
    leaves.values = [one, none, none, *score, *score]
    count = 1 + 25 * (core % 4)
    at = [x[order].astype(np.int32) for x in (system, none, layout, look, count, core % 4)]
    return Grid(axes, leaves, *at)


def both(grid, seed=0, workers=1):
    values = sensitivity_of(sums_of(grid, (np.zeros((2, 0)),) * 3), grid.axes)[0]
    chance = chance_of(grid, grid.leaves.core, seed, workers)
    return {name: (values[f"sensitivity.{name}.relative"], of) for name, of in chance.items()}


@pytest.mark.parametrize("shared", [0.0, 0.1])
def test_levels_that_make_no_difference_show_what_chance_shows(shared):
    """Over some draws the mean of the value is that of the chance, also where a core's images are alike."""
    found = [both(grid_of(seed, shared=shared)) for seed in range(12)]
    for factor in ("layout", "appearance", "count_range", "appearance: quality"):
        value, chance = np.mean([one[factor] for one in found], axis=0)
        assert (value[:2] > 0.01).all()
        np.testing.assert_allclose(value, chance, rtol=0.2)


def test_a_real_difference_stands_out():
    for value, chance in (both(grid_of(1, effect=0.2))["layout"], both(grid_of(2, effect=-0.2))["layout"]):
        assert (value > 2 * chance).all()
        assert (value - chance > 0.15).all()
    value, chance = both(grid_of(1))["layout"]
    assert (np.abs(value - chance) < 0.06).all()


def test_chance_does_not_depend_on_threads_or_order():
    one, two, other = (both(grid_of(3), seed, workers) for seed, workers in ((5, 1), (5, 3), (6, 1)))
    grid = grid_of(3)
    turned = np.arange(len(grid.system))[::-1]
    grid.leaves.core, grid.leaves.values = grid.leaves.core[turned], [v[turned] for v in grid.leaves.values]
    names = ("system", "composition", "layout", "look", "count", "stratum")
    again = both(Grid(grid.axes, grid.leaves, *(getattr(grid, name)[turned] for name in names)), 5)
    for name, (_, chance) in one.items():
        np.testing.assert_array_equal(chance, two[name][1])
        np.testing.assert_array_equal(chance, again[name][1])
    assert one["layout"][1].tolist() != other["layout"][1].tolist()


def test_a_core_a_level_tells_nothing():
    """Nothing can be exchanged but the names of the levels, so that chance shows all that there is."""
    grid = grid_of(4)
    few = np.flatnonzero(grid.leaves.core < 1)
    grid.leaves.core, grid.leaves.values = grid.leaves.core[few], [v[few] for v in grid.leaves.values]
    names = ("system", "composition", "layout", "look", "count", "stratum")
    value, chance = both(Grid(grid.axes, grid.leaves, *(getattr(grid, name)[few] for name in names)))["layout"]
    np.testing.assert_allclose(value, chance)
