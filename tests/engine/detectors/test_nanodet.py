from __future__ import annotations

import cv2
import numpy as np
import pytest

from tallymill.engine.detectors.nanodet import SIDE, STRIDES, NanoDet
from tallymill.engine.sessions.base import stack
from tallymill.errors import ModelError


def outputs(seed=0):
    rng = np.random.default_rng(seed)
    out = {}
    for stride in STRIDES:
        cells = (SIDE // stride) ** 2
        out[f"scores_{stride}"] = rng.uniform(0, 1, (1, 80, cells)).astype(np.float32)
        out[f"distances_{stride}"] = rng.normal(0, 3, (1, 44, cells)).astype(np.float32)
    return out


def reference(out, size, classes, floor):
    """The definition, one cell and class at a time, in float64."""
    rows = []
    for position, k in enumerate(classes):
        for stride in STRIDES:
            n = SIDE // stride
            for cell in range(n * n):
                score = out[f"scores_{stride}"][0, k, cell]
                if score < floor:
                    continue
                sides = []
                for logits in out[f"distances_{stride}"][0, :, cell].astype(np.float64).reshape(4, 11):
                    weights = np.exp(logits)
                    sides.append((weights * np.arange(11)).sum() / weights.sum() * stride)
                x, y = (cell % n + 0.5) * stride, (cell // n + 0.5) * stride
                corners = np.array([x - sides[0], y - sides[1], x + sides[2], y + sides[3]])
                box = np.clip(corners, 0, SIDE) / SIDE * [size[1], size[0], size[1], size[0]]
                rows.append((position, score, *box))
    return np.array(rows, np.float64).reshape(-1, 6)


@pytest.mark.parametrize("classes", [[0], [5, 79, 5], []])
@pytest.mark.parametrize("floor", [0.9, 0.99, 1.1])
def test_decode_is_its_definition(array_session, classes, floor):
    out, size = outputs(), (100, 350)
    found = NanoDet(array_session(NanoDet, out)).decode(out, 0, size, np.array(classes, np.int64), floor)
    expected = reference(out, size, classes, floor)
    assert found.request.tolist() == expected[:, 0].tolist()
    np.testing.assert_array_equal(found.scores, expected[:, 1])
    np.testing.assert_allclose(found.boxes, expected[:, 2:], rtol=0, atol=1e-3)
    assert found.boxes.dtype == found.scores.dtype == np.float32
    assert found.boxes.shape == (len(expected), 4)


def test_large_logits_do_not_overflow(array_session):
    out = outputs()
    for stride in STRIDES:
        out[f"scores_{stride}"][:] = 0
    out["scores_16"][0, 3, 5 * 26 + 7] = 0.5
    out["distances_16"][0, :, 5 * 26 + 7] = np.tile(np.eye(11, dtype=np.float32)[2] * 1000, 4)
    found = NanoDet(array_session(NanoDet, out)).decode(out, 0, (SIDE, SIDE), np.array([3]), 0.05)
    # centre (120, 88), two strides of 16 to every side
    np.testing.assert_allclose(found.boxes, [[88, 56, 152, 120]], rtol=0, atol=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("stride", STRIDES)
def test_a_score_that_is_not_finite_is_an_error_for_those_who_ask(array_session, stride, value):
    out = outputs()
    out[f"scores_{stride}"][0, 7, 3] = value
    detector = NanoDet(array_session(NanoDet, out))
    with pytest.raises(ModelError, match="non-finite scores"):
        detector.decode(out, 0, (10, 10), np.array([1, 7]), 0.05)
    detector.decode(out, 0, (10, 10), np.array([1]), 0.99)


def test_preprocess_is_bgr_minus_mean_over_deviation_of_the_warped_window(array_session):
    image = np.random.default_rng(0).integers(0, 256, (90, 70, 3), np.uint8)
    window = image[5:80, 3:60]
    prepared = NanoDet(array_session(NanoDet, {})).preprocess(window)["image"]
    warped = cv2.resize(window, (416, 416))[..., ::-1].astype(np.float64)
    expected = (warped - [103.53, 116.28, 123.675]) / [57.375, 57.12, 58.395]
    np.testing.assert_allclose(prepared, expected.transpose(2, 0, 1), rtol=0, atol=1e-6)
    assert prepared.dtype == np.float32


@pytest.mark.models
def test_the_model_reproduces_the_golden(session_of, photograph, golden):
    name, image = photograph
    expected = golden("nanodet", name)
    detector = NanoDet(session_of("nanodet"))
    prepared = detector.preprocess(image)["image"]
    np.testing.assert_allclose(prepared[:, ::16, ::16], expected["input_every_16"], rtol=0, atol=1e-6)
    out = detector.run({"image": prepared[None]}, [])
    for stride in STRIDES:
        rows = expected[f"rows_{stride}"]
        scores, distances = out[f"scores_{stride}"], out[f"distances_{stride}"]
        assert scores.shape == (1, 80, (SIDE // stride) ** 2)
        np.testing.assert_allclose(scores[0].T[rows], expected[f"scores_{stride}"], rtol=0, atol=1e-5)
        # 0.01 px of a box is at least 0.01 / 32 of an expectation; logits this close leave far less.
        np.testing.assert_allclose(distances[0].T[rows], expected[f"distances_{stride}"], rtol=0, atol=2e-5)


@pytest.mark.models
def test_boxes_of_the_model_are_those_of_the_golden(session_of, photograph, golden):
    name, image = photograph
    expected = golden("nanodet", name)
    detector = NanoDet(session_of("nanodet"))
    dense = {}
    for stride in STRIDES:  # rows that the golden leaves out have no score of 0.05 in it
        cells = (SIDE // stride) ** 2
        for kind, columns in (("scores", 80), ("distances", 44)):
            full = np.zeros((1, columns, cells), np.float32)
            full[0][:, expected[f"rows_{stride}"]] = expected[f"{kind}_{stride}"].T
            dense[f"{kind}_{stride}"] = full
    classes, size = np.arange(80), image.shape[:2]
    ours = detector.decode(detector.run(stack([detector.preprocess(image)]), []), 0, size, classes, 0.05)
    theirs = detector.decode(dense, 0, size, classes, 0.05)
    assert len(ours.scores) > 50
    np.testing.assert_array_equal(ours.request, theirs.request)
    np.testing.assert_allclose(ours.scores, theirs.scores, rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours.boxes, theirs.boxes, rtol=0, atol=0.01)


@pytest.mark.models
def test_a_batch_is_refused_by_the_fixed_shape(session_of):
    detector = NanoDet(session_of("nanodet"))
    assert detector.spec.batch == 1
    with pytest.raises(ModelError, match="dimensions"):
        detector.run({"image": np.zeros((2, 3, SIDE, SIDE), np.float32)}, [])
