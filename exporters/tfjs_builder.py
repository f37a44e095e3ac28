"""Builds an ONNX graph one TensorFlow tensor at a time: transposes are kept pending, constants are folded.

TensorFlow's convolutions are channels-last and ONNX's are channels-first. A ``Value`` therefore remembers how its
ONNX tensor is laid out, and a transpose is written only where an operator insists on another layout. Graphs that
went from channels-first to channels-last and back (as converters leave them) come out without any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_node_outputs

from tallymill.exporters.tfjs_peephole import simplify

Array = NDArray[Any]
Shape = tuple[int | None, ...]

OPSET = 18
IR_VERSION = 10


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A tensor of the ONNX graph; ``data`` is its value when it is constant."""

    name: str
    elem: int
    shape: Shape
    data: Array | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A TensorFlow tensor: axis i of the ONNX ``tensor`` holds its axis ``order[i]``."""

    tensor: Tensor
    order: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        """Shape as TensorFlow sees it."""
        return tuple(self.tensor.shape[self.order.index(axis)] for axis in range(len(self.order)))

    @property
    def data(self) -> Array | None:
        """The constant as TensorFlow sees it, or None."""
        data = self.tensor.data
        return None if data is None else data.transpose([self.order.index(axis) for axis in range(len(self.order))])


def plain(tensor: Tensor) -> Value:
    """A value whose ONNX tensor has TensorFlow's own layout."""
    return Value(tensor, tuple(range(len(tensor.shape))))


class Builder:
    """Collects nodes and initializers; every name is derived from ``scope``, the tfjs node being converted."""

    def __init__(self) -> None:
        self.scope = ""
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, Array] = {}
        self._names: set[str] = set()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Tensor] = {}
        self._transposed: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def name(self, suffix: str = "") -> str:
        """A name that is not taken yet."""
        stem = f"{self.scope}/{suffix}" if suffix else self.scope
        name, count = stem, 1
        while name in self._names:
            name, count = f"{stem}_{count}", count + 1
        self._names.add(name)
        return name

    def input(self, name: str, dtype: str, shape: Shape) -> Tensor:
        """A graph input."""
        self._names.add(name)
        return Tensor(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    def constant(self, data: Array) -> Tensor:
        """A constant; equal ones share a tensor."""
        data = np.asarray(data, order="C")
        key = (data.dtype.str, data.shape, data.tobytes())
        if key not in self._constants:
            elem = helper.np_dtype_to_tensor_dtype(data.dtype)
            self._constants[key] = Tensor(self.name("constant"), elem, data.shape, data)
        return self._constants[key]

    def ints(self, *values: int) -> Tensor:
        """An int64 vector, as ONNX wants axes, shapes and pads."""
        return self.constant(np.array(values, np.int64))

    def emit(self, op: str, *inputs: Tensor | None, count: int = 1, **attributes: Any) -> list[Tensor]:
        """Write one ONNX node and return its ``count`` outputs; with constant inputs only, compute them instead."""
        names = ["" if tensor is None else tensor.name for tensor in inputs]
        outputs = [self.name(op) for _ in range(count)]
        node = helper.make_node(op, names, outputs, name=outputs[0], **attributes)
        given = [tensor for tensor in inputs if tensor is not None]
        known = {tensor.name: tensor.data for tensor in given if tensor.data is not None}
        if len(known) == len({tensor.name for tensor in given}):
            values = ReferenceEvaluator(node, opsets={"": OPSET}).run(None, known)
            return [self.constant(np.asarray(value)) for value in values]
        self.initializers.update(known)
        self.nodes.append(node)
        return self._infer(node, given, known)

    def one(self, op: str, *inputs: Tensor | None, **attributes: Any) -> Tensor:
        """``emit`` for an operator with a single output."""
        return self.emit(op, *inputs, **attributes)[0]

    def _infer(self, node: onnx.NodeProto, given: Sequence[Tensor], known: dict[str, Array]) -> list[Tensor]:
        types = {tensor.name: helper.make_tensor_type_proto(tensor.elem, tensor.shape) for tensor in given}
        # Shape inference reads small operands only (shapes, axes, pads), so weights need not be copied for it.
        data = {name: numpy_helper.from_array(value, name) for name, value in known.items() if value.size <= 64}
        schema = onnx.defs.get_schema(node.op_type, OPSET)
        found = infer_node_outputs(schema, node, types, data, opset_imports=[helper.make_opsetid("", OPSET)])
        tensors = []
        for name in node.output:
            kind = found[name].tensor_type
            shape = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim)
            tensors.append(Tensor(name, kind.elem_type, shape))
        return tensors

    def take(self, value: Value, order: Sequence[int] | None = None) -> Tensor:
        """The ONNX tensor of a value in a given layout (default: TensorFlow's own), transposed if it must be."""
        wanted = tuple(order) if order is not None else tuple(range(len(value.order)))
        if value.order == wanted:
            return value.tensor
        perm = tuple(value.order.index(axis) for axis in wanted)
        key = (value.tensor.name, perm)
        if key not in self._transposed:
            self._transposed[key] = self.one("Transpose", value.tensor, perm=perm)
        return self._transposed[key]

    def cast(self, tensor: Tensor, elem: int) -> Tensor:
        """The tensor as another element type."""
        return tensor if tensor.elem == elem else self.one("Cast", tensor, to=elem)

    def model(
        self, name: str, inputs: Sequence[Tensor], outputs: Sequence[tuple[Tensor, str]], metadata: dict[str, str]
    ) -> onnx.ModelProto:
        """The finished model, with the initializers that its nodes still use."""
        for tensor, onnx_name in outputs:
            if tensor.data is not None:
                self.initializers[tensor.name] = tensor.data
            self.nodes.append(helper.make_node("Identity", [tensor.name], [onnx_name], name=f"output/{onnx_name}"))
        nodes = simplify(self.nodes, self.initializers)
        used = {source for node in nodes for source in node.input}
        graph = helper.make_graph(
            nodes,
            name,
            [helper.make_tensor_value_info(t.name, t.elem, t.shape) for t in inputs],
            [helper.make_tensor_value_info(onnx_name, t.elem, t.shape) for t, onnx_name in outputs],
            [numpy_helper.from_array(data, key) for key, data in self.initializers.items() if key in used],
        )
        model = helper.make_model(
            graph, producer_name="tallymill", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
        helper.set_model_props(model, metadata)
        onnx.checker.check_model(model)
        return model


FLOAT = int(TensorProto.FLOAT)
INT32 = int(TensorProto.INT32)
INT64 = int(TensorProto.INT64)
BOOL = int(TensorProto.BOOL)
