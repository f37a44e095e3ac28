"""The importer's other operators against NumPy."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_max_pool(noise, graph, run, padding):
    x = noise(2, 7, 6, 3) - 5
    graph.op("out", "MaxPool", ["x"], padding=padding, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1])
    (out,), _ = run(x, "out")
    rows, columns = ((1, 1), (0, 1)) if padding == "SAME" else ((0, 0), (0, 0))
    padded = np.pad(x, [(0, 0), rows, columns, (0, 0)], constant_values=-np.inf)
    view = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    np.testing.assert_array_equal(out, view.max(axis=(-2, -1)))


@pytest.mark.parametrize("op", ["FusedBatchNorm", "FusedBatchNormV3"])
def test_batch_normalisation(noise, graph, run, op):
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
def test_bilinear_resize(channels_first, noise, graph, run, mode, size, layout):
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


def test_operands_in_different_layouts_and_ranks(noise, graph, run):
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
def test_mean_of_a_convolution(channels_first, noise, graph, run, axes, keep):
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
def test_strided_slice(noise, graph, run, begin, end, strides, masks, expected):
    x = noise(4, 6)
    given = {"begin": begin, "end": end, "strides": strides}
    names = [graph.constant(name, value, np.int32) for name, value in given.items()]
    graph.op("out", "StridedSlice", ["x", *names], **masks)
    (out,), _ = run(x, "out")
    np.testing.assert_array_equal(out, x[expected])


def test_operators_that_move_values(noise, graph, run):
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


def test_the_shape_of_a_varying_size_is_read_when_the_model_runs(noise, graph, run):
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
