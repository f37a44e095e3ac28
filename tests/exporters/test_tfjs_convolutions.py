"""The importer's convolutions and what it makes of the operators around them."""

from __future__ import annotations

import numpy as np
import pytest

ONES = [1, 1, 1, 1]


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


@pytest.mark.parametrize("op", ["Conv2D", "_FusedConv2D", "DepthwiseConv2dNative", "FusedDepthwiseConv2dNative"])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_convolutions(noise, graph, run, op, stride, dilation, padding):
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


def test_padding_before_a_convolution_becomes_its_own(channels_first, noise, graph, run):
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
def test_padding_of_channels_or_batch_stays(channels_first, noise, graph, run, pads):
    x = noise(1, 5, 6, 3)
    padded = np.pad(x, pads)
    w = noise(3, 3, padded.shape[3], 4, seed=1)
    graph.constant("w", w)
    graph.op("pad", "Pad", [channels_first(graph, 3), graph.constant("pads", pads, np.int32)])
    graph.op("out", "Conv2D", ["pad", "w"], padding="VALID", strides=ONES)
    (out,), ops = run(x, "out")
    assert ops["Pad"] == 1
    np.testing.assert_allclose(out, convolve(padded, w, 1, 1, same=False), rtol=0, atol=1e-5)


def test_padding_with_another_value_stays(channels_first, noise, graph, run):
    x, w = noise(1, 5, 6, 3), noise(3, 3, 3, 4, seed=1)
    graph.constant("w", w)
    pads = graph.constant("pads", [[0, 0], [1, 1], [1, 1], [0, 0]], np.int32)
    graph.op("pad", "PadV2", [channels_first(graph, 3), pads, graph.constant("fill", 2.5)])
    graph.op("out", "Conv2D", ["pad", "w"], padding="VALID", strides=ONES)
    (out,), ops = run(x, "out")
    assert ops["Pad"] == 1
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], constant_values=2.5)
    np.testing.assert_allclose(out, convolve(padded, w, 1, 1, same=False), rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", [1 / 6, float(np.float16(1 / 6)), 0.5])
def test_hard_swish_after_a_convolution_is_fused(hard_swish, noise, graph, run, scale):
    _, expected = hard_swish(graph, scale)
    (out,), ops = run(noise(2, 5, 5, 3) * 4, "out")
    assert ops["HardSigmoid"] == 1
    assert ops["Clip"] == 0
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_hard_swish_is_left_alone_when_its_parts_are_used_elsewhere(hard_swish, noise, graph, run):
    y, expected = hard_swish(graph, 0.5)
    graph.op("also", "Sub", ["conv", graph.constant("one", 1.0)])
    (out, also), ops = run(noise(2, 5, 5, 3) * 4, "out", "also")
    assert ops["HardSigmoid"] == 0
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(also, y - 1, rtol=1e-5, atol=1e-5)


def test_what_only_looks_like_hard_swish_is_left_alone(hard_swish, noise, graph, run):
    _, expected = hard_swish(graph, 0.5, shift=2.0)
    (out,), ops = run(noise(2, 5, 5, 3) * 4, "out")
    assert ops["HardSigmoid"] == 0
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_transposes_around_a_convolution_cancel(noise, graph, run):
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
