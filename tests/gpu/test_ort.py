"""ONNX Runtime on tensors of torch: the same bindings on the CPU's memory, and on a card where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, save

from tallymill.engine.sessions.ort import CUDA, OnnxRuntimeSession
from tallymill.errors import ModelError

needs_card = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or CUDA not in onnxruntime.get_available_providers(),
        reason="needs a card and onnxruntime-gpu",
    ),
]
DEVICES = ["cpu", pytest.param("cuda:0", marks=needs_card)]


def twice(folder: Path, kind: int = TensorProto.FLOAT) -> Path:
    """y = x + x of any number of rows of three."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "twice",
        [helper.make_tensor_value_info("x", kind, ["n", 3])],
        [helper.make_tensor_value_info("y", kind, ["n", 3])],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), str(folder / "m.onnx"))
    return folder / "m.onnx"


def both(folder: Path) -> Path:
    """first [n, 3] and second [n, 3] -> their difference and their sum."""
    names = ["first", "second"]
    graph = helper.make_graph(
        [helper.make_node("Sub", names, ["less"]), helper.make_node("Add", names, ["more"])],
        "both",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in names],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("less", "more")],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), str(folder / "m.onnx"))
    return folder / "m.onnx"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.FLOAT, torch.float32),
        (TensorProto.FLOAT16, torch.float16),
        (TensorProto.INT64, torch.int64),
    ],
)
def test_tensors_in_tensors_out(device: str, rows: int, kind: int, dtype: torch.dtype, tmp_path: Path) -> None:
    session = OnnxRuntimeSession(twice(tmp_path, kind), device=device)
    x = torch.arange(3 * rows, dtype=dtype, device=device).reshape(rows, 3)
    y: Any = session.run({"x": x})["y"]
    assert isinstance(y, torch.Tensor)
    assert (y.device, y.dtype) == (x.device, dtype)
    assert torch.equal(y, x + x)


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_in_arrays_out(device: str, tmp_path: Path) -> None:
    session = OnnxRuntimeSession(twice(tmp_path), device=device)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = session.run({"x": x})["y"]
    assert isinstance(y, np.ndarray)
    np.testing.assert_array_equal(y, x + x)


@pytest.mark.parametrize("device", DEVICES)
def test_an_array_beside_a_tensor_is_copied_to_the_device(device: str, tmp_path: Path) -> None:
    session = OnnxRuntimeSession(both(tmp_path), device=device)
    ones: Any = torch.ones(2, 3, device=device)
    found: Any = session.run({"second": ones, "first": np.full((2, 3), 5, np.float32)})
    assert list(found) == ["less", "more"]
    assert torch.equal(found["less"], ones * 4)
    assert torch.equal(found["more"], ones * 6)


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_outlive_later_runs_and_the_session(device: str, tmp_path: Path) -> None:
    session = OnnxRuntimeSession(twice(tmp_path), device=device)
    inputs = [torch.full((64, 3), float(k), device=device) for k in range(20)]
    outputs = [session.run({"x": x})["y"] for x in inputs]
    del session
    for x, y in zip(inputs, outputs, strict=True):
        assert torch.equal(y, x + x)


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_that_are_not_contiguous(device: str, tmp_path: Path) -> None:
    session = OnnxRuntimeSession(twice(tmp_path), device=device)
    x = torch.arange(12.0, device=device).reshape(3, 4).T
    y: Any = session.run({"x": x})["y"]
    assert torch.equal(y, x + x)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": torch.ones(1, 3, dtype=torch.float64)}, "its input is x float32 .*; it was given float64"),
        ({"x": torch.ones(1, 4)}, "dimensions"),
        ({"z": torch.ones(1, 3)}, "its input 'x' is not given"),
        ({"x": torch.ones(1, 3), "z": torch.ones(1, 3)}, "it has no input 'z', only x"),
        ({"x": torch.ones(1, 3, device="meta")}, "its input 'x' is on meta; it runs on"),
    ],
)
def test_what_is_no_input_of_the_model_is_told(
    device: str, inputs: dict[str, Any], message: str, tmp_path: Path
) -> None:
    session = OnnxRuntimeSession(twice(tmp_path), device=device)
    given = {name: value if value.is_meta else value.to(device) for name, value in inputs.items()}
    with pytest.raises(ModelError, match=rf"m\.onnx: .*{message}"):
        session.run(given)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or CUDA not in onnxruntime.get_available_providers(),
    reason="needs a card and onnxruntime-gpu",
)
def test_work_is_in_the_order_of_the_callers_stream(tmp_path: Path) -> None:
    session = OnnxRuntimeSession(twice(tmp_path), device="cuda:0")
    with torch.cuda.stream(torch.cuda.Stream("cuda:0")):
        for k in range(50):
            x = torch.zeros(1 << 20, 3, device="cuda:0")
            x += k  # not done when the session is called
            y: Any = session.run({"x": x})["y"]
            x.zero_()
            assert bool((y == 2 * k).all())


@pytest.mark.filterwarnings("error")
def test_beside_a_tensor_arrays_that_are_read_only_or_upside_down_are_taken(tmp_path: Path) -> None:
    second = np.arange(6, dtype=np.float32).reshape(2, 3)
    second.flags.writeable = False
    first = torch.ones(2, 3)
    for array in (second, second[::-1], second[:, ::-1]):
        found: Any = OnnxRuntimeSession(both(tmp_path)).run({"first": first, "second": array})
        assert torch.equal(found["more"], first + torch.tensor(array.copy()))
