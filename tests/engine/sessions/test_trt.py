from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tallymill.engine.sessions import trt
from tallymill.engine.sessions.trt import TensorRtSession, filled, size_for
from tallymill.errors import MissingExtraError


@pytest.mark.parametrize(
    ("rows", "sizes", "size"),
    [(None, [8], 8), (None, [1, 8], 8), (1, [1, 8], 1), (2, [8, 1], 8), (9, [1, 8], 8), (3, [1, 2, 4], 4), (1, [8], 8)],
)
def test_one_engine_is_chosen_by_the_usual_batch(rows, sizes, size):
    assert size_for(rows, sizes) == size


def test_a_batch_is_filled_with_its_last_row():
    assert filled(np.array([[1, 2], [3, 4]]), 4).tolist() == [[1, 2], [3, 4], [3, 4], [3, 4]]
    assert filled(np.array([[1, 2], [3, 4]]), 2).tolist() == [[1, 2], [3, 4]]


def test_without_the_runtime_its_extra_is_named(monkeypatch):
    monkeypatch.setattr(trt, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match="tensorrt_rtx") as caught:
        TensorRtSession({8: Path("image-b8.engine")}, module="tensorrt_rtx")
    assert caught.value.hint == "pip install 'tallymill[tensorrt]'"
