import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymill.engine import exact_sum
from tallymill.engine.exact_sum import exact_sums, rounded

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 2)), max_size=60), st.integers(0, 60))
def test_sums_are_those_of_fsum_however_they_are_cut(pairs, cut):
    values = np.array([value for value, _ in pairs], np.float64)
    groups = np.array([group for _, group in pairs], np.int64)
    sums = [
        a + b
        for a, b in zip(
            exact_sums(values[:cut], groups[:cut], 3), exact_sums(values[cut:], groups[cut:], 3), strict=True
        )
    ]
    for group in range(3):
        assert rounded(sums[group]) == math.fsum(values[groups == group])


@pytest.mark.parametrize("values", [[], [0.0, -0.0], [5e-324] * 3, [2.0**-1074, 2.0**1000], [1.0, 2.0**-53, 2.0**-106]])
def test_the_ends_of_the_range(values):
    array = np.array(values)
    assert rounded(exact_sums(array, np.zeros(len(array), np.int64), 1)[0]) == math.fsum(values)


def test_a_sum_without_a_float_and_too_many_values(monkeypatch):
    with pytest.raises(OverflowError):
        rounded(exact_sums(np.full(2, 1.7e308), np.zeros(2, np.int64), 1)[0])
    monkeypatch.setattr(exact_sum, "MAX_VALUES", 2)
    with pytest.raises(ValueError, match="at most 2, got 3"):
        exact_sums(np.ones(3), np.zeros(3, np.int64), 1)
