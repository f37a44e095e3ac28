from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tallymill.engine.sessions import trt
from tallymill.engine.sessions.trt import TensorRtSession, filled, pieces
from tallymill.errors import MissingExtraError


@pytest.mark.parametrize(
    ("rows", "sizes", "cut"),
    [
        (8, [8], [(0, 8, 8)]),
        (3, [8], [(0, 3, 8)]),
        (19, [8], [(0, 8, 8), (8, 8, 8), (16, 3, 8)]),
        (1, [1, 8], [(0, 1, 1)]),
        (2, [1, 8], [(0, 2, 8)]),
        (9, [1, 8], [(0, 8, 8), (8, 1, 1)]),
        (5, [1, 2, 4], [(0, 4, 4), (4, 1, 1)]),
        (0, [8], []),
    ],
)
def test_rows_go_through_the_engine_that_fits_them(rows, sizes, cut):
    assert pieces(rows, sizes) == cut


def test_a_batch_is_filled_with_its_last_row():
    assert filled(np.array([[1, 2], [3, 4]]), 4).tolist() == [[1, 2], [3, 4], [3, 4], [3, 4]]
    assert filled(np.array([[1, 2], [3, 4]]), 2).tolist() == [[1, 2], [3, 4]]


def test_without_the_runtime_its_extra_is_named(monkeypatch):
    monkeypatch.setattr(trt, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match="tensorrt_rtx") as caught:
        TensorRtSession({8: Path("image-b8.engine")}, module="tensorrt_rtx")
    assert caught.value.hint == "pip install 'tallymill[tensorrt]'"
