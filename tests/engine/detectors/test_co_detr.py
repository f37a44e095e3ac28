from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.base import Candidates
from tallymill.engine.detectors.co_detr import CoDetr, CoDetrNumbers, lowered, rule
from tallymill.engine.detectors.coco import COCO_80
from tallymill.errors import ModelError

NUMBERS = {
    "shortest": 8,
    "longest": 16,
    "buckets": [[8, 16], [16, 8]],
    "padding": None,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "labels": list(COCO_80),
    "top": 6,
    "soft_nms": 0.8,
    "least": 0.001,
}


@pytest.fixture
def detector_of(array_session, monkeypatch):
    """A detector whose every part answers with the given arrays; ``opened`` names the parts in their order."""

    def make(arrays=None, shape=None, **numbers):
        bundle = Bundle(Path("co"), "co", "co_detr", "onnx", "fp32", {}, {**NUMBERS, **numbers}, None, "0" * 64)
        opened = []

        def session(_bundle, part, **_options):
            opened.append(part)
            made = array_session(CoDetr, arrays or {})
            if shape is not None:
                made.inputs = (type(made.inputs[0])("image", "float32", shape),)
            return made

        monkeypatch.setattr(Bundle, "session", session)
        detector = CoDetr(bundle, "co-detr")
        detector.opened = opened
        return detector

    return make


@pytest.mark.parametrize(
    ("size", "resized"),
    [
        ((1024, 1024), (800, 800)),
        ((480, 640), (800, 1067)),  # 1066.7: to the nearest, where the DETR line rounds down
        ((640, 480), (1067, 800)),
        ((500, 1000), (667, 1333)),
        ((300, 451), (800, 1203)),
        ((1, 5000), (1, 1333)),
    ],
)
def test_the_size_rule_of_mmdetection(size, resized):
    assert rule(*size, 800, 1333) == resized
    assert rule(*size[::-1], 800, 1333) == resized[::-1]


def test_an_image_is_put_into_the_upper_left_of_its_bucket(detector_of):
    detector = detector_of()
    image = np.full((30, 45, 3), 255, np.uint8)
    found = detector.preprocess(image)["image"]
    white = (1 - np.array(NUMBERS["mean"])) / NUMBERS["std"]
    assert found.shape == (3, 8, 16)
    np.testing.assert_allclose(found[:, :8, :12], np.broadcast_to(white[:, None, None], (3, 8, 12)), rtol=1e-5)
    assert not found[:, :, 12:].any()
    assert detector.preprocess(image.transpose(1, 0, 2))["image"].shape == (3, 16, 8)


def test_padding_may_be_a_level_of_grey(detector_of):
    found = detector_of(padding=114).preprocess(np.full((30, 45, 3), 255, np.uint8))["image"]
    grey = (114 / 255 - np.array(NUMBERS["mean"])) / NUMBERS["std"]
    np.testing.assert_allclose(found[:, 3, 14], grey, rtol=1e-5)


def test_a_graph_that_takes_any_size_gets_images_as_they_are_resized(detector_of):
    detector = detector_of(buckets=[])
    assert detector.opened == ["image"]
    assert detector.preprocess(np.zeros((30, 45, 3), np.uint8))["image"].shape == (3, 8, 12)


def test_parts_are_opened_when_they_are_needed(detector_of):
    detector = detector_of()
    assert detector.opened == ["image-8x16"]
    for shape in ((8, 16), (16, 8), (16, 8)):
        detector.run({"image": np.zeros((1, 3, *shape), np.float32)}, [np.array([0])])
    assert detector.opened == ["image-8x16", "image-16x8"]


def test_a_graph_of_one_image_a_call_is_asked_for_one(detector_of):
    assert detector_of().spec.batch == 4
    assert detector_of(shape=(1, 3, 8, 16)).spec.batch == 1
    with pytest.raises(ModelError, match="takes 2 images a call"):
        detector_of(shape=(2, 3, 8, 16))


