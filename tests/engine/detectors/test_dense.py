from __future__ import annotations

import numpy as np
import pytest

from tallymill.engine.detectors.dense import select, select_peaks
from tallymill.errors import ModelError

SCORES = np.array([[0.9, 0.1, 0.6], [0.0, 0.5, 0.5]], np.float32)


def test_selection_is_that_of_the_kernel():
    found = select(SCORES, np.array([1, 0, 1]), 0.5)
    assert found.request.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.cell.tolist() == [1, 2, 0, 2, 1, 2]
    assert select_peaks(SCORES, np.array([0, 1]), 0.5, 3).cell.tolist() == [0, 2, 1, 2]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_a_fault_of_the_model(value):
    scores = SCORES.copy()
    scores[0, 1] = value
    for run, width in ((select, ()), (select_peaks, (3,))):
        with pytest.raises(ModelError, match="non-finite scores"):
            run(scores, np.array([0]), 0.5, *width)
        assert len(run(scores, np.array([1]), 0.5, *width).cell) == 2


def test_a_wrong_argument_is_no_fault_of_the_model():
    with pytest.raises(ValueError, match="classes: wanted values in"):
        select(SCORES, np.array([2]), 0.5)
    with pytest.raises(ValueError, match="width: wanted"):
        select_peaks(SCORES, np.array([0]), 0.5, 2)
