"""The fused call: equal, to the bit, to suppression followed by accumulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tallymill.kernels.count import Tally, accumulate, tally, threshold
from tallymill.kernels.nms import nms

BOTH = pytest.mark.parametrize("impl", ["cpu", "reference"])


def scene(seed: int, images: int = 12, most: int = 60, categories: int = 2) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    offsets = np.cumsum([0, *rng.integers(0, most, images)], dtype=np.int64)
    n = int(offsets[-1])
    corner = rng.integers(0, 60, (n, 2)).astype(np.float32)
    size = rng.integers(5, 30, (n, 2)).astype(np.float32)
    scores = rng.random((n, categories)).astype(np.float32)
    scores[::5] = rng.choice(np.array([0.0, 0.05, 0.3, 0.5, 0.7, 1.0], np.float32), (len(scores[::5]), categories))
    return {
        "boxes": np.concatenate([corner, corner + size], axis=1),
        "scores": scores,
        "offsets": offsets,
        "requested": rng.integers(1, 14, (images, categories)).astype(np.uint16),
    }


def two_calls(
    boxes: NDArray[Any],
    scores: NDArray[Any],
    offsets: NDArray[Any],
    thresholds: NDArray[Any],
    tau: float,
    floor: float = 0.05,
    iou_threshold: float = 0.5,
) -> Tally:
    categories = scores.shape[1]
    kept = nms(boxes, scores, offsets, iou_threshold, score_threshold=floor)
    lengths = np.diff(kept.offsets)
    category = np.repeat(np.arange(len(lengths)) % categories, lengths)
    confidence = scores[kept.indices, category]
    items = kept.offsets[::categories].copy()
    soft, hard = np.zeros(len(lengths)), np.zeros(len(lengths), np.int64)
    accumulate(confidence, category.astype(np.uint8), items, np.arange(0, len(lengths) + 1, categories), thresholds.ravel(), tau, soft, hard)  # fmt: skip  # noqa: E501
    return Tally(soft.reshape(-1, categories), hard.reshape(-1, categories))


def assert_same(one: Tally, other: Tally) -> None:
    np.testing.assert_array_equal(one.soft.view(np.uint64), other.soft.view(np.uint64))
    np.testing.assert_array_equal(one.hard, other.hard)
    assert one.soft.dtype == np.float64
    assert one.hard.dtype == np.int64


@BOTH
@pytest.mark.parametrize("tau", [0.01, 0.93, 1.0, 1.42, 2.0**21])
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_two_calls(seed: int, tau: float, impl: str) -> None:
    batch = scene(seed)
    limits = threshold(batch["requested"].ravel())
    for floor in (0.0, 0.05, 0.6):
        expected = two_calls(batch["boxes"], batch["scores"], batch["offsets"], limits, tau, floor)
        assert_same(tally(**batch, tau=tau, floor=floor, impl=impl), expected)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 5), st.floats(0, 1), st.floats(0, 1))
def test_random_batches(seed: int, tau: float, floor: float, iou_threshold: float) -> None:
    batch = scene(seed, images=4, most=90)
    limits = np.random.default_rng(seed).random(batch["requested"].shape)
    arguments: dict[str, Any] = {"tau": tau, "floor": floor, "iou_threshold": iou_threshold, "thresholds": limits}
    counts = tally(**batch, **arguments)
    assert_same(counts, tally(**batch, **arguments, impl="reference"))
    assert_same(counts, two_calls(batch["boxes"], batch["scores"], batch["offsets"], limits, tau, floor, iou_threshold))


@BOTH
def test_by_hand(impl: str) -> None:
    boxes = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [50, 0, 60, 10], [90, 0, 99, 9]], np.float32)
    scores = np.array([[0.75, 0.5], [0.875, 0.0], [0.5, 0.25], [0.25, 0.5]], np.float32)
    counts = tally(boxes, scores, np.array([0, 4]), np.array([[3, 10]], np.uint16), impl=impl)
    assert counts.soft.tolist() == [[0.875, 1.0]]
    assert counts.hard.tolist() == [[2, 2]]


@BOTH
def test_a_box_that_does_not_count_suppresses_none_that_does(impl: str) -> None:
    """Every box that it could suppress is lower still; one that is higher is there before it."""
    boxes = np.tile(np.array([[0, 0, 10, 10]], np.float32), (3, 1))
    scores = np.array([[0.4], [0.6], [0.3]], np.float32)
    counts = tally(boxes, scores, np.array([0, 3]), None, thresholds=np.array([[0.5]]), impl=impl)
    assert (counts.soft.tolist(), counts.hard.tolist()) == ([[np.float32(0.6)]], [[1]])


@BOTH
@pytest.mark.parametrize(("images", "categories"), [(0, 2), (3, 2), (2, 0)])
def test_nothing_to_count(images: int, categories: int, impl: str) -> None:
    counts = tally(
        np.empty((0, 4), np.float32),
        np.empty((0, categories), np.float32),
        np.zeros(images + 1, np.int64),
        np.ones((images, categories), np.uint16),
        impl=impl,
    )
    assert counts.soft.shape == counts.hard.shape == (images, categories)
    assert not counts.soft.any()


def test_threads_and_strided_inputs_give_the_same() -> None:
    batch = scene(7, images=40)
    expected = tally(**batch)
    for threads in (2, 256):
        assert_same(tally(**batch, threads=threads), expected)
    strided = {name: np.repeat(value, 2, axis=0)[::2] for name, value in batch.items()}
    assert_same(tally(**strided), expected)


@BOTH
@pytest.mark.parametrize(
    ("argument", "value", "error", "message"),
    [
        ("requested", None, TypeError, "requested: wanted a NumPy array of uint16, got NoneType"),
        ("requested", np.ones((2, 2), np.uint16), ValueError, r"requested: wanted shape \[12, 2\], got \[2, 2\]"),
        ("requested", np.zeros((12, 2), np.uint16), ValueError, "requested: wanted counts of at least 1, got 0 at 0"),
        ("thresholds", np.full((12, 2), 1.5), ValueError, r"thresholds: wanted values in \[0, 1\], got 1.5 at 0"),
        ("thresholds", np.full(24, 0.5), ValueError, r"thresholds: wanted shape \[12, 2\], got \[24\]"),
        ("tau", 0.0, ValueError, "tau: wanted a finite number above 0, got 0.0"),
        ("floor", -0.1, ValueError, r"floor: wanted a number in \[0, 1\], got -0.1"),
        ("iou_threshold", float("nan"), ValueError, "iou_threshold: .* got nan"),
        ("threads", 0, ValueError, "threads: wanted 1 to 256, got 0"),
    ],
)
def test_wrong_arguments(argument: str, value: Any, error: type[Exception], message: str, impl: str) -> None:
    with pytest.raises(error, match=message):
        tally(**(scene(1) | {argument: value}), impl=impl)


@BOTH
@pytest.mark.parametrize(("score", "message"), [(np.nan, "not finite"), (1.5, r"scores: wanted values in \[0, 1\]"), (-0.5, r"\[0, 1\]")])  # fmt: skip  # noqa: E501
def test_wrong_scores(score: float, message: str, impl: str) -> None:
    batch = scene(1)
    batch["scores"][3, 1] = score
    with pytest.raises(ValueError, match=message):
        tally(**batch, impl=impl)
