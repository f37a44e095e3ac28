from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tallymill.engine.detectors.coco import COCO_80, COCO_IDS
from tallymill.engine.detectors.coco_ssd import SIDE, CocoSsd
from tallymill.engine.sessions.base import stack
from tallymill.errors import ModelError

ALL = np.arange(80)


def outputs(anchors=6, seed=0):
    rng = np.random.default_rng(seed)
    scores = rng.uniform(0, 1, (1, anchors, 90)).astype(np.float32)
    corners = np.sort(rng.uniform(-0.2, 1.2, (1, anchors, 1, 2, 2)), axis=3).astype(np.float32)
    return {"scores": scores, "boxes": corners.reshape(1, anchors, 1, 4)}


def reference(out, size, classes, floor):
    """The definition, one anchor and class at a time."""
    rows = []
    for position, k in enumerate(classes):
        for anchor in range(out["scores"].shape[1]):
            score = out["scores"][0, anchor, COCO_IDS[k] - 1]
            if score >= floor:
                top, left, bottom, right = out["boxes"][0, anchor, 0] * np.float32([size[0], size[1]] * 2)
                rows.append((position, score, left, top, right, bottom))
    return np.array(rows, np.float64).reshape(-1, 6)


def test_index_11_of_80_and_id_13_of_91_are_the_stop_sign(array_session):
    assert COCO_80[11] == "stop sign"
    assert COCO_IDS[11] == 13
    out = outputs()
    out["scores"][:] = 0
    out["scores"][0, 2, 13 - 1] = 0.75
    detector = CocoSsd(array_session(CocoSsd, out))
    assert detector.spec.class_of("stop sign") == 11
    found = detector.decode(out, 0, (10, 10), ALL, 0.05)
    assert found.request.tolist() == [11]
    assert found.scores.tolist() == [0.75]


def test_columns_of_unused_ids_are_never_read(array_session):
    out = outputs()
    used = np.array(COCO_IDS) - 1
    out["scores"][:, :, np.setdiff1d(np.arange(90), used)] = np.nan
    found = CocoSsd(array_session(CocoSsd, out)).decode(out, 0, (10, 10), ALL, 0.0)
    assert len(found.scores) == 6 * 80


@pytest.mark.parametrize("classes", [[0], [14, 14, 2], [79, 0, 40], []])
@pytest.mark.parametrize("floor", [0.0, 0.5, 1.1])
def test_decode_is_its_definition(array_session, classes, floor):
    out, size = outputs(40), (30, 70)
    found = CocoSsd(array_session(CocoSsd, out)).decode(out, 0, size, np.array(classes, np.int64), floor)
    expected = reference(out, size, classes, floor)
    assert found.request.tolist() == expected[:, 0].tolist()
    np.testing.assert_array_equal(found.scores, expected[:, 1])
    np.testing.assert_allclose(found.boxes, expected[:, 2:], rtol=1e-6)
    assert found.boxes.dtype == found.scores.dtype == np.float32
    assert found.boxes.shape == (len(expected), 4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_an_error_for_those_who_ask(array_session, value):
    out = outputs()
    out["scores"][0, 3, COCO_IDS[7] - 1] = value
    detector = CocoSsd(array_session(CocoSsd, out))
    with pytest.raises(ModelError, match="non-finite scores"):
        detector.decode(out, 0, (10, 10), np.array([1, 7]), 0.05)
    detector.decode(out, 0, (10, 10), np.array([1]), 0.05)


def warped(window):
    """The definition in float64: four neighbours of the place i * (size / 300), the last pixel repeated."""
    window = window.astype(np.float64)
    for axis in (0, 1):
        size = window.shape[axis]
        place = np.arange(SIDE) * (size / SIDE)
        before = np.floor(place).astype(int)
        weight = np.expand_dims(place - before, [1 - axis, 2])
        after = np.minimum(before + 1, size - 1)
        window = window.take(before, axis) * (1 - weight) + window.take(after, axis) * weight
    return window


SIZES = [(1, 1), (1, 700), (640, 1), (2, 3), (299, 301), (300, 300), (600, 900), (1024, 77)]
SIZES += [tuple(np.random.default_rng(k).integers(1, 1500, 2)) for k in range(6)]


@pytest.mark.parametrize("size", SIZES)
def test_preprocess_is_its_definition(array_session, size):
    window = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    prepared = CocoSsd(array_session(CocoSsd, {})).preprocess(window)["image"]
    np.testing.assert_allclose(prepared, warped(window), rtol=0, atol=1e-4)
    assert prepared.dtype == np.float32
    assert prepared.shape == (SIDE, SIDE, 3)


@pytest.mark.parametrize("view", [np.s_[20:90, 7:60], np.s_[::2, ::-1], np.s_[..., ::-1]])
def test_preprocess_takes_a_view_and_leaves_it_as_it_is(array_session, view):
    image = np.random.default_rng(0).integers(0, 256, (120, 80, 3), np.uint8)
    image.setflags(write=False)
    prepared = CocoSsd(array_session(CocoSsd, {})).preprocess(image[view])["image"]
    np.testing.assert_allclose(prepared, warped(image[view]), rtol=0, atol=1e-4)


def test_preprocess_of_a_large_window_takes_no_more_memory_than_that_of_a_small_one(array_session):
    detector, peaks = CocoSsd(array_session(CocoSsd, {})), []
    for size in ((300, 300), (3000, 4000)):
        window = np.zeros((*size, 3), np.uint8)
        tracemalloc.start()
        detector.preprocess(window)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] < window.nbytes / 4


@pytest.mark.models
def test_the_model_reproduces_the_golden(session_of, photograph, golden):
    name, image = photograph
    expected = golden("coco_ssd", name)
    detector = CocoSsd(session_of("coco-ssd"))
    out = detector.run(stack([detector.preprocess(image)]), [])
    assert out["scores"].shape == (1, 1917, 90)
    rows = expected["rows"]
    np.testing.assert_allclose(out["scores"][0, rows], expected["scores"], rtol=0, atol=1e-5)
    height, width = image.shape[:2]
    pixels = np.array([height, width, height, width])
    np.testing.assert_allclose(out["boxes"][0, rows, 0] * pixels, expected["boxes"] * pixels, rtol=0, atol=0.01)


@pytest.mark.models
def test_it_sees_a_cup_and_a_cat(session_of, photograph):
    name, image = photograph
    detector = CocoSsd(session_of("coco-ssd"))
    asked = {"coffee": "cup", "chelsea": "cat"}[name]
    classes = np.array([detector.spec.class_of(asked)])
    found = detector.decode(detector.run(stack([detector.preprocess(image)]), []), 0, image.shape[:2], classes, 0.5)
    assert found.scores.max() > 0.8
    x1, y1, x2, y2 = found.boxes[found.scores.argmax()]
    assert (x2 - x1) * (y2 - y1) > 0.2 * image.shape[0] * image.shape[1]
