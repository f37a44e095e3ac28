from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from tallymill.engine.sessions.base import TensorSpec
from tallymill.engine.sessions.ort import OnnxRuntimeSession
from tallymill.errors import ModelError


def write(path, kind, shape):
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "same",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, shape)],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


@pytest.mark.parametrize(
    ("kind", "shape", "dtype", "expected"),
    [
        (TensorProto.FLOAT, [1, 3], "float32", (1, 3)),
        (TensorProto.DOUBLE, ["n", 3], "float64", (None, 3)),
        (TensorProto.UINT8, [None, 2], "uint8", (None, 2)),
        (TensorProto.INT64, None, "int64", None),
    ],
)
def test_a_session_tells_what_its_model_declares(tmp_path, kind, shape, dtype, expected):
    session = OnnxRuntimeSession(write(tmp_path / "m.onnx", kind, shape))
    assert session.model == tmp_path / "m.onnx"
    assert session.inputs == (TensorSpec("x", dtype, expected),)
    assert session.outputs == (TensorSpec("y", dtype, expected),)
    value = np.ones((1, 2 if expected == (None, 2) else 3), dtype)
    np.testing.assert_array_equal(session.run({"x": value})["y"], value)


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_a_file_that_is_no_model_says_what_to_do(tmp_path, content):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx: ONNX Runtime cannot load this model") as caught:
        OnnxRuntimeSession(path)
    assert "fetch or export it anew" in caught.value.hint


def test_a_model_that_is_cut_short(tmp_path):
    path = write(tmp_path / "m.onnx", TensorProto.FLOAT, [1, 3])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ModelError, match=r"m\.onnx") as caught:
        OnnxRuntimeSession(path)
    assert caught.value.hint is not None


def test_an_input_of_another_shape_is_a_fault_with_the_file(tmp_path):
    session = OnnxRuntimeSession(write(tmp_path / "m.onnx", TensorProto.FLOAT, [1, 3]))
    with pytest.raises(ModelError, match=r"m\.onnx: .*dimensions"):
        session.run({"x": np.ones((1, 4), np.float32)})
