from __future__ import annotations

import numpy as np
import pytest

from tallymill.kernels.floats import float_not_above, float_not_below


@pytest.mark.parametrize("value", [0.0, 0.05, 0.1, 0.3, 0.7, 0.9999999, 1.0, 1e-40, 1e-50, -0.7])
def test_comparisons_of_floats_are_those_in_float64(value: float) -> None:
    near = np.float32(value)
    floats = np.array([np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))])
    np.testing.assert_array_equal(floats >= float_not_below(value), floats.astype(np.float64) >= value)
    np.testing.assert_array_equal(floats > float_not_above(value), floats.astype(np.float64) > value)


def test_a_threshold_that_is_a_float_is_itself() -> None:
    for value in (0.0, 0.5, 1.0, float(np.float32(0.05))):
        assert float_not_below(value) == float_not_above(value) == value
    assert float_not_above(0.05) < 0.05 < float_not_below(0.05)
