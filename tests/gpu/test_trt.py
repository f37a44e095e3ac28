"""How a session of TensorRT takes and gives tensors; an engine is stood in for, since one runs on a card only."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tallymill.engine.sessions.base import TensorSpec
from tallymill.engine.sessions.trt import TensorRtSession
from tallymill.errors import ModelError


class Twice(TensorRtSession):
    """Gives x + x in batches of 1 and 4 on the CPU, into memory that it makes for each batch as TensorRT's is made."""

    def __init__(self) -> None:
        self.device, self.model, self.batches = "cpu", Path("image-b4.engine"), list[int]()
        self.inputs, self.outputs = (TensorSpec("x", "float32", (4, 3)),), (TensorSpec("y", "float32", (4, 3)),)
        self._torch, self._engines = torch, {1: None, 4: None}

    def _ordered(self) -> Any:
        return nullcontext()

    def _run(self, batch: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
        assert inputs["x"].shape == (batch, 3)
        assert inputs["x"].is_contiguous()
        self.batches.append(batch)
        return {"y": inputs["x"] + inputs["x"]}


@pytest.mark.parametrize(("rows", "batches"), [(1, [1]), (3, [4]), (4, [4]), (9, [4, 4, 1]), (6, [4, 4])])
def test_what_comes_out_is_of_the_kind_that_went_in(rows: int, batches: list[int]) -> None:
    session = Twice()
    x = torch.arange(3.0 * rows).reshape(3, rows).T  # not contiguous
    y: Any = session.run({"x": x})["y"]
    assert torch.equal(y, x + x)
    assert session.batches == batches
    array = session.run({"x": x.numpy()})["y"]
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, y.numpy())


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "its input 'x' is not given"),
        ({"x": torch.ones(1, 3), "z": torch.ones(1)}, "it has no input 'z', only x"),
        ({"x": torch.ones(1, 4)}, r"it takes x float32 \[\?, 3\], not x float32 \[1, 4\]"),
        ({"x": torch.ones(1, 3).double()}, "not x float64"),
        ({"x": np.ones((1, 3))}, "not x float64"),
        ({"x": torch.ones(0, 3)}, "its input 'x' has no rows"),
        ({"x": torch.ones(1, 3, device="meta")}, "its input 'x' is on meta; it runs on cpu"),
    ],
)
def test_what_is_no_input_of_the_engine_is_told(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=rf"image-b4\.engine: .*{message}"):
        Twice().run(inputs)
