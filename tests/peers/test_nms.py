"""NMS against torchvision, index for index, on segments full of ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from numpy.typing import NDArray

from tallymill.bench.kernels import nms as bench
from tallymill.kernels import paths
from tallymill.kernels.nms import nms

SEGMENTS = 12_000
# Attained exactly by boxes of small integer sides, and their neighbours in float32 and float64.
THRESHOLDS = (0.0, 0.1, 0.25, 0.3, 1 / 3, 0.4, 0.5, 0.6, 2 / 3, 0.7, 0.75, 1.0, float(np.float32(0.3)), float(np.float32(0.7)), float(np.nextafter(0.5, 0)))  # fmt: skip  # noqa: E501


def quantised(seed: int, segments: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Boxes on a grid of few cells and scores of few levels, up to 70 a segment, now and then 300."""
    rng = np.random.default_rng(seed)
    lengths = np.where(rng.random(segments) < 0.01, 300, rng.integers(0, 71, segments))
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    corner = rng.integers(0, 16, (int(offsets[-1]), 2))
    boxes = np.concatenate([corner, corner + rng.integers(1, 11, corner.shape)], axis=1).astype(np.float32)
    levels = np.repeat(rng.choice([1, 2, 8, 64], segments), lengths)
    return boxes, ((rng.random(len(boxes)) * levels).astype(int) / levels).astype(np.float32), offsets


def torchvision_keeps(boxes: Any, scores: Any, offsets: Any, threshold: float) -> list[NDArray[np.int64]]:
    keep = []
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        indices = torchvision.ops.nms(
            torch.from_numpy(boxes[start:stop]), torch.from_numpy(scores[start:stop]), threshold
        )
        keep.append(start + indices.numpy())
    return keep


def test_segments_full_of_ties() -> None:
    each = SEGMENTS // len(THRESHOLDS)
    for seed, threshold in enumerate(THRESHOLDS):
        boxes, scores, offsets = quantised(seed, each)
        expected = np.concatenate(torchvision_keeps(boxes, scores, offsets, threshold))
        for path in paths.supported():
            np.testing.assert_array_equal(nms(boxes, scores, offsets, threshold, impl=path).indices, expected)


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.7])
def test_segments_of_floats(threshold: float) -> None:
    rng = np.random.default_rng(1)
    offsets = np.arange(0, 40_001, 80)
    centre, half = rng.random((40_000, 2)) * 100, rng.random((40_000, 2)) * 20 + 2
    boxes = np.concatenate([centre - half, centre + half], axis=1).astype(np.float32)
    scores = rng.standard_normal(40_000).astype(np.float32)
    expected = np.concatenate(torchvision_keeps(boxes, scores, offsets, threshold))
    for path in paths.supported():
        np.testing.assert_array_equal(nms(boxes, scores, offsets, threshold, impl=path).indices, expected)


def test_categories_and_a_score_threshold() -> None:
    boxes, _, offsets = quantised(99, 300)
    scores = (np.random.default_rng(2).integers(0, 20, (len(boxes), 3)) / 20).astype(np.float32)
    expected = []
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        for column in scores[start:stop].T:
            reaching = np.flatnonzero(column >= np.float32(0.25))
            chosen = torch.from_numpy(boxes[start:stop][reaching]), torch.from_numpy(column[reaching])
            expected.append(start + reaching[torchvision.ops.nms(*chosen, 0.5).numpy()])
    for path in paths.supported():
        kept = nms(boxes, scores, offsets, score_threshold=0.25, impl=path)
        np.testing.assert_array_equal(kept.indices, np.concatenate(expected))
        np.testing.assert_array_equal(np.diff(kept.offsets), [len(part) for part in expected])


def test_the_benchmark_agrees_with_its_peers() -> None:
    result = bench.run(cases=((32, 100),), rounds=1)
    assert [row["name"] for row in result["cases"][0]["segments"][: len(paths.supported())]] == list(paths.supported())
    assert "torchvision" in bench.table(result)
