"""Soft-NMS: cpu against the reference, and both against cases worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tallymill.errors import UsageError
from tallymill.kernels.nms import SoftKept, nms, soft_nms

Floats = NDArray[np.float32]
BOTH = pytest.mark.parametrize("impl", ["cpu", "reference"])
METHODS = pytest.mark.parametrize("method", ["linear", "gaussian"])


def f32(*rows: Any) -> Floats:
    return np.array(rows, np.float32)


def whole(boxes: Floats) -> NDArray[np.int64]:
    return np.array([0, len(boxes)], np.int64)


def crowd(rng: np.random.Generator, n: int, side: float = 100.0) -> Floats:
    centre = rng.random((n, 2)) * side
    half = rng.random((n, 2)) * 20 + 5
    return np.concatenate([centre - half, centre + half], axis=1).astype(np.float32)


def assert_equal(one: SoftKept, other: SoftKept) -> None:
    np.testing.assert_array_equal(one.indices, other.indices)
    np.testing.assert_array_equal(one.offsets, other.offsets)
    np.testing.assert_array_equal(one.scores.view(np.uint32), other.scores.view(np.uint32))


@BOTH
def test_linear_by_hand(impl: str) -> None:
    boxes = f32([0, 0, 4, 1], [2, 0, 6, 1], [0, 0, 4, 1], [50, 0, 51, 1])  # IoU with the first: 1/3, 1, 0
    kept = soft_nms(boxes, f32(0.9, 0.6, 0.8, 0.1), whole(boxes), impl=impl)
    assert kept.indices.tolist() == [0, 1, 3]
    third = np.float32(1) / np.float32(3)
    np.testing.assert_array_equal(kept.scores, [np.float32(0.9), np.float32(0.6) * (1 - third), np.float32(0.1)])
    assert kept.offsets.tolist() == [0, 3]


@BOTH
def test_gaussian_by_hand(impl: str) -> None:
    boxes = f32([0, 0, 4, 1], [2, 0, 6, 1], [0, 0, 4, 1])
    kept = soft_nms(boxes, f32(0.9, 0.6, 0.8), whole(boxes), method="gaussian", impl=impl)
    third = np.float64(np.float32(1) / np.float32(3))
    first = np.float32(0.6) * np.float32(np.exp(-(third**2) / 0.5))
    second = np.float32(0.8) * np.float32(np.exp(-2.0)) * np.float32(np.exp(-(third**2) / 0.5))
    assert kept.indices.tolist() == [0, 1, 2]
    np.testing.assert_allclose(kept.scores, [0.9, first, second], rtol=3e-7)


@BOTH
@pytest.mark.parametrize(("threshold", "lowered"), [(0.5, True), (0.5001, False)])
def test_an_overlap_at_the_threshold_is_lowered(threshold: float, lowered: bool, impl: str) -> None:
    boxes = f32([0, 0, 2, 1], [0, 0, 1, 1])
    kept = soft_nms(boxes, f32(0.9, 0.5), whole(boxes), iou_threshold=threshold, impl=impl)
    assert kept.scores[1] == np.float32(0.25 if lowered else 0.5)


@BOTH
@METHODS
def test_ties_go_by_index_and_low_scores_end_it(method: str, impl: str) -> None:
    boxes = f32(*([i * 10, 0, i * 10 + 5, 5] for i in range(6)))
    scores = f32(0.5, 0.001, 0.5, 0.9, 0.0009, -1)
    kept = soft_nms(boxes, scores, whole(boxes), method=method, impl=impl)
    assert kept.indices.tolist() == [3, 0, 2, 1]  # float32(0.001) reaches float32(0.001)
    nothing = soft_nms(boxes, scores, whole(boxes), method=method, min_score=0.95, impl=impl)
    assert nothing.indices.tolist() == []
    assert soft_nms(boxes, f32(*[0] * 6), whole(boxes), min_score=0, impl=impl).indices.tolist() == list(range(6))


@BOTH
@METHODS
@pytest.mark.parametrize("segments", [0, 1, 3])
def test_no_boxes(segments: int, method: str, impl: str) -> None:
    nothing = np.empty((0, 4), np.float32), np.empty(0, np.float32)
    kept = soft_nms(*nothing, np.zeros(segments + 1, np.int64), method=method, impl=impl)
    assert kept.indices.shape == kept.scores.shape == (0,)
    assert kept.offsets.tolist() == [0] * (segments + 1)


@BOTH
@METHODS
def test_areas_beyond_float32_lower_nothing(method: str, impl: str) -> None:
    boxes = np.tile(f32([-1e30, -1e30, 1e30, 1e30]), (3, 1))
    kept = soft_nms(boxes, f32(0.1, 0.2, 0.3), whole(boxes), method=method, impl=impl)
    np.testing.assert_array_equal(kept.scores, f32(0.3, 0.2, 0.1))


@METHODS
@pytest.mark.parametrize("n", [*range(1, 36), 63, 64, 65, 300])
@pytest.mark.parametrize("levels", [3, 1 << 20])
def test_lengths_and_ties(n: int, levels: int, method: str) -> None:
    rng = np.random.default_rng([n, levels])
    boxes, scores = crowd(rng, n), (rng.integers(0, levels, n) / levels).astype(np.float32)
    for min_score in (0.0, 0.001, 0.3):
        arguments: dict[str, Any] = {"method": method, "min_score": min_score}
        kept = soft_nms(boxes, scores, whole(boxes), **arguments)
        assert_equal(kept, soft_nms(boxes, scores, whole(boxes), impl="reference", **arguments))
        assert (np.diff(kept.scores) <= 0).all()


@METHODS
def test_categories_share_boxes_and_threads_do_not_matter(method: str) -> None:
    rng = np.random.default_rng(3)
    offsets = np.cumsum([0, *rng.integers(0, 40, 30)], dtype=np.int64)
    boxes, scores = crowd(rng, int(offsets[-1])), rng.random((int(offsets[-1]), 3)).astype(np.float32)
    kept = soft_nms(boxes, scores, offsets, method=method)
    assert_equal(kept, soft_nms(boxes, scores, offsets, method=method, impl="reference"))
    for threads in (2, 256):
        assert_equal(kept, soft_nms(boxes, scores, offsets, method=method, threads=threads))
    for category in range(3):
        alone = soft_nms(boxes, np.ascontiguousarray(scores[:, category]), offsets, method=method)
        parts = [kept.indices[kept.offsets[s] : kept.offsets[s + 1]] for s in range(category, len(kept.offsets) - 1, 3)]
        np.testing.assert_array_equal(np.concatenate(parts), alone.indices)


coordinate = st.integers(0, 12).map(float)
box = st.tuples(coordinate, coordinate, st.integers(1, 6), st.integers(1, 6)).map(
    lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3])
)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(box, st.integers(0, 4)), max_size=40), st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 1.0]))
def test_random_segments(rows: list[tuple[Any, int]], threshold: float) -> None:
    boxes = np.array([row[0] for row in rows], np.float32).reshape(-1, 4)
    scores = np.array([row[1] / 4 for row in rows], np.float32)
    offsets = np.array([0, len(rows) // 3, len(rows)], np.int64)
    kept = soft_nms(boxes, scores, offsets, iou_threshold=threshold)
    assert_equal(kept, soft_nms(boxes, scores, offsets, iou_threshold=threshold, impl="reference"))


def test_the_first_of_each_crowd_is_that_of_nms() -> None:
    rng = np.random.default_rng(5)
    boxes, scores = crowd(rng, 200), rng.random(200).astype(np.float32)
    hard, soft = nms(boxes, scores, whole(boxes), 0.3), soft_nms(boxes, scores, whole(boxes), min_score=0.0)
    assert soft.indices[0] == hard.indices[0]
    untouched = soft.scores == scores[soft.indices]
    assert set(hard.indices[scores[hard.indices] > scores.min()]) >= {int(i) for i in soft.indices[untouched][:1]}


GOOD: dict[str, Any] = {
    "boxes": f32([0, 0, 1, 1], [0, 0, 2, 2]),
    "scores": f32(0.5, 0.6),
    "offsets": np.array([0, 2], np.int64),
}


@BOTH
@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("method", "hard", "method: wanted linear or gaussian, got 'hard'"),
        ("sigma", 0.0, "sigma: wanted a finite number of at least .*, got 0.0"),
        ("sigma", float("inf"), "sigma: .* got inf"),
        ("min_score", -0.1, "min_score: wanted a finite number of at least 0, got -0.1"),
        ("min_score", float("nan"), "min_score: .* got nan"),
        ("iou_threshold", 1.5, r"iou_threshold: wanted a number in \[0, 1\], got 1.5"),
        ("threads", 0, "threads: wanted 1 to 256, got 0"),
        ("scores", f32(0.5, np.nan), "score nan at 1 is degenerate or not finite"),
        ("boxes", f32([0, 0, 1, 1], [0, 0, 0, 1]), "at 1 is degenerate"),
    ],
)
def test_wrong_arguments(argument: str, value: Any, message: str, impl: str) -> None:
    with pytest.raises(ValueError, match=message):
        soft_nms(**(GOOD | {argument: value}), impl=impl)


def test_an_unknown_implementation_is_refused() -> None:
    with pytest.raises(UsageError, match="soft_nms: no implementation 'avx2'"):
        soft_nms(**GOOD, impl="avx2")
