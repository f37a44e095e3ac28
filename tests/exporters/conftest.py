from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from tallymill.exporters.from_tfjs import convert
from tallymill.exporters.recipes.base import GraphInput, GraphOutput


def encode(value: Any) -> dict[str, Any]:
    """A Python value as a tfjs node attribute."""
    if isinstance(value, bool):
        return {"b": value}
    if isinstance(value, int):
        return {"i": str(value)}
    if isinstance(value, float):
        return {"f": value}
    if isinstance(value, str):
        return {"type": value} if value.startswith("DT_") else {"s": base64.b64encode(value.encode()).decode()}
    if value and isinstance(value[0], str):
        return {"list": {"s": [base64.b64encode(item.encode()).decode() for item in value]}}
    return {"list": {"i": [str(item) for item in value]}}


class Graph:
    """A tfjs graph model put together in a test: a placeholder ``x``, constants, and operators."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = [{"name": "x", "op": "Placeholder"}]
        self.weights: list[dict[str, Any]] = []
        self.data = b""

    def constant(self, name: str, value: Any, dtype: Any = np.float32, quantization: Mapping[str, Any] | None = None):
        """``value`` is stored as it is; with ``quantization`` it is the quantised array."""
        value = np.asarray(value, dtype if quantization is None else None)
        kind = np.dtype(dtype).name
        entry: dict[str, Any] = {"name": name, "shape": list(value.shape), "dtype": kind}
        if quantization is not None:
            entry["quantization"] = {"dtype": value.dtype.name, **quantization}
        self.weights.append(entry)
        self.data += value.tobytes()
        self.nodes.append({"name": name, "op": "Const"})
        return name

    def op(self, name: str, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        attr = {key: encode(value) for key, value in attributes.items()}
        self.nodes.append({"name": name, "op": op, "input": list(inputs), "attr": attr})
        return name

    def write(self, folder: Path, shards: int = 1) -> Path:
        """``model.json`` and its shards in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        size = -(-len(self.data) // shards) if self.data else 0
        paths = [f"shard{i}.bin" for i in range(shards)]
        for i, path in enumerate(paths):
            (folder / path).write_bytes(self.data[i * size : (i + 1) * size])
        document = {
            "format": "graph-model",
            "modelTopology": {"node": self.nodes},
            "weightsManifest": [{"paths": paths, "weights": self.weights}],
        }
        (folder / "model.json").write_text(json.dumps(document))
        return folder / "model.json"


@pytest.fixture
def graph() -> Graph:
    return Graph()


def open_session(model: onnx.ModelProto) -> ort.InferenceSession:
    """The model, ready to run on the CPU."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def draw(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Normally distributed numbers of this shape."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def swish(graph: Graph, scale: float, shift: float = 3.0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Put x -> conv -> scale * conv * relu6(conv + shift) into the graph; what conv and the whole give for 4 draws."""
    graph.constant("w", draw(1, 1, 3, 4, seed=1))
    graph.constant("bias", draw(4, seed=2))
    graph.op("conv", "_FusedConv2D", ["x", "w", "bias"], padding="SAME", strides=[1] * 4, fused_ops=["BiasAdd"])
    graph.op("scaled", "Mul", [graph.constant("c", scale), "conv"])
    graph.op("shifted", "Add", ["conv", graph.constant("three", shift)])
    graph.op("clipped", "Relu6", ["shifted"])
    graph.op("out", "Mul", ["scaled", "clipped"])
    y = draw(2, 5, 5, 3).astype(np.float64) * 4 @ draw(1, 1, 3, 4, seed=1)[0, 0] + draw(4, seed=2)
    return y, y * scale * np.clip(y + shift, 0, 6)


def first_convolution(graph: Graph, channels: int) -> str:
    """``x`` through a convolution that changes nothing, after which it lies channels-first."""
    eye = graph.constant("eye", np.eye(channels).reshape(1, 1, channels, channels))
    return graph.op("first", "Conv2D", ["x", eye], padding="SAME", strides=[1] * 4)


@pytest.fixture(scope="session")
def session() -> Callable[[onnx.ModelProto], ort.InferenceSession]:
    return open_session


@pytest.fixture(scope="session")
def noise() -> Callable[..., NDArray[np.float32]]:
    return draw


@pytest.fixture(scope="session")
def hard_swish() -> Callable[..., tuple[NDArray[np.float64], NDArray[np.float64]]]:
    return swish


@pytest.fixture(scope="session")
def channels_first() -> Callable[[Graph, int], str]:
    return first_convolution


@pytest.fixture
def run(graph: Graph, tmp_path: Path) -> Callable[..., tuple[list[Any], Counter[str]]]:
    """Convert the graph and run it on ``x``; returns the outputs and the converted model's operators."""

    def run(x: NDArray[Any], *outputs: str, shape: Any = None, **options: Any) -> tuple[list[Any], Counter[str]]:
        given = GraphInput("x", "x", x.dtype.name, shape or x.shape)
        wanted = [GraphOutput(name, f"out{i}") for i, name in enumerate(outputs)]
        model = convert(graph.write(tmp_path), inputs=[given], outputs=wanted, **options)
        return open_session(model).run(None, {"x": x}), Counter(node.op_type for node in model.graph.node)

    return run
