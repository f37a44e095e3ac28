"""What Grounding DINO does around its models, with models that return what they are told."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors import text as module
from tallymill.engine.detectors.grounding_dino import GroundingDino
from tallymill.errors import ModelError

STOP = 1012
NUMBERS = {
    "shortest": 8,
    "longest": 16,
    "buckets": [[8, 8], [8, 16], [16, 8]],
    "resample": "bilinear",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
    "template": "a {}",
    "tokens": 12,
    "phrase": 10,
    "start": 101,
    "end": 102,
    "stop": STOP,
    "closing": [101, 102, STOP, 1029],
    "queries": 3,
}


class Text:
    """Every token is encoded as its own number."""

    def __init__(self):
        self.calls = []

    def run(self, inputs):
        self.calls.append({name: value.tolist() for name, value in inputs.items()})
        return {"text": inputs["tokens"][..., None].astype(np.float32)}


class Image:
    """Logits are the numbers of the tokens, boxes the middle of the image."""

    device, model = "cpu", Path("image.onnx")
    inputs, outputs = GroundingDino.inputs, GroundingDino.outputs

    def __init__(self, part):
        self.part, self.calls = part, []

    def run(self, inputs):
        self.calls.append(inputs)
        n = len(inputs["image"])
        logits = np.repeat(inputs["text"][..., 0][:, None], NUMBERS["queries"], 1) / 100
        boxes = np.tile(np.array([0.5, 0.5, 0.5, 0.25], np.float32), (n, NUMBERS["queries"], 1))
        return {"logits": logits, "boxes": boxes}


def letters(text):
    """Of each word one token, a = 1; a stop is one too."""
    return [STOP if word == "." else ord(word[0]) - 96 for word in text.replace(".", " . ").split()]


@pytest.fixture
def made(monkeypatch, tmp_path):
    def make(**changes):
        opened = {}
        plain = Bundle(tmp_path, "m", "grounding_dino", "onnx", "fp32", {}, {**NUMBERS, **changes}, None, "0")
        bundle = SimpleNamespace(
            device="cpu",
            family="grounding_dino",
            tokenizer=tmp_path / "tokenizer.json",
            session=lambda part, **_: opened.setdefault(part, Text() if part == "text" else Image(part)),
            read=lambda kind: Bundle.read(plain, kind),
        )
        monkeypatch.setattr(module, "load_tokenizer", lambda _file: letters)
        return GroundingDino(bundle, "g"), opened

    return make


def picture(height, width):
    return np.full((height, width, 3), 255, np.uint8)


@pytest.mark.parametrize(
    ("size", "bucket", "within"),
    [
        ((40, 40), (8, 8), (8, 8)),
        ((40, 60), (8, 16), (8, 12)),
        ((300, 100), (16, 8), (16, 5)),
        ((8, 8), (8, 8), (8, 8)),
    ],
)
def test_an_image_is_resized_by_the_rule_and_put_into_the_smallest_graph_that_holds_it(made, size, bucket, within):
    prepared = made()[0].preprocess(picture(*size))
    assert prepared["image"].shape == (3, *bucket)
    assert prepared["image_mask"].shape == bucket
    inside = np.zeros(bucket, bool)
    inside[: within[0], : within[1]] = True
    np.testing.assert_array_equal(prepared["image_mask"], inside)
    np.testing.assert_array_equal(prepared["image"], np.broadcast_to(inside, (3, *bucket)))  # white is 1, padding 0


def test_an_image_that_no_graph_holds_is_an_error_that_names_the_sizes(made):
    detector, _ = made(buckets=[[8, 8], [8, 10]])
    with pytest.raises(ModelError, match=r"resized to 8 x 12 fits none of the sizes exported: 8x8, 8x10"):
        detector.preprocess(picture(40, 60))


def test_graphs_are_opened_when_an_image_needs_them(made):
    detector, opened = made()
    assert set(opened) == {"image-8x8", "text"}
    detector.learn(["cat"])
    inputs = {name: value[None] for name, value in detector.preprocess(picture(40, 60)).items()}
    detector.run(inputs, [np.array([0])])
    assert set(opened) == {"image-8x8", "image-8x16", "text"}
    assert len(opened["image-8x16"].calls) == 1


def test_a_category_is_read_by_itself_in_lower_case_and_ends_with_a_stop(made):
    detector, opened = made()
    assert [call["tokens"] for call in opened["text"].calls] == [[[101]], [[102]]]
    detector.learn([" Cat", "st. dog", " Cat"])
    detector.learn(["dog", " Cat"])
    calls = opened["text"].calls[2:]
    assert [call["tokens"] for call in calls] == [[[1, 3, STOP]], [[1, 19, STOP, 4, STOP]], [[1, 4, STOP]]]
    assert calls[1]["positions"] == [[0, 1, 2, 0, 1]]
    assert [sum(row) for row in calls[1]["attention"][0]] == [3, 3, 3, 2, 2]


def test_what_a_text_cannot_hold_is_told_by_place(made):
    faults = made()[0].learn(["cat", "b c d e f g h i j", None, " . ", "b c d e f g h i"])
    assert list(faults) == [1, 2, 3]
    assert faults[1] == "the category 'b c d e f g h i j' has 11 tokens with its prompt; the model reads 10"
    assert faults[3] == "the category ' . ' has no words for the model to read"


def test_classes_are_asked_over_as_few_texts_as_hold_them_in_order(made):
    detector, _ = made()
    detector.learn(["cat", "wet dog", "b c d e f g h i", "emu"])
    assert [g.tolist() for g in detector.split(np.array([3, 1, 0]))] == [[0, 1, 2]]
    assert [g.tolist() for g in detector.split(np.array([0, 2, 1, 3]))] == [[0], [1], [2, 3]]


def ask(detector, classes, floor=0.0):
    inputs = {name: value[None] for name, value in detector.preprocess(picture(40, 80)).items()}
    outputs = detector.run(inputs, [np.array(classes)])
    return detector.decode(outputs, 0, (40, 80), np.array(classes), floor)


def test_a_category_has_the_score_of_its_best_word_and_its_box_in_pixels(made):
    detector, _ = made()
    detector.learn(["cat", "wet dog", "st. dog"])
    found = ask(detector, [2, 0])
    assert found.request.tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(found.scores[[0, 3]], 1 / (1 + np.exp(-np.array([0.19, 0.03]))), rtol=1e-6)
    np.testing.assert_allclose(found.boxes, [[20, 15, 60, 25]] * 6)


def test_all_queries_at_or_above_the_floor_are_all_there_can_be(made):
    detector, _ = made()
    detector.learn(["cat", "wet dog"])  # .508 and .557
    assert detector.spec.query_cap == 3
    assert ask(detector, [0, 1], 0.55).saturated
    assert not ask(detector, [0], 0.55).saturated
    assert len(ask(detector, [0], 0.55).scores) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_no_number_fails_the_image(made, value):
    detector, _ = made()
    detector.learn(["cat", "dog"])
    outputs = {"logits": np.zeros((1, 3, 8), np.float32), "boxes": np.zeros((1, 3, 4), np.float32)}
    outputs["logits"][0, 1, 5] = value  # a word of the second
    with pytest.raises(ModelError, match="non-finite scores"):
        detector.decode(outputs, 0, (40, 80), np.array([0, 1]), 0.5)
    detector.decode(outputs, 0, (40, 80), np.array([0]), 0.5)
