from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from tallymill.engine.sessions.ort import OnnxRuntimeSession
from tallymill.errors import ModelError
from tallymill.exporters.precision import halve, histogram

# Attention with a mask of fill values, a sampled place, and outputs; nodes get names such as model.place/take.
GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
model (float[B, 4, 8] image, bool[B, 4] keep) => (float[B, 4, 8] out, float[B, 4, 1] taken)
{
  [model_backbone_a__linear] hidden = MatMul (image, w0)
  [model_backbone_a__act] active = Gelu (hidden)
  [model_backbone_a__norm] normed = LayerNormalization <axis: int = -1> (active, gamma, beta)
  [model_encoder_b__t] turned = Transpose <perm: ints = [0, 2, 1]> (normed)
  [model_encoder_b__scores] scores = MatMul (normed, turned)
  [model_encoder_b__scale] scaled = Mul (scores, scale)
  [model_encoder_b__one] axes = Constant <value: tensor = int64[1] {1}> ()
  [model_encoder_b__rows] rows = Unsqueeze (keep, axes)
  [model_encoder_b__fill] filled = Where (rows, scaled, lowest)
  [model_encoder_b__soft] soft = Softmax <axis: int = -1> (filled)
  [model_encoder_b__mix] mixed = MatMul (soft, normed)
  [model_encoder_b__sum] summed = Add (mixed, active)
  [model_head__linear] logits = MatMul (summed, w1)
  [model_head__out] out = Sigmoid (logits)
  [model_place__linear] offset = MatMul (summed, w2)
  [model_place__square] where_at = Sigmoid (offset)
  [model_place__scale] pixels = Mul (where_at, side)
  [model_place__floor] floored = Floor (pixels)
  [model_place__cast] places = Cast <to: int = 7> (floored)
  [model_place__take] taken = GatherElements <axis: int = 2> (logits, places)
}
"""
RNG = np.random.default_rng(0)
WEIGHTS = {
    "w0": RNG.standard_normal((8, 8)),
    "w1": RNG.standard_normal((8, 8)),
    "w2": RNG.standard_normal((8, 1)),
    "gamma": np.ones(8),
    "beta": np.zeros(8),
    "scale": np.array(0.35),
    "lowest": np.array(np.finfo(np.float32).min),
    "side": np.array(8 - 1e-3),
}
TYPES = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}


@pytest.fixture
def graph(tmp_path):
    model = onnx.parser.parse_model(GRAPH)
    for node in model.graph.node:
        node.name = node.name.replace("__", "/").replace("_", ".")
    model.graph.initializer.extend(
        numpy_helper.from_array(value.astype(np.float32), name) for name, value in WEIGHTS.items()
    )
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, tmp_path / "image.onnx")
    return tmp_path / "image.onnx"


def halved(graph, family="rf_detr", part="image"):
    halve(graph, graph.with_name("half.onnx"), family, part)
    model = onnx.load(graph.with_name("half.onnx"))
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}
    return model, {node.name: TYPES.get(types[node.output[0]]) for node in model.graph.node}


def test_products_are_halved_and_what_needs_its_bits_is_not(graph):
    model, types = halved(graph)
    halves = {name for name, kind in types.items() if kind == "float16" and not name.endswith("/cast")}
    assert {"model.backbone.a/linear", "model.backbone.a/act", "model.encoder.b/scores"} <= halves
    assert {"model.encoder.b/mix", "model.encoder.b/sum", "model.head/linear", "model.place/linear"} <= halves
    whole = {"model.backbone.a/norm", "model.encoder.b/soft", "model.encoder.b/fill", "model.encoder.b/scale"}
    assert all(types[name] == "float32" for name in whole | {"model.head/out", "model.place/scale"})
    assert [value.name for value in (*model.graph.input, *model.graph.output)] == ["image", "keep", "out", "taken"]
    assert {value.type.tensor_type.elem_type for value in model.graph.output} == {TensorProto.FLOAT}
    assert [node.op_type for node in model.graph.node].count("LayerNormalization") == 1
    stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert stored["w0/half"] == TensorProto.FLOAT16
    assert "w0" not in stored
    assert stored["lowest"] == stored["gamma"] == TensorProto.FLOAT


def test_answers_are_near_and_a_row_without_anything_is_not_nan(graph):
    halved(graph)
    inputs = {"image": RNG.standard_normal((3, 4, 8)).astype(np.float32), "keep": np.ones((3, 4), np.bool_)}
    inputs["keep"][1, 2:] = False
    inputs["keep"][2] = False
    wanted = OnnxRuntimeSession(graph).run(inputs)
    found = OnnxRuntimeSession(graph.with_name("half.onnx")).run(inputs)
    assert found["out"].dtype == np.float32
    np.testing.assert_allclose(found["out"], wanted["out"], atol=0.01)
    assert not np.array_equal(found["out"], wanted["out"])


def test_of_grounding_dino_only_the_backbone_is_halved(graph):
    _, types = halved(graph, "grounding_dino")
    halves = {name for name, kind in types.items() if kind == "float16" and not name.endswith("/cast")}
    assert halves == {"model.backbone.a/linear", "model.backbone.a/act"}


@pytest.mark.parametrize("part", ["image", "image-96x96"])
def test_a_part_of_which_nothing_could_be_halved_is_refused(graph, part):
    # The modules of this graph are none of RAFT's, as after a renaming.
    with pytest.raises(
        ModelError, match=r"image\.onnx: not one product of raft would be computed in float16"
    ) as caught:
        halved(graph, "raft", part)
    assert "--precision fp32" in caught.value.hint
    assert not graph.with_name("half.onnx").exists()


def test_a_part_that_reads_text_stays_as_it_is(graph):
    model, _ = halved(graph, part="text")
    assert model.SerializeToString() == onnx.load(graph).SerializeToString()


def test_the_histogram_tells_dtypes_by_operator(graph):
    halved(graph)
    found = histogram(graph.with_name("half.onnx"))
    assert found["MatMul"] == {"float16": 5}
    assert found["Softmax"] == found["LayerNormalization"] == {"float32": 1}
    assert histogram(graph)["MatMul"] == {"float32": 5}