def test_boxes_are_fractions_of_the_padded_input_and_are_clipped_to_it(detector_of):
    logits = np.full((1, 3, 80), -9, np.float32)
    logits[0, [0, 1], 15] = 2, 1
    boxes = np.array([[[0.25, 0.5, 0.25, 0.5], [0.9, 0.5, 0.4, 2.0], [0.5, 0.5, 0.1, 0.1]]], np.float32)
    detector = detector_of({"logits": logits, "boxes": boxes}, top=2)
    outputs = detector.run({"image": np.zeros((1, 3, 8, 16), np.float32)}, [np.array([15])])
    # 60 x 90 becomes 8 x 12 of 8 x 16: a pixel of the input is 7.5 of the image.
    found = detector.decode(outputs, 0, (60, 90), np.array([0, 15]), 0.05)
    np.testing.assert_allclose(found.boxes, [[15, 15, 45, 45], [84, 0, 120, 60]])
    assert found.request.tolist() == [1, 1]
    np.testing.assert_allclose(found.scores, 1 / (1 + np.exp([-2.0, -1.0])), rtol=1e-6)
    assert found.saturated
    assert not detector.decode(outputs, 0, (60, 90), np.array([0, 15]), 0.75).saturated


def numbers_of(**changed):
    values = {**NUMBERS, **changed}
    return CoDetrNumbers(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def candidates(boxes, scores, request):
    return Candidates(np.array(boxes, np.float32), np.array(scores, np.float32), np.array(request, np.int64), True)


def test_soft_nms_lowers_what_overlaps_by_more_than_its_threshold_in_the_same_class():
    near, far = [0, 0, 100, 90], [0, 0, 100, 70]  # IoU .9 and .7 with the whole
    found = candidates([[0, 0, 100, 100], near, far, near], [0.9, 0.8, 0.7, 0.6], [0, 0, 0, 1])
    after = lowered(found, 2, numbers_of(), 0.05)
    assert after.request.tolist() == [0, 0, 0, 1]
    np.testing.assert_allclose(after.scores, [0.9, 0.7, 0.8 * 0.1, 0.6], rtol=1e-5)
    assert after.boxes[2].tolist() == near
    assert after.saturated
    assert lowered(found, 2, numbers_of(), 0.1).scores.tolist() == pytest.approx([0.9, 0.7, 0.6])
    assert lowered(found, 2, numbers_of(soft_nms=None), 0.65).scores.tolist() == pytest.approx([0.9, 0.8, 0.7])


@pytest.mark.parametrize("soft_nms", [0.8, None])
@pytest.mark.parametrize(("floor", "reached"), [(0.05, True), (0.7, False)])
def test_a_score_that_is_the_float_of_the_floor_reaches_it_where_that_float_is_not_less(floor, reached, soft_nms):
    found = candidates([[0, 0, 9, 9], [0, 0, 0, 0]], [floor, floor], [0, 0])
    assert len(lowered(found, 1, numbers_of(soft_nms=soft_nms), floor).scores) == 2 * reached


def test_degenerate_boxes_pass_by_soft_nms_to_be_counted_later():
    found = candidates([[5, 5, 5, 9], [0, 0, 100, 100], [0, 0, 0, 0]], [0.9, 0.8, 0.01], [0, 1, 1])
    after = lowered(found, 2, numbers_of(), 0.05)
    assert after.boxes.tolist() == [[0, 0, 100, 100], [5, 5, 5, 9]]
    assert after.request.tolist() == [1, 0]


def test_scores_that_are_none_are_an_error(detector_of):
    arrays = {"logits": np.full((1, 2, 80), np.nan, np.float32), "boxes": np.zeros((1, 2, 4), np.float32)}
    detector = detector_of(arrays)
    with pytest.raises(ModelError, match="non-finite"):
        detector.decode(arrays, 0, (60, 90), np.array([15]), 0.05)
