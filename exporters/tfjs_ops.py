"""TensorFlow operators as ONNX operators, one function each; ``OPS`` is the table of those that are known."""

# ruff: noqa: ARG001 - every handler has the same signature, whether it needs all of it or not

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tallymill.exporters.tfjs_builder import BOOL, FLOAT, INT32, INT64, Array, Builder, Tensor, Value, plain
from tallymill.exporters.tfjs_node import Handler, Node, registrar
from tallymill.exporters.tfjs_shapes import SHAPE_OPS

NCHW = (0, 3, 1, 2)
# TensorFlow's DataType enum, by number or by name as the files have it.
ELEMENTS: dict[int | str, int] = {1: FLOAT, 3: INT32, 9: INT64, 10: BOOL}
ELEMENTS |= {"DT_FLOAT": FLOAT, "DT_INT32": INT32, "DT_INT64": INT64, "DT_BOOL": BOOL}

OPS: dict[str, Handler] = dict(SHAPE_OPS)
_op = registrar(OPS)

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
        extent = (k - 1) * dilation + 1
        if stride == 1:
            total = extent - 1
        elif size is not None:
            total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        elif dilation == 1:
            return {"auto_pad": "SAME_UPPER"}
        else:
            raise node.error("stride and dilation together need an input of known size")
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
