"""What SAM 3 does around its models, with models that return what they are told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tallymill.engine.bundles import Bundle
from tallymill.engine.clock import StageClock
from tallymill.engine.detectors import text as module
from tallymill.engine.detectors.pixels import sigmoid
from tallymill.engine.detectors.sam3 import LEVELS, Sam3
from tallymill.engine.proposer import DetectOptions, WindowProposer

NUMBERS = {"side": 8, "mean": [0.5] * 3, "std": [0.5] * 3, "tokens": 4, "start": 90, "end": 91, "pad": 0}
QUERIES = 3
SURE = 100.0  # a logit whose sigmoid is 1


class Vision:
    device, model = "cpu", Path("vision.onnx")
    inputs, outputs = Sam3.inputs, Sam3.outputs

    def run(self, inputs):
        return {name: np.zeros((len(inputs["image"]), 1, 2, 2), np.float32) for name in LEVELS}


class Text:
    """The features of a text are its first token."""

    def run(self, inputs):
        return {"features": inputs["tokens"][:, 1:2, None].astype(np.float32)}


class Decoder:
    """Logits are the numbers of the letter that the category begins with; masks are their queries'."""

    def __init__(self):
        self.calls = []

    def run(self, inputs):
        self.calls.append(inputs)
        logits = np.full((1, QUERIES), inputs["text"][0, 0, 0], np.float32)
        return {
            "logits": logits,
            "presence": np.full((1, 1), SURE, np.float32),
            "boxes": np.tile(np.array([0, 0, 0.5, 1], np.float32), (1, QUERIES, 1)),
            "masks": np.tile(np.array([[SURE, -SURE]], np.float32), (1, QUERIES, 2, 1)),
        }


@pytest.fixture
def detector(monkeypatch, tmp_path):
    parts = {"vision": Vision(), "text": Text(), "decoder": Decoder()}
    plain = Bundle(tmp_path, "sam3", "sam3", "onnx", "fp32", {}, NUMBERS, None, "0")
    usual = {}

    def session(part, *, batch=None, **_):
        usual[part] = batch
        return parts[part]

    bundle = SimpleNamespace(
        family="sam3",
        tokenizer=tmp_path / "tokenizer.json",
        session=session,
        read=lambda kind: Bundle.read(plain, kind),
    )
    monkeypatch.setattr(module, "load_tokenizer", lambda _file: lambda text: [ord(text[0]) - 97])
    made = Sam3(bundle, "sam3")
    made.decoder_calls, made.usual_rows = parts["decoder"].calls, usual
    return made


def asked(detector, categories, run=Sam3.run):
    detector.learn(categories)
    inputs = {name: value[None] for name, value in detector.preprocess(np.zeros((8, 8, 3), np.uint8)).items()}
    return run(detector, inputs, [np.arange(len(categories))])


def test_of_several_engines_the_decoder_is_the_one_for_a_pair(detector):
    """A larger one would compute each pair as often as it has rows."""
    asked(detector, ["a", "b"])
    assert {call["text"].shape[0] for call in detector.decoder_calls} == {1}
    assert detector.usual_rows == {"vision": None, "text": 1, "decoder": 1}


def test_a_category_is_decoded_by_itself_and_masks_are_as_large_as_the_image(detector):
    outputs = asked(detector, ["a", "b"])
    assert len(detector.decoder_calls) == 2
    found = detector.decode(outputs, 0, (20, 40), np.arange(2), 0.6)
    assert found.request.tolist() == [1] * QUERIES  # sigmoid(0) is .5
    assert found.boxes[0].tolist() == [0, 0, 20, 20]
    assert found.saturated
    segments = detector.segment(outputs, 0, 1, (20, 40), 0.6)
    assert segments.masks.shape == (QUERIES, 20, 40)
    assert segments.masks[:, :, :10].all()
    assert not segments.masks[:, :, 30:].any()


def test_counting_keeps_no_masks(detector, monkeypatch):
    some, everything = (asked(detector, ["a", "b"], run) for run in (Sam3.run_for_boxes, Sam3.run))
    assert set(everything) - set(some) == {"masks"}
    assert everything["masks"].shape == (1, 2, QUERIES, 2, 2)
    for name, value in some.items():
        np.testing.assert_array_equal(value, everything[name])
    monkeypatch.setattr(Sam3, "run", None)
    proposer, options = WindowProposer(detector), DetectOptions(floor=0.05, nms_iou=0.5, slices=())
    jobs = list(proposer.jobs(0, np.zeros((8, 8, 3), np.uint8), np.arange(2), options, StageClock()))
    (run,) = proposer.run(jobs, options, StageClock())
    assert len(run.found.scores) == 2 * QUERIES


@pytest.mark.parametrize("reached", [True, False])
def test_a_score_reaches_a_floor_that_only_float64_tells_from_it_where_that_is_less(detector, reached):
    outputs = asked(detector, ["a"])
    outputs["logits"][:] = -2.9444
    floor = float(np.nextafter(float(sigmoid(outputs["logits"]).ravel()[0]), 0 if reached else 1))
    found = detector.decode(outputs, 0, (8, 8), np.arange(1), floor)
    assert (len(found.scores), found.saturated) == (QUERIES * reached, reached)
    assert len(detector.segment(outputs, 0, 0, (8, 8), floor).scores) == QUERIES * reached
