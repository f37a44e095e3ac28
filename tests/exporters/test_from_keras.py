from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tallymill.engine.sessions.ort import OnnxRuntimeSession
from tallymill.engine.upscaling.conv2x import Conv2x
from tallymill.errors import ModelError
from tallymill.exporters import hub
from tallymill.exporters.from_keras import convert

GOLDENS = Path(__file__).parents[1] / "goldens"


def layer(kind, name, inputs, **config):
    nodes = [[[source, 0, 0, {}] for source in inputs]] if inputs else []
    return {"class_name": kind, "name": name, "config": {"name": name, **config}, "inbound_nodes": nodes}


def convolution(name, source, size, **config):
    config = {"padding": "same", "dilation_rate": [1, 1], "strides": [1, 1], "activation": "linear", **config}
    return layer("Conv2D", name, [source], kernel_size=[size, size], **config)


def shared(name, *sources):
    """A rectifier that is called once for each of its sources."""
    calls = [[[source, 0, 0, {}]] for source in sources]
    return {**layer("Activation", name, [], activation="relu"), "inbound_nodes": calls}


def taking(name, *inputs):
    """A sum of named outputs of calls."""
    return {**layer("Add", name, []), "inbound_nodes": [[[*each, {}] for each in inputs]]}


LAYERS = [
    layer("InputLayer", "in", [], batch_input_shape=[None, None, None, 3]),
    convolution("a", "in", 3),
    layer("Activation", "r", ["a"], activation="relu"),
    layer("Concatenate", "c", ["in", "r"], axis=3),
    convolution("b", "c", 1, padding="valid"),
    layer("Add", "s", ["b", "in"]),
    layer("UpSampling2D", "u", ["s"], size=[2, 2], interpolation="nearest", data_format="channels_last"),
]


def weights_of(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"a/kernel": (3, 3, 3, 4), "a/bias": (4,), "b/kernel": (1, 1, 7, 3), "b/bias": (3,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write(folder, layers, weights, last="u", cut=0):
    data = b"".join(value.tobytes() for value in weights.values())
    (folder / "weights.bin").write_bytes(data[: len(data) - cut])
    entries = [{"name": name, "shape": list(value.shape), "dtype": "float32"} for name, value in weights.items()]
    config = {"layers": layers, "input_layers": [["in", 0, 0]], "output_layers": [[last, 0, 0]]}
    document = {
        "modelTopology": {"model_config": {"class_name": "Model", "config": config}},
        "weightsManifest": [{"paths": ["weights.bin"], "weights": entries}],
    }
    path = folder / "model.json"
    path.write_text(json.dumps(document))
    return path


def expected(image, weights):
    """The same layers, one pixel at a time: image float32 [H, W, 3]."""
    height, width, _ = image.shape
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    a = np.stack(
        [
            [np.einsum("ijc,ijco->o", padded[y : y + 3, x : x + 3], weights["a/kernel"]) for x in range(width)]
            for y in range(height)
        ]
    )
    joined = np.concatenate([image, np.maximum(a + weights["a/bias"], 0)], axis=2)
    return (joined @ weights["b/kernel"][0, 0] + weights["b/bias"] + image).repeat(2, 0).repeat(2, 1)


def test_a_small_network_is_its_layers(tmp_path):
    weights = weights_of()
    model = convert(write(tmp_path, LAYERS, weights), input_name="image", output_name="enlarged")
    file = tmp_path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    image = np.random.default_rng(1).normal(size=(5, 4, 3)).astype(np.float32)
    found = OnnxRuntimeSession(file).run({"image": np.moveaxis(image, 2, 0)[None]})["enlarged"][0]
    np.testing.assert_allclose(np.moveaxis(found, 0, 2), expected(image, weights), rtol=1e-4, atol=1e-4)


def test_the_same_files_give_the_same_bytes(tmp_path):
    path = write(tmp_path, LAYERS, weights_of())
    one, two = (
        convert(path, input_name="image", output_name="out").SerializeToString(deterministic=True) for _ in "12"
    )
    assert one == two


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([*LAYERS[:-1], layer("LSTM", "u", ["s"])], "LSTM is not one of"),
        ([*LAYERS[:-1], layer("Activation", "u", ["s"], activation="tanh")], "'tanh' is not relu"),
        ([*LAYERS[:-1], layer("UpSampling2D", "u", ["s"], size=[2, 2], interpolation="bilinear")], "not nearest"),
        ([*LAYERS[:-1], layer("Concatenate", "u", ["s", "in"], axis=1)], "axis 1"),
        ([*LAYERS[:-1], convolution("u", "s", 1)], "'u/kernel' are missing"),
        ([*LAYERS[:-1], convolution("u", "s", 1, activation="relu")], "within a convolution"),
        ([*LAYERS[:-1], layer("UpSampling2D", "u", ["s"])], "'u' is not as Keras writes it"),
        ([*LAYERS[:4], convolution("b", "c", 1, groups=7), *LAYERS[5:]], "layer 'b': groups 7 is not 1"),
        ([*LAYERS[:2], shared("r", "a", "in"), *LAYERS[3:]], "layer 'r': is called 2 times"),
        ([*LAYERS[:2], shared("r"), *LAYERS[3:]], "layer 'r': is called 0 times"),
        ([*LAYERS[:5], taking("s", ["b", 0, 0], ["in", 1, 0]), LAYERS[6]], "'s': takes output 0 of call 1 of 'in'"),
        ([*LAYERS[:5], taking("s", ["b", 0, 1], ["in", 0, 0]), LAYERS[6]], "'s': takes output 1 of call 0 of 'b'"),
    ],
)
def test_what_is_not_read_is_named(tmp_path, layers, message):
    with pytest.raises(ModelError, match=message):
        convert(write(tmp_path, layers, weights_of()), input_name="image", output_name="enlarged")


def test_an_output_of_another_call_is_refused(tmp_path):
    path = write(tmp_path, LAYERS, weights_of())
    path.write_text(path.read_text().replace('[["u", 0, 0]]', '[["u", 1, 0]]'))
    with pytest.raises(ModelError, match=r"its output is \[1, 0\] of the layer 'u'"):
        convert(path, input_name="image", output_name="enlarged")


def test_files_that_are_no_such_model(tmp_path):
    with pytest.raises(ModelError, match="cut short at 'b/bias'"):
        convert(write(tmp_path, LAYERS, weights_of(), cut=1), input_name="image", output_name="out")
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"weights\.bin: cannot be read"):
        convert(tmp_path / "model.json", input_name="image", output_name="out")
    (tmp_path / "model.json").write_text('{"modelTopology": {}}')
    with pytest.raises(ModelError, match="not a layers model"):
        convert(tmp_path / "model.json", input_name="image", output_name="out")


@pytest.mark.models
def test_the_upscaler_gives_its_own_sample():
    [path] = hub.get("upscaler-2x")
    image, wanted = (np.array(Image.open(GOLDENS / f"upscaler_{name}.png")) for name in ("image", "enlarged"))
    found = Conv2x(OnnxRuntimeSession(path)).upscale(image)
    assert np.abs(found.astype(int) - wanted).max() <= 1
