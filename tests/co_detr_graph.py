"""A Co-DETR by hand: a graph with the inputs and outputs that ``export co-detr`` wants, and little between them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

QUERIES = 12
BATCH, HEIGHT, WIDTH = "B", 80, 134


def graph(
    file,
    *,
    batch=BATCH,
    height=HEIGHT,
    width=WIDTH,
    classes=80,
    leak=False,
    last="Identity",
    dtype="float32",
    names=None,
    **save,
):
    """An image's mean colour, through two matrices: logits around -3 and boxes inside the input."""
    rng = np.random.default_rng(0)
    boxes = np.concatenate([rng.uniform(-1, 1, (QUERIES, 2)), rng.uniform(-2, -1, (QUERIES, 2))], 1)
    constants = {
        "axes": np.array([0, 2, 3] if leak else [2, 3]),
        "to_logits": rng.standard_normal((3, QUERIES * classes)).astype(np.float32) * 2,
        "level": np.float32(-3),
        "logits_shape": np.array([0 if not leak else -1, QUERIES, classes]),
        "to_boxes": rng.standard_normal((3, QUERIES * 4)).astype(np.float32) * 0.1,
        "middle": boxes.ravel().astype(np.float32),
        "boxes_shape": np.array([-1, QUERIES, 4]),
    }
    name, logits, box = names or ("image", "logits", "boxes")
    nodes = [
        helper.make_node("ReduceMean", [name, "axes"], ["colour"], keepdims=0),
        helper.make_node("MatMul", ["colour", "to_logits"], ["a"]),
        helper.make_node("Add", ["a", "level"], ["b"]),
        helper.make_node("Reshape", ["b", "logits_shape"], ["c"]),
        helper.make_node(last, ["c"], [logits]),
        helper.make_node("MatMul", ["colour", "to_boxes"], ["d"]),
        helper.make_node("Add", ["d", "middle"], ["e"]),
        helper.make_node("Sigmoid", ["e"], ["f"]),
        helper.make_node("Reshape", ["f", "boxes_shape"], [box]),
    ]
    if leak:  # every image of a batch sees the mean of all
        nodes[0] = helper.make_node("ReduceMean", [name, "axes"], ["mean"], keepdims=0)
        nodes.insert(1, helper.make_node("ReduceMean", [name, "own_axes"], ["own"], keepdims=0))
        nodes.insert(2, helper.make_node("Add", ["own", "mean"], ["colour"]))
        constants["own_axes"] = np.array([2, 3])
    kind = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}[dtype]
    if dtype == "float16":
        nodes.insert(0, helper.make_node("Cast", [name], ["cast"], to=TensorProto.FLOAT))
        nodes[1].input[0] = "cast"
    made = helper.make_graph(
        nodes,
        "stand-in",
        [helper.make_tensor_value_info(name, kind, [batch, 3, height, width])],
        [
            helper.make_tensor_value_info(logits, TensorProto.FLOAT, [batch, QUERIES, classes]),
            helper.make_tensor_value_info(box, TensorProto.FLOAT, [batch, QUERIES, 4]),
        ],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, str(file), **save)
    return file
