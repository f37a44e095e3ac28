"""What is read of the words of an engine inspector, as NVIDIA's documentation and tools show them."""

import json
from types import SimpleNamespace

import pytest

from tallymill.exporters import engine_layers
from tallymill.exporters.engine_layers import histogram


def layer(kind, *outputs):
    return {"Name": kind, "LayerType": kind, "Inputs": [], "Outputs": [{"Format/Datatype": each} for each in outputs]}


def test_layers_are_counted_by_kind_and_by_the_type_of_their_first_output():
    layers = [
        layer("gemm", "Half"),
        layer("gemm", "Row major linear FP16 format (kLINEAR)", "Float"),
        layer("gemm", "Float"),
        layer("CaskConvolution", "Channel major FP16 format where channel % 8 == 0"),
        layer("kgen", "BFloat16"),
        layer("kgen", "Thirty-two wide channel vectorized row major Int8 format."),
        layer("Constant"),
        layer("Reformat", "Row major linear FP32 format"),
        {"Name": "shape"},
    ]
    assert histogram(json.dumps({"Layers": layers, "Bindings": ["image"]})) == {
        "CaskConvolution": {"float16": 1},
        "Constant": {"unknown": 1},
        "Reformat": {"float32": 1},
        "gemm": {"float16": 2, "float32": 1},
        "kgen": {"bfloat16": 1, "int8": 1},
        "unknown": {"unknown": 1},
    }


@pytest.mark.parametrize(
    "told",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"Layers": []}',
        '{"Layers": ["gemm", "kgen"]}',  # an engine that was built without details
        '{"Layers": [{"Metadata": "{"}"}]}',  # names that are not escaped
    ],
)
def test_what_tells_nothing_is_no_histogram(told):
    assert histogram(told) is None


def test_an_engine_is_loaded_on_its_card_and_asked(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    (tmp_path / "x.engine").write_bytes(b"engine")
    current = []
    engines = {b"engine": SimpleNamespace(create_engine_inspector=lambda: inspector)}
    inspector = SimpleNamespace(
        get_engine_information=lambda form: json.dumps({"Layers": [layer(form, "Half")]} if current else {})
    )

    class Runtime:
        def __init__(self, logger):
            self.logger = logger

        def deserialize_cuda_engine(self, content):
            return engines.get(content)

    class Logger(str):
        ERROR = "error"

    class OnCard:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            current.append(self.device)

        def __exit__(self, *_failure):
            current.remove(self.device)

    trt = SimpleNamespace(
        Runtime=Runtime,
        Logger=Logger,
        LayerInformationFormat=SimpleNamespace(JSON="json"),
    )
    monkeypatch.setattr(torch.cuda, "device", OnCard)
    assert engine_layers.dtypes_of(trt, tmp_path / "x.engine", "cuda:1") == {"json": {"float16": 1}}
    (tmp_path / "x.engine").write_bytes(b"of another card")
    assert engine_layers.dtypes_of(trt, tmp_path / "x.engine", "cuda:1") is None
