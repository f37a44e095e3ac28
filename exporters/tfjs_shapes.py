"""TensorFlow operators that move values without computing any, as ONNX operators."""

# ruff: noqa: ARG001 - every handler has the same signature, whether it needs all of it or not

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tallymill.exporters.tfjs_builder import INT32, INT64, Builder, Value, plain
from tallymill.exporters.tfjs_node import Handler, Node, registrar

SHAPE_OPS: dict[str, Handler] = {}
_op = registrar(SHAPE_OPS)


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
