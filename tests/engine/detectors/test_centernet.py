from __future__ import annotations

import cv2
import numpy as np
import pytest

from tallymill.engine.detectors.centernet import CELLS, SIDE, CenterNet
from tallymill.engine.sessions.base import stack
from tallymill.errors import ModelError


def outputs(seed=0, levels=None):
    """Random maps; with ``levels`` heat takes few values, so that neighbours tie."""
    rng = np.random.default_rng(seed)
    heat = rng.uniform(0, 1, (1, 80, CELLS, CELLS)).astype(np.float32)
    if levels is not None:
        heat = np.floor(heat * levels) / np.float32(levels)
    return {"heat": heat, "sides": rng.uniform(-5, 200, (1, 4, CELLS, CELLS)).astype(np.float32)}


def reference(out, size, classes, floor):
    """The definition, one cell and class at a time."""
    rows = []
    for position, k in enumerate(classes):
        heat = out["heat"][0, k]
        for y, x in np.argwhere(heat >= floor):
            around = heat[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
            if heat[y, x] < around.max():
                continue
            left, top, right, bottom = out["sides"][0, :, y, x]
            box = np.array([4 * x - left, 4 * y - top, 4 * x + right, 4 * y + bottom])
            rows.append((position, heat[y, x], *(box * [size[1], size[0], size[1], size[0]] / SIDE)))
    return np.array(rows, np.float64).reshape(-1, 6)


@pytest.mark.parametrize("classes", [[0], [5, 79, 5], []])
@pytest.mark.parametrize(("floor", "levels"), [(0.98, None), (0.7, 4), (1.1, None)])
def test_decode_is_its_definition(array_session, classes, floor, levels):
    out, size = outputs(levels=levels), (100, 350)
    found = CenterNet(array_session(CenterNet, out)).decode(out, 0, size, np.array(classes, np.int64), floor)
    expected = reference(out, size, classes, floor)
    assert found.request.tolist() == expected[:, 0].tolist()
    np.testing.assert_array_equal(found.scores, expected[:, 1])
    np.testing.assert_allclose(found.boxes, expected[:, 2:], rtol=1e-5, atol=1e-3)
    assert found.boxes.dtype == found.scores.dtype == np.float32
    assert found.boxes.shape == (len(expected), 4)


def test_peaks_in_the_corners_count_and_nothing_caps_them(array_session):
    out = outputs()
    out["heat"][:] = 0
    out["heat"][0, 2, ::2, ::2] = 0.5
    out["heat"][0, 2, CELLS - 1, CELLS - 1] = 0.75
    found = CenterNet(array_session(CenterNet, out)).decode(out, 0, (SIDE, SIDE), np.array([2]), 0.05)
    assert len(found.scores) == (CELLS // 2) ** 2  # the last of the grid is beside the hotter corner
    assert found.scores[-1] == 0.75


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_an_error_for_those_who_ask(array_session, value):
    out = outputs()
    out["heat"][0, 7, 3, 4] = value
    detector = CenterNet(array_session(CenterNet, out))
    with pytest.raises(ModelError, match="non-finite scores"):
        detector.decode(out, 0, (10, 10), np.array([1, 7]), 0.05)
    detector.decode(out, 0, (10, 10), np.array([1]), 0.99)


def test_preprocess_is_the_warped_window(array_session):
    window = np.random.default_rng(0).integers(0, 256, (90, 70, 3), np.uint8)[5:80, 3:60]
    prepared = CenterNet(array_session(CenterNet, {})).preprocess(window)["image"]
    np.testing.assert_array_equal(prepared, cv2.resize(window, (512, 512)))


@pytest.mark.models
def test_our_decoding_of_the_heads_is_the_golden_detections(session_of, photograph, golden):
    name, image = photograph
    expected = golden("centernet", name)
    detector = CenterNet(session_of("centernet"))
    prepared = detector.preprocess(image)["image"]
    np.testing.assert_array_equal(prepared[::16, ::16], expected["input_every_16"])
    rows = expected["detections"]
    found = detector.decode(
        detector.run({"image": prepared[None]}, []), 0, (SIDE, SIDE), np.arange(80), float(rows[-1, 4]) - 1e-5
    )
    best = np.argsort(-found.scores, kind="stable")[: len(rows)]
    assert len(best) == len(rows) == 100
    np.testing.assert_array_equal(found.request[best], rows[:, 5])
    np.testing.assert_allclose(found.scores[best], rows[:, 4], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.boxes[best], rows[:, :4], rtol=0, atol=0.01)


@pytest.mark.models
def test_a_window_means_the_same_whatever_ran_before_it(session_of):
    rng = np.random.default_rng(0)
    windows = [rng.integers(0, 256, (side, side + 9, 3), np.uint8) for side in (40, 700, 300)]
    detector = CenterNet(session_of("centernet"))
    first = [detector.run(stack([detector.preprocess(window)]), []) for window in windows]
    for window, before in zip(windows[::-1], first[::-1], strict=True):
        again = detector.run(stack([detector.preprocess(window)]), [])
        np.testing.assert_array_equal(again["heat"], before["heat"])
        np.testing.assert_array_equal(again["sides"], before["sides"])


@pytest.mark.models
def test_a_batch_is_refused_by_the_fixed_shape(session_of):
    detector = CenterNet(session_of("centernet"))
    assert detector.spec.batch == 1
    with pytest.raises(ModelError, match="dimensions"):
        detector.run({"image": np.zeros((2, SIDE, SIDE, 3), np.uint8)}, [])
