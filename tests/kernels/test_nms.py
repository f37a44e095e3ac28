"""NMS: every path against the reference, index for index, and all against cases worked by hand."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tallymill.errors import MissingExtraError, UsageError
from tallymill.kernels import nms as operation
from tallymill.kernels import paths
from tallymill.kernels.count import calibrate
from tallymill.kernels.nms import Kept, nms, reference, select, valid

Floats = NDArray[np.float32]
PATHS = paths.supported()
BOTH = pytest.mark.parametrize("impl", [*PATHS, "reference"])
EACH_PATH = pytest.mark.parametrize("impl", PATHS)


def f32(*rows: Any) -> Floats:
    return np.array(rows, np.float32)


def whole(boxes: Floats) -> NDArray[np.int64]:
    return np.array([0, len(boxes)], np.int64)


def keep(boxes: Floats, scores: Floats, threshold: float = 0.5, *, impl: str) -> list[int]:
    kept = nms(boxes, scores, whole(boxes), threshold, impl=impl)
    assert kept.offsets.tolist() == [0, len(kept.indices)]
    return kept.indices.tolist()  # type: ignore[no-any-return]


def assert_all_equal(boxes: Floats, scores: Floats, offsets: NDArray[np.int64], *args: Any, **kwargs: Any) -> Kept:
    """Every path gives what the reference gives, which is returned."""
    oracle = nms(boxes, scores, offsets, *args, impl="reference", **kwargs)
    for path in PATHS:
        assert_equal(nms(boxes, scores, offsets, *args, impl=path, **kwargs), oracle)
    return oracle


def crowd(rng: np.random.Generator, n: int, side: float = 200.0) -> Floats:
    """Boxes that overlap enough for long chains of suppression."""
    centre = rng.random((n, 2)) * side
    half = rng.random((n, 2)) * 20 + 5
    return np.concatenate([centre - half, centre + half], axis=1).astype(np.float32)


def assert_equal(one: Kept, other: Kept) -> None:
    np.testing.assert_array_equal(one.indices, other.indices)
    np.testing.assert_array_equal(one.offsets, other.offsets)
    assert one.indices.dtype == one.offsets.dtype == np.int64


# Cases worked by hand.


@BOTH
def test_first_of_equal_scores_stays(impl: str) -> None:
    boxes = f32([0, 0, 10, 10], [1, 0, 11, 10], [0, 1, 10, 11])
    assert keep(boxes, f32(1, 1, 1), impl=impl) == [0]


@BOTH
@pytest.mark.parametrize(("threshold", "expected"), [(0.0, [0, 2]), (0.1, [0, 1])])
def test_a_suppressed_box_suppresses_nothing(threshold: float, expected: list[int], impl: str) -> None:
    boxes = f32([10, 0, 20, 10], [0, 0, 10.5, 10], [0, 0, 9.5, 10])
    assert keep(boxes, f32(1, 0.9, 0.5), threshold, impl=impl) == expected


@BOTH
@pytest.mark.parametrize(("threshold", "expected"), [(0.68, [0]), (0.681, [0, 1])])
def test_areas_have_no_plus_one(threshold: float, expected: list[int], impl: str) -> None:
    boxes = f32([0, 0, 10, 10], [1, 1, 11, 11])
    assert reference.iou(boxes[0], boxes[1:])[0] == pytest.approx(0.6807, abs=5e-5)
    assert keep(boxes, f32(0.9, 0.8), threshold, impl=impl) == expected


@BOTH
@pytest.mark.parametrize(("threshold", "expected"), [(0.333, [0]), (0.334, [0, 1])])
def test_huge_boxes_keep_their_overlap(threshold: float, expected: list[int], impl: str) -> None:
    boxes = f32([0, 0, 60000, 60000], [30000, 0, 90000, 60000])
    assert reference.iou(boxes[0], boxes[1:])[0] == np.float32(1 / 3)
    assert keep(boxes, f32(0.9, 0.8), threshold, impl=impl) == expected


@BOTH
def test_disjoint_boxes_all_stay(impl: str) -> None:
    x, y = np.divmod(np.arange(150), 15)
    corner = np.stack([x, y], axis=1) * 20
    boxes = np.concatenate([corner, corner + 20], axis=1).astype(np.float32)  # neighbours touch
    scores = np.linspace(0.1, 0.9, 150).astype(np.float32)
    assert keep(boxes, scores, 0.0, impl=impl) == list(range(149, -1, -1))


@BOTH
def test_threshold_is_strict_and_float64(impl: str) -> None:
    half = f32([0, 0, 2, 1], [0, 0, 1, 1])
    assert keep(half, f32(0.9, 0.8), 0.5, impl=impl) == [0, 1]
    assert keep(half, f32(0.9, 0.8), np.nextafter(0.5, 0), impl=impl) == [0]
    # The IoU is float32(0.3), a little above 0.3 in float64; rounding the threshold would make the two equal.
    assert np.float64(np.float32(0.3)) > 0.3
    tenths = f32([0, 0, 10, 1], [0, 0, 3, 1])
    assert keep(tenths, f32(0.9, 0.8), 0.3, impl=impl) == [0]
    # And float32(0.7) is a little below.
    assert np.float64(np.float32(0.7)) < 0.7
    assert keep(f32([0, 0, 10, 1], [0, 0, 7, 1]), f32(0.9, 0.8), 0.7, impl=impl) == [0, 1]


@BOTH
def test_order_is_score_then_index(impl: str) -> None:
    boxes = f32(*([i * 10, 0, i * 10 + 5, 5] for i in range(6)))
    scores = f32(0.5, -1, 0.5, 0.9, -0.0, 0.0)
    assert keep(boxes, scores, impl=impl) == [3, 0, 2, 4, 5, 1]


@BOTH
def test_segments_do_not_see_each_other(impl: str) -> None:
    boxes = np.tile(f32([0, 0, 10, 10]), (5, 1))
    offsets = np.array([0, 0, 2, 2, 4, 5, 5], np.int64)
    kept = nms(boxes, f32(0.1, 0.2, 0.9, 0.9, 0.3), offsets, impl=impl)
    assert kept.indices.tolist() == [1, 2, 4]
    assert kept.offsets.tolist() == [0, 0, 1, 1, 2, 3, 3]


@BOTH
def test_a_small_image_alone_and_beside_a_large_one(impl: str) -> None:
    rng = np.random.default_rng(14)
    small, large = crowd(rng, 9, side=40), crowd(rng, 500, side=4000)
    few, many = rng.random(9).astype(np.float32), rng.random(500).astype(np.float32)
    alone = nms(small, few, whole(small), impl=impl)
    for boxes, scores, start in (((small, large), (few, many), 0), ((large, small), (many, few), 500)):
        offsets = np.array([0, len(boxes[0]), 509], np.int64)
        both = nms(np.concatenate(boxes), np.concatenate(scores), offsets, impl=impl)
        own = both.indices[(both.indices >= start) & (both.indices < start + 9)] - start
        assert own.tolist() == alone.indices.tolist()


@BOTH
@pytest.mark.parametrize("segments", [0, 1, 3])
def test_no_boxes(segments: int, impl: str) -> None:
    kept = nms(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.zeros(segments + 1, np.int64), impl=impl)
    assert kept.indices.shape == (0,)
    assert kept.offsets.tolist() == [0] * (segments + 1)


@BOTH
def test_areas_beyond_float32_suppress_nothing(impl: str) -> None:
    boxes = np.tile(f32([-1e30, -1e30, 1e30, 1e30]), (3, 1))
    assert keep(boxes, f32(0.1, 0.2, 0.3), impl=impl) == [2, 1, 0]


@BOTH
def test_areas_below_float32_suppress_nothing(impl: str) -> None:
    boxes = np.tile(f32([0, 0, 1e-30, 1e-30]), (2, 1))
    assert keep(boxes, f32(0.1, 0.2), impl=impl) == [1, 0]


# cpu against the reference.


@pytest.mark.parametrize("n", [300, 2047, 2048, 2049])
@pytest.mark.parametrize("order", ["falling", "rising", "any", "tied"])
def test_scores_that_share_their_first_digits(n: int, order: str) -> None:
    rng = np.random.default_rng(n)
    near = {
        "falling": 0.5 - np.arange(n) * 6e-8,
        "rising": 0.5 + np.arange(n) * 6e-8,
        "any": 0.5 + rng.random(n) * 1e-6,
        "tied": 0.5 + rng.integers(0, 3, n) * 1e-7,
    }
    scores = near[order].astype(np.float32)
    scores[[n // 3, n // 2]] = 1e-3, 0.99
    boxes = np.tile(f32([0, 0, 1, 1]), (n, 1)) + 2 * np.arange(n, dtype=np.float32)[:, None]  # apart: all stay
    expected = np.lexsort((np.arange(n), -scores)).tolist()
    for path in PATHS:
        assert keep(boxes, scores, impl=path) == expected


@pytest.mark.parametrize("n", [*range(1, 71), 127, 128, 129, 255, 256, 257, 300, 1001])
@pytest.mark.parametrize("levels", [1, 4, 1 << 20])
def test_segment_lengths_and_ties(n: int, levels: int) -> None:
    rng = np.random.default_rng([n, levels])
    boxes = crowd(rng, n)
    scores = (rng.integers(0, levels, n) / levels).astype(np.float32)
    for threshold in (0.0, 0.5, 1.0):
        offsets = whole(boxes)
        assert_all_equal(boxes, scores, offsets, threshold)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6, 1e18, 3e19])
def test_scales(scale: float) -> None:
    rng = np.random.default_rng(7)
    boxes = crowd(rng, 200) * np.float32(scale)
    scores = rng.random(200).astype(np.float32)
    offsets = whole(boxes)
    assert valid(boxes, scores).all()
    assert_all_equal(boxes, scores, offsets)


@pytest.mark.parametrize("presorted", [np.argsort, lambda scores: np.argsort(-scores, kind="stable")])
def test_sorted_scores(presorted: Any) -> None:
    rng = np.random.default_rng(8)
    boxes, scores = crowd(rng, 300), rng.random(300).astype(np.float32)
    scores = scores[presorted(scores)]
    offsets = whole(boxes)
    assert_all_equal(boxes, scores, offsets)


coordinate = st.integers(0, 12).map(float)  # small integers: many exact ties, touching and equal boxes
length = st.integers(1, 6).map(float)
box = st.tuples(coordinate, coordinate, length, length).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))
segment = st.lists(st.tuples(box, st.integers(-2, 4)), max_size=40)


@settings(deadline=None, max_examples=300)
@given(st.lists(segment, max_size=5), st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 2 / 3, 1.0]), st.integers(1, 3))
def test_random_segments(segments: list[list[tuple[Any, int]]], threshold: float, threads: int) -> None:
    rows = [row for part in segments for row in part]
    boxes = np.array([row[0] for row in rows], np.float32).reshape(-1, 4)
    scores = np.array([row[1] / 4 for row in rows], np.float32)
    offsets = np.cumsum([0, *map(len, segments)], dtype=np.int64)
    assert_all_equal(boxes, scores, offsets, threshold, threads=threads)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32 - 1), st.integers(1, 120), st.floats(0, 1))
def test_random_floats(seed: int, n: int, threshold: float) -> None:
    rng = np.random.default_rng(seed)
    boxes, scores = crowd(rng, n, side=float(rng.integers(1, 300))), rng.standard_normal(n).astype(np.float32)
    offsets = whole(boxes)
    assert_all_equal(boxes, scores, offsets, threshold)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1), st.integers(2, 60))
def test_thresholds_at_an_overlap(seed: int, n: int) -> None:
    """The threshold is an IoU that occurs, or its neighbour on either side."""
    rng = np.random.default_rng(seed)
    boxes, scores = crowd(rng, n, side=40), rng.random(n).astype(np.float32)
    exact = float(reference.iou(boxes[0], boxes[1:]).max())
    for threshold in (np.nextafter(exact, 0), exact, min(np.nextafter(exact, 2), 1.0)):
        offsets = whole(boxes)
        assert_all_equal(boxes, scores, offsets, threshold)


@EACH_PATH
def test_long_segments(impl: str) -> None:
    """Longer than what insertion finishes; scores that differ in their last bits alone, and one far off."""
    rng = np.random.default_rng(20)
    n = 2500
    boxes = crowd(rng, n, side=2000)
    near = np.float32(0.75) + rng.integers(0, 200, n).astype(np.float32) * np.float32(2**-24)
    near[n // 2] = -1e30
    for scores in (near, rng.standard_normal(n).astype(np.float32)):
        kept = nms(boxes, scores, whole(boxes), 0.3, impl=impl)
        order = np.argsort(-scores, kind="stable").tolist()
        assert kept.indices.tolist() == reference.keep(boxes, order, 0.3)


@pytest.mark.parametrize("categories", [1, 2, 3, 5])
@pytest.mark.parametrize("score_threshold", [None, -1.0, 0.0, 0.1, 0.5, 2.0])
def test_categories_share_boxes(categories: int, score_threshold: float | None) -> None:
    rng = np.random.default_rng(21)
    offsets = np.cumsum([0, *rng.integers(0, 90, 12)], dtype=np.int64)
    boxes = crowd(rng, int(offsets[-1]))
    scores = (rng.integers(0, 20, (len(boxes), categories)) / 20).astype(np.float32)
    kept = assert_all_equal(boxes, scores, offsets, score_threshold=score_threshold)
    assert len(kept.offsets) == 12 * categories + 1
    for category in range(categories):
        alone = nms(boxes, np.ascontiguousarray(scores[:, category]), offsets, score_threshold=score_threshold)
        parts = [
            kept.indices[kept.offsets[s] : kept.offsets[s + 1]] for s in range(category, 12 * categories, categories)
        ]
        assert np.concatenate(parts).tolist() == alone.indices.tolist()


@BOTH
def test_scores_at_the_threshold_take_part(impl: str) -> None:
    boxes = f32(*([i * 10, 0, i * 10 + 5, 5] for i in range(4)))
    tenth = np.float32(0.1)  # a little above 0.1
    scores = f32(tenth, np.nextafter(tenth, np.float32(0)), 0.05, 0.9)
    for threshold, expected in ((0.1, [3, 0]), (float(tenth), [3, 0]), (np.nextafter(float(tenth), 1), [3])):
        kept = nms(boxes, scores, whole(boxes), score_threshold=threshold, impl=impl)
        assert kept.indices.tolist() == expected


@BOTH
@pytest.mark.parametrize("images", [0, 2])
def test_no_categories(images: int, impl: str) -> None:
    offsets = np.array([0, 1, 3][: images + 1], np.int64)
    boxes = crowd(np.random.default_rng(1), int(offsets[-1]))
    kept = nms(boxes, np.empty((len(boxes), 0), np.float32), offsets, impl=impl)
    assert (len(kept.indices), kept.offsets.tolist()) == (0, [0])


@EACH_PATH
@pytest.mark.parametrize("n", [1, 5, 16, 17, 40, 70])
def test_what_lies_after_the_arrays_does_not_matter(n: int, impl: str) -> None:
    """Whole vectors are read: what follows a segment in memory is poison here, on both sides."""
    rng = np.random.default_rng(n)
    boxes, scores = crowd(rng, n), rng.random(n).astype(np.float32)
    expected = nms(boxes, scores, whole(boxes), impl="reference")
    for poison in (np.nan, np.inf, -1e38, 1e38):
        wide, long = np.full((n + 64, 4), poison, np.float32), np.full(n + 64, poison, np.float32)
        wide[32 : n + 32], long[32 : n + 32] = boxes, scores
        # A call that leaves its poison in freed memory, which the next one's scratch is likely to get.
        nms(
            np.tile(f32([-1e38, -1e38, 1e38, 1e38]), (n + 40, 1)),
            np.full(n + 40, 1e38, np.float32),
            np.array([0, n + 40]),
        )
        assert_equal(nms(wide[32 : n + 32], long[32 : n + 32], whole(boxes), impl=impl), expected)


@EACH_PATH
@pytest.mark.parametrize("n", [1, 3, 4, 5, 16, 33])
def test_a_bad_box_is_found_wherever_it_is(n: int, impl: str) -> None:
    rng = np.random.default_rng(n)
    for at in range(n):
        for column, bad in ((0, np.nan), (1, np.inf), (2, -np.inf), (3, -1e6), (2, -1e6)):
            boxes, scores = crowd(rng, n), rng.random((n, 3)).astype(np.float32)
            boxes[at, column] = bad
            with pytest.raises(ValueError, match=rf"at {at} is degenerate"):
                nms(boxes, scores, whole(boxes), impl=impl)
        scores[at, at % 3], boxes = np.nan, crowd(rng, n)
        with pytest.raises(ValueError, match=rf"at {at} is degenerate"):
            nms(boxes, scores, whole(boxes), score_threshold=2.0, impl=impl)


def test_threads_give_the_same() -> None:
    rng = np.random.default_rng(9)
    lengths = rng.integers(0, 120, 300)
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    boxes, scores = crowd(rng, int(offsets[-1])), rng.random(int(offsets[-1])).astype(np.float32)
    one = nms(boxes, scores, offsets, threads=1)
    assert 300 < len(one.indices) < len(boxes)
    for threads in (2, 3, 256):
        assert_equal(nms(boxes, scores, offsets, threads=threads), one)


def test_calls_from_several_threads_at_once() -> None:
    rng = np.random.default_rng(10)
    boxes, scores = crowd(rng, 4000), rng.random(4000).astype(np.float32)
    offsets = np.arange(0, 4001, 100, dtype=np.int64)
    expected, results = nms(boxes, scores, offsets), []
    callers = [
        threading.Thread(target=lambda: results.append(nms(boxes, scores, offsets, threads=2))) for _ in range(6)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(results) == 6
    for result in results:
        assert_equal(result, expected)


def test_strided_misaligned_and_read_only_inputs() -> None:
    rng = np.random.default_rng(11)
    boxes, scores, offsets = crowd(rng, 100), rng.random(100).astype(np.float32), np.array([0, 40, 100], np.int64)
    expected = nms(boxes, scores, offsets)
    wide, twice = np.full((100, 8), np.nan, np.float32), np.full(200, np.nan, np.float32)
    wide[:, ::2], twice[::2] = boxes, scores
    assert_equal(nms(wide[:, ::2], twice[::2], np.repeat(offsets, 2)[::2]), expected)
    assert_equal(nms(np.asfortranarray(boxes), scores, offsets), expected)
    memory = np.zeros(401 * 4, np.uint8)
    shifted = memory[1 : 1 + 1600].view(np.float32).reshape(100, 4)
    shifted[:] = boxes
    assert not shifted.flags.aligned
    assert_equal(nms(shifted, scores, offsets), expected)
    for array in (boxes, scores, offsets):
        array.setflags(write=False)
    assert_equal(nms(boxes, scores, offsets), expected)


def test_inputs_are_left_alone() -> None:
    rng = np.random.default_rng(12)
    boxes, scores = crowd(rng, 100), rng.random(100).astype(np.float32)
    before = boxes.copy(), scores.copy()
    nms(boxes, scores, whole(boxes))
    np.testing.assert_array_equal(boxes, before[0])
    np.testing.assert_array_equal(scores, before[1])


@pytest.mark.parametrize("tau", [0.93, 1.0, 1.15, 1.42])
def test_temperature_does_not_matter(tau: float) -> None:
    rng = np.random.default_rng(13)
    boxes = crowd(rng, 500)
    confidence = (rng.integers(50, 1000, 500) / 1000).astype(np.float32)  # apart, and with ties
    offsets = whole(boxes)
    assert_equal(nms(boxes, calibrate(confidence, tau), offsets), nms(boxes, confidence, offsets))


# Validity.


BAD_BOXES = [
    [1, 0, 1, 1],  # no width
    [0, 1, 1, 1],  # no height
    [2, 0, 1, 1],
    [0, 2, 1, 1],
    *([*[0, 0, 1, 1][:i], bad, *[0, 0, 1, 1][i + 1 :]] for i in range(4) for bad in (np.nan, np.inf, -np.inf)),
]


@pytest.mark.parametrize("bad", BAD_BOXES)
def test_valid_refuses_boxes(bad: list[float]) -> None:
    boxes = f32([0, 0, 1, 1], bad, [-5, -5, -4, -4])
    assert valid(boxes, f32(0.1, 0.2, 0.3)).tolist() == [True, False, True]
    assert reference.valid(boxes, f32(0.1, 0.2, 0.3)).tolist() == [True, False, True]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_valid_refuses_scores(bad: float) -> None:
    boxes = f32([0, 0, 1, 1], [0, 0, 1, 1])
    assert valid(boxes, f32(bad, 0.5)).tolist() == [False, True]
    assert reference.valid(boxes, f32(bad, 0.5)).tolist() == [False, True]


def test_valid_takes_the_scores_of_many_categories() -> None:
    rng = np.random.default_rng(15)
    boxes, scores, offsets = crowd(rng, 40), rng.random((40, 3)).astype(np.float32), np.array([0, 7, 7, 40], np.int64)
    boxes[3, 2], scores[6, 0], scores[20, 2] = np.nan, np.inf, np.nan
    usable = valid(boxes, scores)
    assert np.flatnonzero(~usable).tolist() == [3, 6, 20]
    np.testing.assert_array_equal(usable, reference.valid(boxes, scores))
    left = np.concatenate([[0], np.cumsum(usable)])[offsets]
    assert left.tolist() == [0, 5, 5, 37]
    assert_all_equal(boxes[usable], scores[usable], left)
    assert valid(boxes[:0], scores[:0]).shape == (0,)
    with pytest.raises(ValueError, match=r"scores: wanted shape \[40, any\], got \[39, 3\]"):
        valid(boxes, scores[1:])


def test_valid_of_nothing() -> None:
    result = valid(np.empty((0, 4), np.float32), np.empty(0, np.float32))
    assert result.shape == (0,)
    assert result.dtype == np.bool_


special = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3.4e38, -3.4e38, 1.0, 2.0])


@given(st.lists(st.lists(special, min_size=5, max_size=5), max_size=60))
def test_valid_equals_the_reference(rows: list[list[float]]) -> None:
    table = np.array(rows, np.float32).reshape(-1, 5)
    boxes, scores = table[:, :4], table[:, 4]
    np.testing.assert_array_equal(valid(boxes, scores), reference.valid(boxes, scores))


@BOTH
@pytest.mark.parametrize("bad", BAD_BOXES)
def test_nms_refuses_what_valid_refuses(bad: list[float], impl: str) -> None:
    boxes = f32([0, 0, 1, 1], bad)
    with pytest.raises(ValueError, match=r"^boxes: .* at 1 .*valid\(\)"):
        nms(boxes, f32(0.5, 0.5), whole(boxes), impl=impl)


# Arguments.


GOOD: dict[str, Any] = {
    "boxes": f32([0, 0, 1, 1], [0, 0, 2, 2]),
    "scores": f32(0.5, 0.6),
    "offsets": np.array([0, 2], np.int64),
}


@pytest.mark.parametrize(
    ("argument", "value", "error", "message"),
    [
        ("boxes", [[0, 0, 1, 1]], TypeError, "boxes: wanted a NumPy array of float32, got list"),
        ("boxes", np.zeros((2, 4)), TypeError, "boxes: wanted dtype float32, got float64"),
        ("boxes", np.zeros((2, 4), ">f4"), TypeError, "boxes: wanted dtype float32, got >f4"),
        ("boxes", np.zeros((2, 5), np.float32), ValueError, r"boxes: wanted shape \[any, 4\], got \[2, 5\]"),
        ("boxes", np.zeros(8, np.float32), ValueError, r"boxes: wanted shape \[any, 4\], got \[8\]"),
        ("scores", f32(0.5), ValueError, r"scores: wanted shape \[2\], got \[1\]"),
        ("scores", np.zeros((3, 1), np.float32), ValueError, r"scores: wanted shape \[2, any\], got \[3, 1\]"),
        ("scores", np.zeros((2, 1, 1), np.float32), ValueError, r"scores: wanted shape \[2\], got \[2, 1, 1\]"),
        ("score_threshold", float("nan"), ValueError, "score_threshold: wanted a number, got nan"),
        ("scores", np.zeros(2, np.float16), TypeError, "scores: wanted dtype float32, got float16"),
        ("scores", f32(0.5, np.nan), ValueError, r"score nan at 1 is degenerate or not finite"),
        ("offsets", np.array([0, 2], np.int32), TypeError, "offsets: wanted dtype int64, got int32"),
        ("offsets", np.array([], np.int64), ValueError, "offsets: wanted offsets that start at 0, got no entries"),
        ("offsets", np.array([1, 2], np.int64), ValueError, "offsets: wanted offsets that start at 0, got 1"),
        ("offsets", np.array([0, 1], np.int64), ValueError, "offsets: .* end at the number of boxes, 2, got 1"),
        ("offsets", np.array([0, 3, 2], np.int64), ValueError, "offsets: .* never fall, got 3, 2 at 1"),
        ("iou_threshold", -0.1, ValueError, r"iou_threshold: wanted a number in \[0, 1\], got -0.1"),
        ("iou_threshold", 50, ValueError, r"iou_threshold: wanted a number in \[0, 1\], got 50"),
        ("iou_threshold", float("nan"), ValueError, r"iou_threshold: wanted a number in \[0, 1\], got nan"),
        ("threads", 0, ValueError, "threads: wanted 1 to 256, got 0"),
        ("threads", 257, ValueError, "threads: wanted 1 to 256, got 257"),
    ],
)
def test_wrong_arguments(argument: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        nms(**(GOOD | {argument: value}))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_select(device: str) -> None:
    assert select("auto", device) == ("gpu" if device == "cuda" else "cpu")
    assert select("cpu", device) == "cpu"
    assert select("reference", device) == "reference"
    assert select("gpu", device) == "gpu"
    with pytest.raises(UsageError, match="no implementation 'numba'") as raised:
        select("numba", device)
    assert raised.value.hint == "one of: auto, cpu, avx512, avx2, portable, gpu, reference"


def test_select_refuses_an_unknown_device() -> None:
    with pytest.raises(UsageError, match="unknown device 'tpu'"):
        select("cpu", "tpu")


def test_a_path_that_the_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "supported", lambda: ("portable",))
    nms(**GOOD, impl="portable")
    nms(**GOOD, impl="cpu")
    with pytest.raises(UsageError, match="nms: this machine cannot run 'avx512'") as raised:
        nms(**GOOD, impl="avx512")
    assert raised.value.hint == "it can run: portable"


def test_a_named_implementation_runs_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    original = reference.nms

    def recorded(*args: Any) -> Any:
        ran.append("reference")
        return original(*args)

    monkeypatch.setattr(reference, "nms", recorded)
    nms(**GOOD, impl="cpu")
    nms(**GOOD)
    assert ran == []
    nms(**GOOD, impl="reference")
    assert ran == ["reference"]
    with pytest.raises(UsageError, match="no implementation 'numba'"):
        nms(**GOOD, impl="numba")


@pytest.mark.parametrize("run", [nms, operation.soft_nms])
def test_without_triton_the_gpu_implementation_says_what_to_install(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tallymill.kernels.nms.gpu", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MissingExtraError, match=r"'triton' is not installed\n.*pip install 'tallymill\[gpu\]'"):
        run(**GOOD, impl="gpu")


@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_masked_arrays_are_refused(impl):
    boxes = np.ma.array(np.array([[0, 0, 10, 10]], np.float32), mask=True)
    with pytest.raises(TypeError, match="boxes"):
        nms(boxes, np.ones(1, np.float32), np.array([0, 1]), impl=impl)
