"""TensorFlow operators as ONNX operators, one function each; ``OPS`` is the table of those that are known."""

# ruff: noqa: ARG001 - every handler has the same signature, whether it needs all of it or not

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tallymill.errors import ModelError
from tallymill.exporters.tfjs_builder import BOOL, FLOAT, INT32, INT64, Array, Builder, Tensor, Value, plain

NCHW = (0, 3, 1, 2)
# TensorFlow's DataType enum, by number or by name as the files have it.
ELEMENTS = {1: FLOAT, 3: INT32, 9: INT64, 10: BOOL, "DT_FLOAT": FLOAT, "DT_INT32": INT32, "DT_INT64": INT64}
ELEMENTS["DT_BOOL"] = BOOL


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the tfjs graph, its attributes decoded to Python values."""

    name: str
    op: str
    inputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)

    def error(self, problem: str) -> ModelError:
        """An error that names this node and its operator."""
        return ModelError(f"node {self.name!r} ({self.op}): {problem}")

    def constant(self, value: Value, what: str) -> Array:
        """The constant behind an operand that ONNX needs to know at conversion."""
        if value.data is None:
            raise self.error(f"{what} is not a constant")
        return value.data


Handler = Callable[[Builder, Node, Sequence[Value]], list[Value]]
OPS: dict[str, Handler] = {}


def _op(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        OPS.update(dict.fromkeys(names, handler))
        return handler

    return register


# --- elementwise


def _unary(onnx_op: str, **attributes: str) -> Handler:
    """``attributes`` maps ONNX attribute names to tfjs ones."""

    def handler(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
        given = {to: float(node.attributes[source]) for to, source in attributes.items() if source in node.attributes}
        return [Value(b.one(onnx_op, args[0].tensor, **given), args[0].order)]

    return handler


OPS["Relu"] = _unary("Relu")
OPS["Sigmoid"] = _unary("Sigmoid")
OPS["Exp"] = _unary("Exp")


@_op("LeakyRelu")
def _leaky_relu(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    alpha = float(node.attributes.get("alpha", 0.2))  # TensorFlow's default; ONNX's is 0.01
    return [Value(b.one("LeakyRelu", args[0].tensor, alpha=alpha), args[0].order)]


@_op("Relu6")
def _relu6(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    low, high = b.constant(np.array(0, np.float32)), b.constant(np.array(6, np.float32))
    return [Value(b.one("Clip", args[0].tensor, low, high), args[0].order)]


def _aligned(b: Builder, args: Sequence[Value]) -> tuple[list[Tensor], tuple[int, ...]]:
    """Operands of a broadcasting operator in one layout: that of the first operand of the highest rank."""
    rank = max(len(value.order) for value in args)
    lead = next((v for v in args if len(v.order) == rank and v.data is None), None)
    order = tuple(range(rank)) if lead is None else lead.order
    tensors = []
    for value in args:
        if value.data is not None:
            data = value.data.reshape((1,) * (rank - value.data.ndim) + value.data.shape).transpose(order)
            while data.ndim and data.shape[0] == 1:  # [1, C, 1, 1] as [C, 1, 1], and scalars as scalars
                data = data[0]
            tensors.append(b.constant(data))
        elif len(value.order) == rank:
            tensors.append(b.take(value, order))
        else:
            missing = rank - len(value.order)
            tensor = b.one("Unsqueeze", b.take(value), b.ints(*range(missing))) if missing else b.take(value)
            tensors.append(b.take(plain(tensor), order))
    return tensors, order


def _with_rank(tensor: Tensor, order: tuple[int, ...]) -> Value:
    # Folding constants drops leading axes of length one; the order then is the plain one.
    return Value(tensor, order) if len(tensor.shape) == len(order) else plain(tensor)


def _binary(onnx_op: str) -> Handler:
    def handler(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
        tensors, order = _aligned(b, args)
        result = tensors[0]
        for other in tensors[1:]:
            result = b.one(onnx_op, result, other)
        return [_with_rank(result, order)]

    return handler


OPS.update({"Add": _binary("Add"), "AddV2": _binary("Add"), "AddN": _binary("Add"), "BiasAdd": _binary("Add")})
OPS.update({"Sub": _binary("Sub"), "Mul": _binary("Mul"), "Equal": _binary("Equal"), "FloorMod": _binary("Mod")})


@_op("FloorDiv")
def _floor_div(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    (left, right), order = _aligned(b, args)
    if left.elem == FLOAT:
        return [_with_rank(b.one("Floor", b.one("Div", left, right)), order)]
    exact = b.one("Sub", left, b.one("Mod", left, right))  # ONNX divides integers towards zero
    return [_with_rank(b.one("Div", exact, right), order)]


@_op("Cast")
def _cast(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    target = node.attributes.get("DstT")
    if target not in ELEMENTS:
        raise node.error(f"cannot cast to type {target!r}")
    return [Value(b.cast(args[0].tensor, ELEMENTS[target]), args[0].order)]


# --- convolution and pooling


def _padding(node: Node, x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Any:
    """ONNX padding attributes for TensorFlow's VALID and SAME on a channels-first tensor."""
    mode = node.attributes.get("padding")
    if mode == "VALID":
        return {"auto_pad": "VALID"}
    if mode != "SAME":
        raise node.error(f"padding {mode!r} is not supported")
    begin, end = [], []
    for size, k, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        if size is None:
            return {"auto_pad": "SAME_UPPER"}
        total = max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        begin.append(total // 2)
        end.append(total - total // 2)
    return {"pads": begin + end}


def _spatial(node: Node, attribute: str) -> list[int]:
    values = node.attributes.get(attribute) or [1, 1, 1, 1]
    if node.attributes.get("data_format", "NHWC") != "NHWC" or len(values) != 4 or values[0] != 1 or values[3] != 1:
        raise node.error(f"{attribute} {values} with layout {node.attributes.get('data_format')} is not supported")
    return [int(value) for value in values[1:3]]


def _convolve(b: Builder, node: Node, x: Value, weights: Array, bias: Array | None, group: int) -> Tensor:
    raw = b.take(x, NCHW)
    strides, dilations = _spatial(node, "strides"), _spatial(node, "dilations")
    kernel = list(weights.shape[2:])
    padding = _padding(node, raw, kernel, strides, dilations)
    operands = [raw, b.constant(weights)] + ([] if bias is None else [b.constant(bias)])
    return b.one("Conv", *operands, kernel_shape=kernel, strides=strides, dilations=dilations, group=group, **padding)


def _fused(b: Builder, node: Node, tensor: Tensor, ops: Sequence[str]) -> Tensor:
    """The activation that follows the bias of a fused convolution."""
    for op in ops:
        if op == "Relu":
            tensor = b.one("Relu", tensor)
        elif op == "Relu6":
            tensor = b.one("Clip", tensor, b.constant(np.array(0, np.float32)), b.constant(np.array(6, np.float32)))
        elif op == "LeakyRelu":
            tensor = b.one("LeakyRelu", tensor, alpha=float(node.attributes.get("leakyrelu_alpha", 0.2)))
        else:
            raise node.error(f"fused operator {op!r} is not supported")
    return tensor


@_op("Conv2D", "_FusedConv2D", "DepthwiseConv2dNative", "FusedDepthwiseConv2dNative")
def _conv(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    weights = node.constant(args[1], "the filter")  # [h, w, in, out], depthwise [h, w, in, multiplier]
    channels = args[0].shape[3]
    if channels is None:
        raise node.error("the number of input channels is not known")
    if "Depthwise" in node.op:
        height, width, _, multiplier = weights.shape
        kernels = weights.transpose(2, 3, 0, 1).reshape(channels * multiplier, 1, height, width)
        group = channels
    else:
        kernels, group = weights.transpose(3, 2, 0, 1), channels // weights.shape[2]
    fused = list(node.attributes.get("fused_ops") or [])
    bias = None
    if fused[:1] == ["BiasAdd"]:
        bias = node.constant(args[2], "the bias")
        fused = fused[1:]
    tensor = _convolve(b, node, args[0], kernels, bias, group)
    return [Value(_fused(b, node, tensor, fused), NCHW)]


@_op("MaxPool")
def _max_pool(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    raw = b.take(args[0], NCHW)
    kernel, strides = _spatial(node, "ksize"), _spatial(node, "strides")
    padding = _padding(node, raw, kernel, strides, [1, 1])
    return [Value(b.one("MaxPool", raw, kernel_shape=kernel, strides=strides, **padding), NCHW)]


@_op("FusedBatchNorm", "FusedBatchNormV3")
def _batch_norm(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    _spatial(node, "strides")  # has none: checks the layout
    if node.attributes.get("is_training", True):
        raise node.error("batch normalisation in training mode")
    parameters = [b.take(value) for value in args[1:5]]
    epsilon = float(node.attributes.get("epsilon", 1e-4))
    return [Value(b.one("BatchNormalization", b.take(args[0], NCHW), *parameters, epsilon=epsilon), NCHW)]


@_op("ResizeBilinear")
def _resize(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    size = node.constant(args[1], "the size").astype(np.int64)
    if node.attributes.get("align_corners"):
        mode = "align_corners"
    else:
        mode = "half_pixel" if node.attributes.get("half_pixel_centers") else "asymmetric"
    order = args[0].order
    raw_axes = sorted((order.index(1), order.index(2)))
    sizes = b.ints(*(int(size[order[axis] - 1]) for axis in raw_axes))
    return [
        Value(
            b.one(
                "Resize",
                args[0].tensor,
                None,
                None,
                sizes,
                axes=raw_axes,
                mode="linear",
                coordinate_transformation_mode=mode,
            ),
            order,
        )
    ]


@_op("Mean")
def _mean(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    rank = len(args[0].order)
    axes = sorted(int(axis) % rank for axis in node.constant(args[1], "the axes").ravel())
    keep = bool(node.attributes.get("keep_dims"))
    if keep and rank == 4 and axes == [1, 2] and args[0].order == NCHW:
        return [Value(b.one("GlobalAveragePool", args[0].tensor), NCHW)]
    tensor = b.one("ReduceMean", b.take(args[0]), b.ints(*axes), keepdims=int(keep))
    return [plain(tensor)]


# --- shapes


@_op("Identity")
def _identity(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    return [args[0]]


@_op("Transpose")
def _transpose(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    perm = [int(axis) for axis in node.constant(args[1], "the permutation")]
    return [Value(args[0].tensor, tuple(perm.index(axis) for axis in args[0].order))]


@_op("Pad", "PadV2")
def _pad(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    pads = node.constant(args[1], "the padding")
    order = args[0].order
    flat = [int(pads[axis, side]) for side in (0, 1) for axis in order]
    if not any(flat):
        return [args[0]]
    fill = node.constant(args[2], "the fill value") if len(args) > 2 else np.array(0, np.float32)
    return [Value(b.one("Pad", args[0].tensor, b.ints(*flat), b.constant(fill.reshape(()))), order)]


@_op("ConcatV2")
def _concat(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    values = args[:-1]
    order = next((value.order for value in values if value.data is None), values[0].order)
    axis = int(node.constant(args[-1], "the axis")) % len(order)
    tensors = [b.take(value, order) for value in values]
    return [Value(b.one("Concat", *tensors, axis=order.index(axis)), order)]


@_op("SplitV")
def _split(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    order = args[0].order
    axis = int(node.constant(args[2], "the axis")) % len(order)
    sizes = [int(size) for size in node.constant(args[1], "the sizes")]
    parts = b.emit("Split", args[0].tensor, b.ints(*sizes), count=len(sizes), axis=order.index(axis))
    return [Value(part, order) for part in parts]


@_op("Reshape")
def _reshape(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    shape = b.cast(b.take(args[1]), INT64)
    return [plain(b.one("Reshape", b.take(args[0]), shape))]


@_op("ExpandDims")
def _expand_dims(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    axis = int(node.constant(args[1], "the axis"))
    return [plain(b.one("Unsqueeze", b.take(args[0]), b.ints(axis)))]


@_op("Squeeze")
def _squeeze(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    axes = node.attributes.get("squeeze_dims") or [i for i, size in enumerate(args[0].shape) if size == 1]
    return [plain(b.one("Squeeze", b.take(args[0]), b.ints(*(int(axis) for axis in axes))))]


@_op("Pack")
def _pack(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    axis = int(node.attributes.get("axis", 0))
    parts = [b.one("Unsqueeze", b.take(value), b.ints(axis)) for value in args]
    return [plain(b.one("Concat", *parts, axis=axis))]


@_op("Unpack")
def _unpack(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    axis, count = int(node.attributes.get("axis", 0)), int(node.attributes["num"])
    parts = b.emit("Split", b.take(args[0]), count=count, axis=axis, num_outputs=count)
    return [plain(b.one("Squeeze", part, b.ints(axis))) for part in parts]


@_op("Shape")
def _shape(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    sizes = args[0].shape
    if None not in sizes:
        return [plain(b.constant(np.array(sizes, np.int32)))]
    return [plain(b.cast(b.one("Shape", b.take(args[0])), INT32))]


@_op("Tile")
def _tile(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    return [plain(b.one("Tile", b.take(args[0]), b.cast(b.take(args[1]), INT64)))]


@_op("Slice")
def _slice(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    begin = [int(i) for i in node.constant(args[1], "begin")]
    size = [int(i) for i in node.constant(args[2], "size")]
    whole = np.iinfo(np.int64).max
    end = [whole if n < 0 else start + n for start, n in zip(begin, size, strict=True)]
    axes = b.ints(*range(len(begin)))
    return [plain(b.one("Slice", b.take(args[0]), b.ints(*begin), b.ints(*end), axes))]


@_op("StridedSlice")
def _strided_slice(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    if int(node.attributes.get("ellipsis_mask", 0)) or int(node.attributes.get("new_axis_mask", 0)):
        raise node.error("ellipsis and new axes are not supported")
    begin, end, step = (
        [int(i) for i in node.constant(value, what)]
        for value, what in zip(args[1:4], ("begin", "end", "strides"), strict=True)
    )
    masks = {key: int(node.attributes.get(f"{key}_mask", 0)) for key in ("begin", "end", "shrink_axis")}
    far = np.iinfo(np.int64).max
    dropped = []
    for axis in range(len(begin)):
        bit = 1 << axis
        if masks["shrink_axis"] & bit:
            # One element, whatever end and stride say; -1 is the last one.
            end[axis], step[axis] = (begin[axis] + 1) or far, 1
            dropped.append(axis)
            continue
        if masks["begin"] & bit:
            begin[axis] = 0 if step[axis] > 0 else far
        if masks["end"] & bit:
            end[axis] = far if step[axis] > 0 else -far
    axes = b.ints(*range(len(begin)))
    tensor = b.one("Slice", b.take(args[0]), b.ints(*begin), b.ints(*end), axes, b.ints(*step))
    return [plain(b.one("Squeeze", tensor, b.ints(*dropped)) if dropped else tensor)]


@_op("GatherV2")
def _gather(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    if int(node.attributes.get("batch_dims", 0)):
        raise node.error("batch dimensions are not supported")
    axis = int(node.constant(args[2], "the axis"))
    return [plain(b.one("Gather", b.take(args[0]), b.take(args[1]), axis=axis))]


@_op("TopKV2")
def _top_k(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    k = b.ints(int(node.constant(args[1], "k")))
    values, indices = b.emit("TopK", b.take(args[0]), k, count=2, sorted=int(node.attributes.get("sorted", True)))
    return [plain(values), plain(b.cast(indices, INT32))]


@_op("SparseToDense")
def _sparse_to_dense(b: Builder, node: Node, args: Sequence[Value]) -> list[Value]:
    indices, shape, values, default = (
        node.constant(value, what) for value, what in zip(args, ("indices", "shape", "values", "default"), strict=True)
    )
    dense = np.full([int(size) for size in shape], default, values.dtype)
    dense[tuple(np.atleast_2d(indices).astype(np.int64).T) if indices.ndim == 2 else (indices,)] = values
    return [plain(b.constant(dense))]
