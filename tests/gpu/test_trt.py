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

ONES = torch.ones(1, 3)


class Sum(TensorRtSession):
    """Gives x + z in batches of 4 on the CPU, into memory that it makes for each batch as TensorRT's is made."""

    def __init__(self) -> None:
        self.device, self.model, self.batches = "cpu", Path("image-b4.engine"), 0
        self.inputs = (TensorSpec("x", "float32", (4, 3)), TensorSpec("z", "float32", (4, 3)))
        self.outputs = (TensorSpec("y", "float32", (4, 3)),)
        self._torch, self._batch = torch, 4

    def _ordered(self) -> Any:
        return nullcontext()

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        assert all(value.shape == (4, 3) and value.is_contiguous() for value in inputs.values())
        self.batches += 1
        return {"y": inputs["x"] + inputs["z"]}


@pytest.mark.parametrize(("rows", "batches"), [(1, 1), (3, 1), (4, 1), (9, 3), (6, 2)])
def test_what_comes_out_is_of_the_kind_that_went_in(rows: int, batches: int) -> None:
    session = Sum()
    x, z = torch.arange(3.0 * rows).reshape(3, rows).T, torch.arange(3.0 * rows).reshape(rows, 3)  # x is not contiguous
    y: Any = session.run({"x": x, "z": z})["y"]
    assert torch.equal(y, x + z)
    assert session.batches == batches
    array = session.run({"x": x.numpy(), "z": z.numpy()})["y"]
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, y.numpy())


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "its input 'x' is not given"),
        ({"x": ONES, "z": ONES, "w": ONES}, "it has no input 'w', only x, z"),
        ({"x": ONES}, "its input 'z' is not given"),
        ({"x": torch.ones(2, 3), "z": ONES}, "its inputs are of one number of rows, but 'x' has 2, 'z' has 1"),
        (
            {"x": ONES, "z": np.ones((2, 3), np.float32)},
            "its inputs are of one number of rows, but 'x' has 1, 'z' has 2",
        ),
        ({"x": torch.ones(1, 4)}, r"it takes x float32 \[\?, 3\], not x float32 \[1, 4\]"),
        ({"x": torch.ones(1, 3).double()}, "not x float64"),
        ({"x": np.ones((1, 3))}, "not x float64"),
        ({"x": torch.ones(0, 3)}, "its input 'x' has no rows"),
        ({"x": torch.ones(1, 3, device="meta")}, "its input 'x' is on meta; it runs on cpu"),
    ],
)
def test_what_is_no_input_of_the_engine_is_told(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=rf"image-b4\.engine: .*{message}"):
        Sum().run(inputs)


@pytest.mark.filterwarnings("error")
def test_arrays_that_are_read_only_or_upside_down_are_taken() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    x.flags.writeable = False
    np.testing.assert_array_equal(Sum().run({"x": x[::-1], "z": x})["y"], x[::-1] + x)
