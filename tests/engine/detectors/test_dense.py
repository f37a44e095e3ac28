from __future__ import annotations

import numpy as np
import pytest

from tallymill.engine.detectors.dense import select


@pytest.mark.parametrize("floor", [0.05, 0.3, 0.7, 0.0, 1.0])
def test_the_floor_is_compared_in_float64(floor):
    """float32(.7) lies below .7 and float32(.3) above .3."""
    near = np.float32(floor)
    scores = np.array([[np.nextafter(near, np.float32(-1)), near, np.nextafter(near, np.float32(2))]])
    _, cell = select(scores, floor)
    assert cell.tolist() == [i for i in range(3) if float(scores[0, i]) >= floor]


def test_classes_come_in_the_order_asked_and_cells_ascending():
    scores = np.array([[0.9, 0.1, 0.6], [0.0, 0.5, 0.5]], np.float32)
    request, cell = select(scores[[1, 0, 1]], 0.5)
    assert request.tolist() == [0, 0, 1, 1, 2, 2]
    assert cell.tolist() == [1, 2, 0, 2, 1, 2]


def test_nothing_asked_is_nothing_found():
    request, cell = select(np.zeros((0, 5), np.float32), 0.0)
    assert len(request) == len(cell) == 0
