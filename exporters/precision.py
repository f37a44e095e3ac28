"""Mixed precision, decided in the ONNX graph: TensorRT 11 is strongly typed and computes as the graph says.

Matrix products, convolutions and what lies between them are computed in float16, activations (GELU, sigmoid, tanh)
among it. Normalisation, softmax, reductions, powers, logarithms and angles stay in float32, and so does what leads from
the last matrix product to a place, a choice or an output: the half has 11 bits, and a coordinate among 1333 pixels
needs more. Inputs and outputs keep their types.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tallymill.errors import ModelError

# What may be computed in float16: where products are summed, what is done to one element, and what only moves values.
_SUMMED = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
_HALVES = _SUMMED | {
    *("Abs", "Add", "Clip", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min", "Mul", "Neg", "PRelu"),
    *("Relu", "Sigmoid", "Sub", "Tanh", "Where"),
    *("AveragePool", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity"),
    *("MaxPool", "Pad", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
}
# What needs its input as exact as it can be had: it makes places, choices or angles of it.
_EXACT = {
    *("Acos", "ArgMax", "ArgMin", "Ceil", "Cos", "Equal", "Exp", "Floor", "Greater", "GreaterOrEqual", "Less"),
    *("LessOrEqual", "Log", "Mod", "NonZero", "Pow", "Round", "Sin", "Softmax", "LogSoftmax", "TopK"),
}
_STOPS = _SUMMED | {"LayerNormalization", "GroupNormalization", "InstanceNormalization", "BatchNormalization"}
_LARGEST, _LEAST = 65504.0, 6.2e-5  # of a half, and the least that keeps its bits

# Of these families, only what is under such modules is halved, here and in programs of torch; of others all that may
# be. The parts that are named here are run once a category and stay as they are.
ONLY = {
    "grounding_dino": re.compile(r"(^|[./])model\.backbone\."),
    # A flow is a sum of twelve updates, looked up at places that each of them moves.
    "raft": re.compile(r"(^|[./])model\.(feature|context)_encoder\."),
}
WHOLE_PARTS = ("text",)
_SUFFIX = "/half"


def halve(source: Path, target: Path, family: str, part: str) -> None:
    """Write ``source``, a graph of float32, as ``target``, which computes in float16 what bears it.

    Raises ``ModelError`` when that is no product at all, of a part that is not meant to stay as it is.
    """
    import onnx

    model = onnx.load(source)
    if part not in WHOLE_PARTS:
        halving = _Halving(model, _types(source, model), ONLY.get(family))
        if not halving.products:
            raise ModelError(
                f"{source.name}: not one product of {family} would be computed in float16: have modules new names?",
                hint="--precision fp32, or the version of the package that the model was exported with before",
            )
        halving.apply()
    # Above 2 GiB a graph cannot hold its weights.
    large = sum(tensor.ByteSize() for tensor in model.graph.initializer) > 1_900_000_000
    data = target.with_suffix(".onnx.data").name
    onnx.save(model, target, save_as_external_data=large, location=data if large else None)


def histogram(graph: Path) -> dict[str, dict[str, int]]:
    """Operator -> dtype of its (first) output -> how many nodes. ``unknown`` is what ONNX cannot infer."""
    import onnx

    model = onnx.load(graph, load_external_data=False)
    types = _types(graph, model)
    found: dict[str, Counter[str]] = {}
    for node in model.graph.node:
        kind = types.get(node.output[0], 0)
        name = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)).name if kind else "unknown"
        found.setdefault(node.op_type, Counter())[name] += 1
    return {kind: dict(sorted(found[kind].items())) for kind in sorted(found)}


def _types(file: Path, model: Any) -> dict[str, int]:
    """Element types of all tensors."""
    import onnx

    light = onnx.load(file, load_external_data=False)
    inferred = onnx.shape_inference.infer_shapes(light).graph
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        types[value.name] = value.type.tensor_type.elem_type
    return types


class _Halving:
    """One graph, in which every tensor of float32 may be there as it is, as a half, or as both."""

    def __init__(self, model: Any, types: Mapping[str, int], only: re.Pattern[str] | None) -> None:
        from onnx import TensorProto, numpy_helper

        self._graph = model.graph
        self._floats = {name for name, kind in types.items() if kind == TensorProto.FLOAT}
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._array: Callable[[Any], Any] = numpy_helper.to_array
        self._producers = {name: node for node in model.graph.node for name in node.output}
        exact = self._exact_nodes()
        self._halved = {
            node.output[0]
            for node in model.graph.node
            if node.op_type in _HALVES
            and node.output[0] not in exact
            and node.output[0] in self._floats
            and (only is None or only.search(node.name))
            and all(self._fits(name) for name in node.input)
        }

    @property
    def products(self) -> int:
        """How many matrix products and convolutions become halves."""
        return sum(node.op_type in _SUMMED and node.output[0] in self._halved for node in self._graph.node)

    def apply(self) -> None:
        """Rewrite the graph."""
        from onnx import TensorProto

        nodes: list[Any] = []
        native: dict[str, str] = {}  # tensors whose maker gives halves
        there = {*self._constants, *(value.name for value in self._graph.input)}
        weights: dict[str, Any] = {}

        def as_half(name: str) -> str:
            half = name + _SUFFIX
            if half not in there:
                there.add(half)
                if name in self._constants:
                    weights[half] = self._half_of(name)
                else:
                    nodes.append(_cast(name, half, TensorProto.FLOAT16))
            return half

        def as_float(name: str) -> str:
            if name in native and name not in there:
                there.add(name)
                nodes.append(_cast(native[name], name, TensorProto.FLOAT))
            return name

        for node in self._graph.node:
            if node.output[0] in self._halved:
                node.input[:] = [as_half(name) if name in self._floats else name for name in node.input]
                for place, name in enumerate(node.output):
                    if name in self._floats:
                        native[name] = node.output[place] = name + _SUFFIX
            else:
                for name in (*node.input, *_captured(node)):
                    as_float(name)
            there.update(node.output)
            nodes.append(node)
        for value in self._graph.output:
            as_float(value.name)
        self._replace(nodes, weights, there)

    def _replace(self, nodes: list[Any], weights: Mapping[str, Any], there: set[str]) -> None:
        del self._graph.node[:]
        self._graph.node.extend(nodes)
        used = {name for node in nodes for name in (*node.input, *_captured(node))}
        kept = [tensor for tensor in self._graph.initializer if tensor.name in used]
        del self._graph.initializer[:]
        self._graph.initializer.extend([*kept, *weights.values()])
        known = [value for value in self._graph.value_info if value.name in there]
        del self._graph.value_info[:]
        self._graph.value_info.extend(known)

    def _exact_nodes(self) -> set[str]:
        """First outputs of the nodes between a matrix product or a normalisation and what needs to be exact."""
        from onnx import TensorProto

        seeds = [value.name for value in self._graph.output]
        for node in self._graph.node:
            to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), None)
            if node.op_type in _EXACT or (node.op_type == "Cast" and to not in (TensorProto.FLOAT, None)):
                seeds += node.input
        found: set[str] = set()
        while seeds:
            node = self._producers.get(seeds.pop())
            if node is None or node.op_type in _STOPS or node.output[0] in found:
                continue
            found.add(node.output[0])
            seeds += [name for name in node.input if name in self._floats]
        return found

    def _fits(self, name: str) -> bool:
        """Whether a constant of this name can be a half: no fill value, no tiny term that a sum shall be kept off."""
        if name not in self._constants or name not in self._floats:
            return True
        values = np.abs(self._array(self._constants[name]))
        finite = values[np.isfinite(values)]
        if finite.size and finite.max() > _LARGEST:
            return False
        return not (finite.size == 1 and 0 < finite.max() < _LEAST)

    def _half_of(self, name: str) -> Any:
        from onnx import numpy_helper

        return numpy_helper.from_array(self._array(self._constants[name]).astype(np.float16), name + _SUFFIX)


def _cast(name: str, to: str, kind: int) -> Any:
    from onnx import helper

    return helper.make_node("Cast", [name], [to], name=f"{to}/cast", to=kind)


def _captured(node: Any) -> Iterator[str]:
    """Names that the subgraphs of a node read."""
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from inner.input
            yield from _captured(inner)
