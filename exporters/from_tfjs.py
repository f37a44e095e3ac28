"""Converts a TensorFlow.js graph model (``model.json`` and its weight shards) to ONNX.

Only the nodes that the asked outputs need are read, so a graph may be cut at any tensor. The result is
deterministic: the same files give the same bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tallymill.errors import ModelError
from tallymill.exporters.recipes.base import GraphInput, GraphOutput
from tallymill.exporters.tfjs_builder import Array, Builder, Value, plain
from tallymill.exporters.tfjs_node import Node
from tallymill.exporters.tfjs_ops import OPS

_STORED = {"float32": np.float32, "int32": np.int32, "bool": np.bool_}
_QUANTISED = {"float16": np.float16, "uint8": np.uint8, "uint16": np.uint16}


def convert(
    model_json: Path,
    *,
    inputs: Sequence[GraphInput],
    outputs: Sequence[GraphOutput],
    rewire: Mapping[str, str] | None = None,
    name: str = "model",
    metadata: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """Convert the part of a tfjs graph between ``inputs`` and ``outputs``.

    Tensors are named as TensorFlow does (``split:1`` is the second output of ``split``); ``rewire`` maps one to the
    tensor used in its place. float32, int32 and bool weights are read as stored, float16 and uint8/uint16 ones are
    dequantised to float32 or int32. Raises ``ModelError`` naming the file when it is missing, cut short or not a
    graph model, and naming node and operator when an operator is not known.
    """
    nodes, manifest = _read(model_json)
    weights = _weights(model_json, manifest)
    builder = Builder()
    values: dict[str, Value] = {}
    tensors = []
    for entry in inputs:
        builder.scope = entry.name
        tensor = builder.input(entry.name, entry.dtype, entry.shape)
        tensors.append(tensor)
        cast = helper.np_dtype_to_tensor_dtype(np.dtype(entry.cast or entry.dtype))
        values[_canonical(entry.at)] = plain(builder.cast(tensor, cast))
    aliases = {_canonical(old): _canonical(new) for old, new in (rewire or {}).items()}
    wanted = [_canonical(output.at) for output in outputs]
    try:
        for node in _order(nodes, wanted, values, aliases):
            _convert_node(builder, node, values, weights, aliases)
    except ModelError as exc:
        raise ModelError(f"{model_json}: {exc.message}", hint=exc.hint) from exc
    named = []
    for tensor_name, output in zip(wanted, outputs, strict=True):
        builder.scope = output.name
        value = _value(values, aliases.get(tensor_name, tensor_name), model_json)
        named.append((builder.take(value, output.axes), output.name))
    return builder.model(name, tensors, named, dict(metadata or {}))


def _canonical(tensor: str) -> str:
    return tensor.removesuffix(":0")


def _node_of(tensor: str) -> str:
    return tensor.rpartition(":")[0] if tensor.rpartition(":")[2].isdigit() and ":" in tensor else tensor


def _value(values: Mapping[str, Value], tensor: str, who: object) -> Value:
    if tensor not in values:
        raise ModelError(f"{who}: the graph has no tensor {tensor!r}")
    return values[tensor]


def _read(model_json: Path) -> tuple[dict[str, Node], list[Any]]:
    try:
        document = json.loads(model_json.read_bytes())
    except (OSError, ValueError) as exc:
        raise ModelError(f"{model_json}: cannot be read as JSON: {exc}") from exc
    try:
        nodes = {
            item["name"]: Node(
                item["name"],
                item["op"],
                tuple(_canonical(source) for source in item.get("input", []) if not source.startswith("^")),
                {key: _attribute(value) for key, value in item.get("attr", {}).items()},
            )
            for item in document["modelTopology"]["node"]
        }
        return nodes, list(document["weightsManifest"])
    except (KeyError, TypeError) as exc:
        hint = "a layers model (Keras JSON) has no graph and cannot be converted this way"
        raise ModelError(f"{model_json}: not a tfjs graph model ({exc!r} is missing)", hint=hint) from exc


def _attribute(value: Any) -> Any:
    """A protobuf attribute in JSON -> a Python value; int64 come as strings, bytes as base64 or as code lists."""
    if "list" in value:
        entries = value["list"]
        filled = next(((kind, items) for kind, items in entries.items() if items), None)
        return [] if filled is None else [_scalar(filled[0], item) for item in filled[1]]
    kind, item = next(iter(value.items()), ("none", None))
    return _scalar(kind, item)


def _scalar(kind: str, item: Any) -> Any:
    if kind == "i":
        return int(item)
    if kind == "s":
        return (bytes(item) if isinstance(item, list) else base64.b64decode(item)).decode("latin-1")
    return item


def _weights(model_json: Path, manifest: Sequence[Any]) -> dict[str, Array]:
    weights: dict[str, Array] = {}
    for group in manifest:
        paths = [model_json.parent / path for path in group["paths"]]
        try:
            data = b"".join(path.read_bytes() for path in paths)
        except OSError as exc:
            raise ModelError(f"{exc.filename}: weights cannot be read: {exc.strerror}") from exc
        shards = ", ".join(str(path) for path in paths)
        offset = 0
        for entry in group["weights"]:
            weights[entry["name"]], offset = _weight(entry, data, offset, shards)
        if offset != len(data):
            raise ModelError(f"{shards}: {len(data)} bytes, but the manifest describes {offset}")
    return weights


def _weight(entry: Any, data: bytes, offset: int, shards: str) -> tuple[Array, int]:
    """One weight at ``offset`` of its group's bytes, dequantised, and the offset after it."""
    quantised = entry.get("quantization")
    stored = _STORED.get(entry["dtype"]) if quantised is None else _QUANTISED.get(quantised["dtype"])
    if stored is None or entry["dtype"] not in _STORED:
        kind = entry["dtype"] if quantised is None else quantised["dtype"]
        raise ModelError(f"{shards}: weight {entry['name']!r} has type {kind!r}, which is not supported")
    count = int(np.prod(entry["shape"], dtype=np.int64))
    end = offset + count * np.dtype(stored).itemsize
    if end > len(data):
        raise ModelError(f"{shards}: truncated: weight {entry['name']!r} ends at byte {end} of {len(data)}")
    values = np.frombuffer(data[offset:end], np.dtype(stored).newbyteorder("<")).reshape(entry["shape"])
    if quantised is not None and quantised["dtype"] != "float16":
        exact = values.astype(np.float64) * quantised["scale"] + quantised["min"]
        values = np.floor(exact + 0.5) if entry["dtype"] == "int32" else exact
    return values.astype(_STORED[entry["dtype"]]), end


