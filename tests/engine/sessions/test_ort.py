from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from tallymill.engine.sessions import ort
from tallymill.engine.sessions.base import TensorSpec
from tallymill.engine.sessions.ort import OnnxRuntimeSession, work_on_the_cpu
from tallymill.errors import DeviceError, ModelError


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


def test_a_session_is_on_the_cpu_unless_it_is_said(tmp_path):
    assert OnnxRuntimeSession(write(tmp_path / "m.onnx", TensorProto.FLOAT, [1, 3])).device == "cpu"


@pytest.mark.skipif(ort.CUDA in onnxruntime.get_available_providers(), reason="this ONNX Runtime knows CUDA")
def test_a_provider_that_is_not_built_in_is_refused(tmp_path):
    model = write(tmp_path / "m.onnx", TensorProto.FLOAT, [1, 3])
    with pytest.raises(
        ModelError, match=r"m\.onnx: the device 'cuda:0' was asked for, .* only .*CPUExecution"
    ) as caught:
        OnnxRuntimeSession(model, device="cuda:0")
    assert "pip uninstall onnxruntime, then pip install 'tallymill[gpu]'" in caught.value.hint


def test_a_provider_that_onnx_runtime_leaves_out_without_an_error_is_refused(tmp_path, monkeypatch):
    """As onnxruntime-gpu 1.31 does where it finds no driver: it lists the provider, logs, and computes on the CPU."""
    model = write(tmp_path / "m.onnx", TensorProto.FLOAT, [1, 3])
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [ort.CUDA, "CPUExecutionProvider"])
    asked = {}
    session = onnxruntime.InferenceSession

    def on_the_cpu(file, options, *, providers, enable_fallback):
        asked.update(dict([providers[0]]), fallback=enable_fallback, options=options)
        return session(file, options, providers=["CPUExecutionProvider"], enable_fallback=enable_fallback)

    monkeypatch.setattr(onnxruntime, "InferenceSession", on_the_cpu)
    with pytest.raises(ModelError, match=r"'cuda:3' was asked for, .* only CPUExecutionProvider") as caught:
        OnnxRuntimeSession(model, device="cuda:3")
    assert "onnxruntime-gpu found no card" in caught.value.hint
    assert asked[ort.CUDA]["device_id"] == "3"
    assert asked[ort.CUDA]["use_tf32"] == "0"
    assert asked["fallback"] == 0
    assert asked["options"].use_deterministic_compute


@pytest.mark.parametrize(("operator", "named"), [("Softmax", ["the-node (Softmax)"]), ("Shape", [])])
def test_a_node_that_does_work_on_the_cpu_is_told_as_onnx_runtime_tells_it(operator, named):
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], name="the-node")],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.INT64 if operator == "Shape" else TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assigned = session.get_provider_graph_assignment_info()
    assert [node.op_type for subgraph in assigned for node in subgraph.get_nodes()] == [operator]
    assert work_on_the_cpu(assigned) == named


def test_work_on_the_card_is_where_it_belongs():
    node = SimpleNamespace(name="n", op_type="Conv")
    subgraph = SimpleNamespace(ep_name=ort.CUDA, get_nodes=lambda: [node])
    assert work_on_the_cpu([subgraph]) == []


def test_a_card_that_cannot_be_opened_is_not_taken_for_a_damaged_file(tmp_path, monkeypatch):
    """As onnxruntime-gpu 1.31 does where the driver is too old for its CUDA."""
    model = write(tmp_path / "m.onnx", TensorProto.FLOAT, [1, 3])

    def fail(*_args, **_options):
        raise RuntimeError("CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [ort.CUDA])
    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    with pytest.raises(ModelError, match=r"m\.onnx: .*driver version is insufficient") as caught:
        OnnxRuntimeSession(model, device="cuda:0")
    assert "print_debug_info" in caught.value.hint
    assert "try --device cpu" in caught.value.hint


@pytest.mark.parametrize("cards", [0, 1, 3])
def test_cards_are_counted_by_opening_them(cards, monkeypatch):
    """ONNX Runtime either leaves a card out or raises."""
    session = onnxruntime.InferenceSession
    numbers = []

    def on_a_card(model, options, *, providers, enable_fallback):
        [(provider, asked)] = providers
        numbers.append(int(asked["device_id"]))
        if numbers[-1] >= cards and cards % 2:
            raise RuntimeError("CUDA failure 101: invalid device ordinal")
        opened = session(model, options, providers=["CPUExecutionProvider"], enable_fallback=enable_fallback)
        found = [provider] * (numbers[-1] < cards)
        return SimpleNamespace(get_providers=lambda: [*found, *opened.get_providers()])

    monkeypatch.setattr(onnxruntime, "InferenceSession", on_a_card)
    assert ort.count_cards.__wrapped__() == cards
    assert numbers == list(range(cards + 1))


@pytest.mark.parametrize(
    ("device", "text", "kind"),
    [
        ("cuda:0", "CUDA failure 700: an illegal memory access was encountered ; GPU=0", DeviceError),
        ("cuda:0", "CUBLAS failure 14: CUBLAS_STATUS_INTERNAL_ERROR", DeviceError),
        ("cuda:0", "bfc_arena.cc: Failed to allocate memory for requested buffer of size 9", DeviceError),
        ("cuda:0", "CUDA error: out of memory", DeviceError),
        ("cuda:0", "Non-zero status code returned while running Reshape node. providers/cuda/x.cc", ModelError),
        ("cuda:0", "CUDNN_FE failure 11: CUDNN_BACKEND_API_FAILED ; GPU=0 ; hostname=h ; expr=x", DeviceError),
        ("cuda:0", "bfc_arena.cc: Available memory of 0 is smaller than requested bytes of 512", DeviceError),
        ("cpu", "Failed to allocate memory for requested buffer of size 9", DeviceError),
        ("cpu", "std::bad_alloc", DeviceError),
        ("cpu", "CUDNN_FE failure 11: this would be odd", ModelError),
    ],
)
def test_a_card_that_fails_is_no_fault_of_an_image(device, text, kind, tmp_path, monkeypatch):
    session = OnnxRuntimeSession(write(tmp_path / "m.onnx", TensorProto.FLOAT, [1, 3]))

    def fail(*_args):
        raise RuntimeError(text)

    monkeypatch.setattr(session, "device", device)
    monkeypatch.setattr(session, "_session", SimpleNamespace(run=fail))
    said = rf"m\.onnx: {'memory ran out' if device == 'cpu' else device + ' failed'}: "
    with pytest.raises(kind, match=said if kind is DeviceError else r"m\.onnx: ") as caught:
        session.run({"x": np.ones((1, 3), np.float32)})
    assert not (kind is DeviceError and isinstance(caught.value, ModelError))
    assert (caught.value.hint is not None) is (kind is DeviceError)


def test_memory_that_is_not_there_is_no_fault_of_an_image(tmp_path):
    """Of a real model, which wants more than any machine can address."""
    graph = helper.make_graph(
        [helper.make_node("Expand", ["x", "shape"], ["y"])],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])],
        [numpy_helper.from_array(np.array([2**30, 2**28]), "shape")],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "m.onnx")
    with pytest.raises(DeviceError, match=r"memory ran out: .*Failed to allocate memory") as caught:
        OnnxRuntimeSession(tmp_path / "m.onnx").run({"x": np.ones(1, np.float32)})
    assert "fewer --workers" in caught.value.hint
