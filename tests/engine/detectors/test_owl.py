"""What OWL-ViT and OWLv2 do around their models, with models that return what they are told."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors import text as module
from tallymill.engine.detectors.owl import Owl
from tallymill.engine.sessions.base import TensorSpec

NUMBERS = {
    "side": 32,
    "square": False,
    "resample": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
    "template": "a photo of a {}",
    "tokens": 8,
    "start": 90,
    "end": 91,
    "pad": 0,
}


class Text:
    """The embedding of a text is one-hot in the first letter of its last word: a, b or c."""

    inputs = outputs = ()
    device, model = "cpu", Path("text.onnx")

    def __init__(self):
        self.calls = []

    def run(self, inputs):
        self.calls.append({name: value.tolist() for name, value in inputs.items()})
        last = [row[int(mask.sum()) - 2] for row, mask in zip(inputs["tokens"], inputs["mask"], strict=True)]
        return {"embeds": np.eye(3, dtype=np.float32)[last]}


class Vision:
    device, model = "cpu", Path("vision.onnx")
    inputs = (TensorSpec("image", "float32", (None, 3, 32, 32)),)
    outputs = Owl.outputs


@pytest.fixture
def owl(monkeypatch, tmp_path):
    def make(**changes):
        text = Text()
        bundle = SimpleNamespace(
            family="owlvit",
            device="cpu",
            tokenizer=tmp_path / "tokenizer.json",
            session=lambda part, **_: {"vision": Vision(), "text": text}[part],
            read=lambda kind: Bundle.read(plain, kind),
            error=lambda message: ValueError(message),
        )
        numbers = json.loads(json.dumps({**NUMBERS, **changes}))
        plain = Bundle(tmp_path, "m", "owlvit", "onnx", "fp32", {}, numbers, None, "0")
        # Of each word one token: of "a photo of a" whatever, of the category its first letter.
        monkeypatch.setattr(
            module, "load_tokenizer", lambda _file: lambda words: [ord(w[0]) - 97 for w in words.split()]
        )
        return Owl(bundle, "owl"), text

    return make


def outputs(embeds, boxes):
    n = len(embeds)
    return {
        "embeds": np.array([embeds], np.float32),
        "shift": np.zeros((1, n, 1), np.float32),
        "scale": np.full((1, n, 1), 4, np.float32),
        "boxes": np.array([boxes], np.float32),
    }


def test_a_box_of_owlv2_is_a_fraction_of_the_longer_side(owl):
    detector, _ = owl(square=True)
    detector.learn(["ant"])
    found = detector.decode(outputs([[1, 0, 0]], [[0.25, 0.25, 0.5, 0.5]]), 0, (100, 200), np.array([0]), 0.05)
    np.testing.assert_allclose(found.boxes, [[0, 0, 100, 100]])
    assert ((found.boxes[:, :2] + found.boxes[:, 2:]) / 2).tolist() == [[50, 50]]


def test_a_box_of_owlvit_is_a_fraction_of_each_side(owl):
    detector, _ = owl()
    detector.learn(["ant"])
    found = detector.decode(outputs([[1, 0, 0]], [[0.25, 0.25, 0.5, 0.5]]), 0, (100, 200), np.array([0]), 0.05)
    np.testing.assert_allclose(found.boxes, [[0, 0, 100, 50]])
    np.testing.assert_allclose(found.scores, [1 / (1 + np.exp(-4))], rtol=1e-6)


def test_each_image_of_a_batch_is_asked_for_its_own_categories(owl):
    detector, _ = owl()
    detector.learn(["ant", "bee", "cat"])
    two = {name: np.concatenate([value, value]) for name, value in outputs([[0, 1, 0]], [[0.5] * 4]).items()}
    asked = [np.array([0, 1]), np.array([2])]
    found = [detector.decode(two, k, (32, 32), classes, 0.6) for k, classes in enumerate(asked)]
    assert [each.request.tolist() for each in found] == [[1], []]


def test_a_category_is_encoded_once_by_itself_and_texts_of_mixed_lengths_are_masked(owl):
    detector, text = owl()
    detector.learn(["ant", None, "big cat"])
    detector.learn(["big cat", "ant", "bee"])
    assert [len(call["tokens"]) for call in text.calls] == [1, 1, 1]  # whatever else was new
    assert text.calls[0]["tokens"][0] == [90, 0, 15, 14, 0, 0, 91, 0]
    assert [call["mask"][0] for call in text.calls] == [[1] * 7 + [0], [1] * 8, [1] * 7 + [0]]
    assert detector.learned.encoded == 3


def test_a_category_that_does_not_fit_is_told_and_the_others_are_encoded(owl):
    detector, _ = owl()
    faults = detector.learn(["ant", "a big black cat", "bee"])
    assert faults == {1: "the category 'a big black cat' is 10 tokens long; the model reads 8"}
    found = detector.decode(outputs([[0, 1, 0]], [[0.5] * 4]), 0, (32, 32), np.array([2]), 0.6)
    assert len(found.scores) == 1


def test_saturated_means_that_every_patch_gives_a_box(owl):
    detector, _ = owl()
    detector.learn(["ant"])
    full = outputs([[1, 0, 0], [1, 0, 0]], [[0.5] * 4] * 2)
    assert detector.decode(full, 0, (32, 32), np.array([0]), 0.6).saturated
    assert not detector.decode(
        outputs([[1, 0, 0], [-1, 0, 0]], [[0.5] * 4] * 2), 0, (32, 32), np.array([0]), 0.6
    ).saturated


def test_scores_that_are_not_finite_are_an_error(owl):
    detector, _ = owl()
    detector.learn(["ant"])
    with pytest.raises(Exception, match="non-finite"):
        detector.decode(outputs([[np.nan, 0, 0]], [[0.5] * 4]), 0, (32, 32), np.array([0]), 0.05)