def _order(
    nodes: Mapping[str, Node], wanted: Sequence[str], known: Mapping[str, Value], aliases: Mapping[str, str]
) -> list[Node]:
    """The nodes behind ``wanted`` that are not ``known`` yet, each after its inputs (depth first, no recursion)."""
    order: list[Node] = []
    state: dict[str, bool] = {}  # False while its inputs are being visited, True when it is in ``order``
    stack = [aliases.get(tensor, tensor) for tensor in reversed(wanted)]
    while stack:
        tensor = stack[-1]
        name = _node_of(tensor)
        if tensor in known or state.get(name):
            stack.pop()
            continue
        if name not in nodes:
            raise ModelError(f"the graph has no node {name!r}")
        sources = [aliases.get(source, source) for source in nodes[name].inputs]
        missing = [s for s in sources if s not in known and not state.get(_node_of(s))]
        if missing and name in state:  # its inputs were visited once and wait for it
            raise ModelError(f"node {name!r} ({nodes[name].op}): the graph has a loop here; cut it")
        state[name] = False
        if missing:
            stack.extend(reversed(missing))
            continue
        state[name] = True
        order.append(nodes[name])
        stack.pop()
    return order


def _convert_node(
    builder: Builder,
    node: Node,
    values: dict[str, Value],
    weights: Mapping[str, Array],
    aliases: Mapping[str, str],
) -> None:
    builder.scope = node.name
    if node.op == "Const":
        if node.name not in weights:
            raise node.error("the weight manifest does not list this constant")
        values[node.name] = plain(builder.constant(weights[node.name]))
        return
    if node.op not in OPS:
        hint = "cut the graph before it, or add it to exporters/tfjs_ops.py"
        raise ModelError(f"node {node.name!r}: the operator {node.op!r} is not known", hint=hint)
    arguments = [_value(values, aliases.get(source, source), f"node {node.name!r}") for source in node.inputs]
    results = OPS[node.op](builder, node, arguments)
    for index, result in enumerate(results):
        values[node.name if index == 0 else f"{node.name}:{index}"] = result
