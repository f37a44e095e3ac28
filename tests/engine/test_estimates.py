"""Values with their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from tallymill.engine.estimates import Estimates


@pytest.mark.parametrize("number", [1, 2, 3, 40, 2000])
def test_intervals_are_those_of_numpy(number):
    values = np.random.default_rng(number).normal(size=(number, 3))
    values[: number // 2, 1] = np.nan
    values[:, 2] = np.nan
    estimates = Estimates({"x": np.array([[1.0, 2.0, np.nan]])}, {"x": values})
    for place in range(3):
        found = estimates("x", place)
        kept = values[~np.isnan(values[:, place]), place]
        assert found.null_resamples == number - len(kept)
        if len(kept) > 1:
            assert [found.low, found.high] == np.percentile(kept, [2.5, 97.5]).tolist()
        else:
            assert (found.low, found.high) == (None, None)
