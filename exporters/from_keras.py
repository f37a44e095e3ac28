"""Converts a TensorFlow.js layers model (a Keras JSON and its weights) to ONNX.

Only what a convolutional network without branches in time needs: convolutions, rectifiers, sums, concatenations and
enlargement. Whatever else stands in the file is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tallymill.errors import ModelError
from tallymill.exporters.tfjs_builder import IR_VERSION, OPSET

_CHANNELS = {"channels_last"}


def convert(
    model_json: Path,
    *,
    input_name: str,
    output_name: str,
    name: str = "model",
    metadata: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """Convert a model of one image to one image: float32 [B, 3, H, W] -> float32 [B, C, h, w], of any H and W.

    The same files give the same bytes. Raises ``ModelError`` naming the file when it is missing, cut short or no
    layers model, and naming the layer when it is not known.
    """
    config, weights = _read(model_json)
    ends = _ends(config, model_json)
    graph = _Graph(weights, {ends[0]: input_name, ends[1]: output_name})
    channels = None
    for layer in config["layers"]:
        try:
            if layer["class_name"] == "InputLayer":
                channels = layer["config"]["batch_input_shape"][3]
            else:
                graph.add(layer)
        except (KeyError, IndexError, TypeError) as exc:
            raise ModelError(f"{model_json}: layer {layer.get('name')!r} is not as Keras writes it: {exc!r}") from None
        except ModelError as exc:
            raise ModelError(f"{model_json}: {exc.message}") from None
    tensors = [
        helper.make_tensor_value_info(
            tensor, TensorProto.FLOAT, [axis if axis else axis_name for axis_name, axis in shape]
        )
        for tensor, shape in (
            (input_name, (("batch", None), ("channels", channels), ("height", None), ("width", None))),
            (output_name, (("batch", None), ("out", None), ("tall", None), ("wide", None))),
        )
    ]
    made = helper.make_graph(graph.nodes, name, tensors[:1], tensors[1:], graph.constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    helper.set_model_props(model, dict(metadata or {}))
    onnx.checker.check_model(model)
    return model


class _Graph:
    """Nodes and constants so far; layers keep their names as those of their tensors, but for the two ``ends``."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], ends: Mapping[str, str]) -> None:
        self._weights, self._ends = weights, ends
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, layer: dict[str, Any]) -> None:
        kind, config = layer["class_name"], layer["config"]
        handler = _LAYERS.get(kind)
        if handler is None:
            raise ModelError(f"layer {config['name']!r}: {kind} is not one of {', '.join(_LAYERS)}")
        if config.get("data_format", "channels_last") not in _CHANNELS:
            raise ModelError(f"layer {config['name']!r}: data_format {config['data_format']!r} is not channels_last")
        handler(self, config, [self.tensor(source) for source in _sources(layer)])

    def tensor(self, layer: str) -> str:
        """What the output of a layer is called."""
        return self._ends.get(layer, layer)

    def node(self, kind: str, inputs: list[str], config: dict[str, Any], **attributes: Any) -> None:
        self.nodes.append(helper.make_node(kind, inputs, [self.tensor(config["name"])], config["name"], **attributes))

    def constant(self, name: str, value: NDArray[np.float32]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def weight(self, name: str) -> NDArray[np.float32]:
        if name not in self._weights:
            raise ModelError(f"the weights {name!r} are missing")
        return self._weights[name]


def _sources(layer: dict[str, Any]) -> list[str]:
    """The layers whose outputs a layer takes. One that is called several times would be several nodes."""
    name, calls = layer["config"]["name"], layer["inbound_nodes"]
    if len(calls) != 1:
        raise ModelError(f"layer {name!r}: is called {len(calls)} times; only what is called once is read")
    for source, node, output, *_ in calls[0]:
        if (node, output) != (0, 0):
            raise ModelError(f"layer {name!r}: takes output {output} of call {node} of {source!r}; only 0 of 0 is read")
    return [entry[0] for entry in calls[0]]


def _convolution(graph: _Graph, config: dict[str, Any], inputs: list[str]) -> None:
    name, activation = config["name"], config.get("activation", "linear")
    if activation != "linear":
        raise ModelError(f"layer {name!r}: activation {activation!r} within a convolution is not read")
    if config.get("groups", 1) != 1:
        raise ModelError(f"layer {name!r}: groups {config['groups']!r} is not 1")
    kernel = graph.weight(f"{name}/kernel").transpose(3, 2, 0, 1)
    wanted = [inputs[0], graph.constant(f"{name}/kernel", kernel)]
    if config.get("use_bias", True):
        wanted.append(graph.constant(f"{name}/bias", graph.weight(f"{name}/bias")))
    padding = "SAME_UPPER" if config["padding"] == "same" else "VALID"
    graph.node("Conv", wanted, config, auto_pad=padding, dilations=config["dilation_rate"], strides=config["strides"])


def _activation(graph: _Graph, config: dict[str, Any], inputs: list[str]) -> None:
    if config["activation"] != "relu":
        raise ModelError(f"layer {config['name']!r}: activation {config['activation']!r} is not relu")
    graph.node("Relu", inputs, config)


def _concatenation(graph: _Graph, config: dict[str, Any], inputs: list[str]) -> None:
    if config["axis"] not in (3, -1):
        raise ModelError(f"layer {config['name']!r}: axis {config['axis']} is not that of the channels")
    graph.node("Concat", inputs, config, axis=1)


def _sum(graph: _Graph, config: dict[str, Any], inputs: list[str]) -> None:
    graph.node("Sum", inputs, config)


def _enlargement(graph: _Graph, config: dict[str, Any], inputs: list[str]) -> None:
    if config.get("interpolation", "nearest") != "nearest":
        raise ModelError(f"layer {config['name']!r}: interpolation {config['interpolation']!r} is not nearest")
    scales = graph.constant(f"{config['name']}/scales", np.array([1, 1, *config["size"]], np.float32))
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    graph.node("Resize", [inputs[0], "", scales], config, **how)


_LAYERS = {
    "Conv2D": _convolution,
    "Activation": _activation,
    "Concatenate": _concatenation,
    "Add": _sum,
    "UpSampling2D": _enlargement,
}


def _ends(config: dict[str, Any], model_json: Path) -> tuple[str, str]:
    try:
        [[first, *_]], [[last, *at]] = config["input_layers"], config["output_layers"]
    except (KeyError, ValueError, TypeError):
        raise ModelError(f"{model_json}: wanted a model with one input and one output") from None
    if at != [0, 0]:
        raise ModelError(f"{model_json}: its output is {at} of the layer {last!r}; only [0, 0] is read")
    return first, last


def _read(model_json: Path) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    try:
        document = json.loads(model_json.read_bytes())
        config = document["modelTopology"]["model_config"]["config"]
        groups = document["weightsManifest"]
    except OSError as exc:
        raise ModelError(f"{model_json}: cannot be read: {exc.strerror}") from None
    except (ValueError, KeyError, TypeError) as exc:
        raise ModelError(f"{model_json}: not a layers model of TensorFlow.js ({exc!r})") from None
    weights: dict[str, NDArray[np.float32]] = {}
    for group in groups:
        data = b"".join(_shard(model_json.with_name(path)) for path in group["paths"])
        at = 0
        for entry in group["weights"]:
            if entry["dtype"] != "float32" or "quantization" in entry:
                raise ModelError(f"{model_json}: the weights {entry['name']!r} are not plain float32")
            size = 4 * int(np.prod(entry["shape"], dtype=np.int64))
            if at + size > len(data):
                raise ModelError(f"{model_json}: its weights are cut short at {entry['name']!r}")
            weights[entry["name"]] = np.frombuffer(data, "<f4", size // 4, at).reshape(entry["shape"])
            at += size
    return config, weights


def _shard(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ModelError(f"{path}: cannot be read: {exc.strerror}") from None
