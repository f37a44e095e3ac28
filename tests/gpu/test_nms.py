"""The Triton kernels of nms and soft_nms: equal to the reference, interpreted or on a card."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tallymill.errors import UsageError
from tallymill.kernels import nms as operation
from tallymill.kernels.nms import gpu, reference, select
from tallymill.kernels.nms.device import FINE, MISPLACED, NOT_VALID, TOO_LONG

nms: Any = operation.nms  # tensors have no types here
soft_nms: Any = operation.soft_nms
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Floats = NDArray[np.float32]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs hold nonsense until they are written."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(77))


def crowd(rng: np.random.Generator, n: int) -> Floats:
    """Boxes that overlap enough for long chains of suppression."""
    centre = rng.random((n, 2)) * 60
    half = rng.random((n, 2)) * 15 + 5
    return np.concatenate([centre - half, centre + half], axis=1).astype(np.float32)


def on_device(*arrays: NDArray[Any]) -> Any:
    return [torch.from_numpy(array).to(DEVICE) for array in arrays]


def assert_equal(
    boxes: Floats, scores: Floats, offsets: NDArray[np.int64], threshold: float = 0.5, **settings: Any
) -> None:
    kept: Any = nms(*on_device(boxes, scores, offsets), threshold, impl="gpu", **settings)
    least = settings.get("score_threshold", -np.inf)
    indices, ends = reference.nms(boxes, scores.reshape(len(boxes), -1), offsets, threshold, least, 1)
    kept.check()
    np.testing.assert_array_equal(kept.offsets.cpu().numpy(), ends)
    np.testing.assert_array_equal(kept.indices.cpu().numpy()[: len(indices)], indices)
    assert len(kept.indices) == scores.size
    assert (kept.indices[len(indices) :] == -1).all()
    assert kept.indices.device.type == DEVICE
    assert kept.indices.dtype == kept.offsets.dtype == torch.int64


def assert_soft_equal(boxes: Floats, scores: Floats, offsets: NDArray[np.int64], **settings: Any) -> None:
    kept: Any = soft_nms(*on_device(boxes, scores, offsets), impl="gpu", **settings)
    settings = {"method": "linear", "iou_threshold": 0.3, "sigma": 0.5, "min_score": 0.001, **settings}
    gaussian = settings.pop("method") == "gaussian"
    columns = scores.reshape(len(boxes), -1)
    indices, ends, lowered = reference.soft_nms(boxes, columns, offsets, gaussian, **settings, threads=1)
    kept.check()
    np.testing.assert_array_equal(kept.offsets.cpu().numpy(), ends)
    np.testing.assert_array_equal(kept.indices.cpu().numpy()[: len(indices)], indices)
    np.testing.assert_array_equal(kept.scores.cpu().numpy()[: len(indices)], lowered)
    assert (kept.indices[len(indices) :] == -1).all()
    assert kept.scores[len(indices) :].isnan().all()


@pytest.mark.parametrize("configuration", gpu.HARD, ids=lambda one: one.name)
def test_every_block_and_tile(configuration: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "HARD", (configuration,))
    rng = np.random.default_rng(3)
    scores = rng.choice(np.float32([0.1, 0.25, 0.5, 0.75]), 40)
    assert_equal(crowd(rng, 40), scores, np.array([0, 40], np.int64), 0.3)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 1.0])
def test_ties_and_empty_segments(threshold: float) -> None:
    rng = np.random.default_rng(3)
    scores = rng.choice(np.float32([0.1, 0.25, 0.5, 0.75]), (60, 2))
    assert_equal(crowd(rng, 60), scores, np.array([0, 0, 7, 60, 60], np.int64), threshold)


@pytest.mark.parametrize("n", [1, 2, 16, 17, 63, 64, 65, 128, 129, 300])
def test_sizes_about_the_edges_of_blocks(n: int) -> None:
    rng = np.random.default_rng(n)
    assert_equal(crowd(rng, n), rng.random(n, np.float32), np.array([0, n], np.int64))


@pytest.mark.parametrize("categories", [1, 2, 3])
def test_categories_that_share_boxes(categories: int) -> None:
    rng = np.random.default_rng(categories)
    scores = rng.integers(-3, 4, (40, categories)).astype(np.float32)
    assert_equal(crowd(rng, 40), scores, np.array([0, 11, 40], np.int64), score_threshold=-1)


def test_negative_zero_ties_with_zero() -> None:
    boxes = np.array([[i * 10, 0, i * 10 + 5, 5] for i in range(6)], np.float32)
    scores = np.array([0.5, -1, 0.5, 0.9, -0.0, 0.0], np.float32)
    assert_equal(boxes, scores, np.array([0, 6], np.int64))


@pytest.mark.parametrize("threshold", [0.3, 0.7, 0.5, np.nextafter(0.5, 0), 0.0, 1.0])
def test_thresholds_are_strict_and_float64(threshold: float) -> None:
    widths = np.array([10, 3, 7, 5], np.float32)
    boxes = np.stack([np.zeros(4), np.zeros(4), widths, np.ones(4)], axis=1).astype(np.float32)
    for other in range(1, 4):
        pair = boxes[[0, other]]
        assert_equal(pair, np.array([0.9, 0.8], np.float32), np.array([0, 2], np.int64), threshold)
    scores = np.array([0.3, 0.7, 0.5, 0.1], np.float32)
    assert_equal(boxes, scores, np.array([0, 4], np.int64), 1.0, score_threshold=threshold)


def test_long_chains_settle() -> None:
    x = np.arange(100, dtype=np.float32) * 4
    boxes = np.stack([x, x * 0, x + 10, x * 0 + 10], axis=1)
    for threshold in (0.1, 0.3, 0.5):
        assert_equal(boxes, np.linspace(0.9, 0.1, 100).astype(np.float32), np.array([0, 100], np.int64), threshold)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_areas_that_overflow_suppress_nothing() -> None:
    boxes = np.array([[0, 0, 3e30, 3e30], [0, 0, 3e30, 3e30], [-3e38, 0, 3e38, 1]], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        assert_equal(boxes, np.array([0.9, 0.8, 0.7], np.float32), np.array([0, 3], np.int64))


@pytest.mark.parametrize("offsets", [[0], [0, 0], [0, 0, 0]])
@pytest.mark.parametrize("categories", [0, 1, 2])
def test_no_boxes(offsets: list[int], categories: int) -> None:
    empty = np.empty((0, 4), np.float32)
    scores = np.empty((0, categories), np.float32)
    kept: Any = nms(*on_device(empty, scores, np.array(offsets)), impl="gpu")
    assert kept.offsets.tolist() == [0] * ((len(offsets) - 1) * categories + 1)
    assert len(kept.indices) == 0
    soft: Any = soft_nms(*on_device(empty, scores, np.array(offsets)), impl="gpu")
    assert soft.offsets.tolist() == kept.offsets.tolist()


def test_views_that_are_not_contiguous() -> None:
    rng = np.random.default_rng(9)
    boxes, scores = crowd(rng, 20), rng.random((20, 2), np.float32)
    arguments = on_device(np.repeat(boxes, 2, axis=0), np.repeat(scores, 2, axis=0), np.array([0, 20]))
    kept: Any = nms(arguments[0][::2], arguments[1][::2], arguments[2], impl="gpu")
    indices, _ = reference.nms(boxes, scores, np.array([0, 20]), 0.5, -np.inf, 1)
    np.testing.assert_array_equal(kept.indices.cpu().numpy()[: len(indices)], indices)


@pytest.mark.parametrize("run", [nms, soft_nms])
def test_a_fault_is_told_and_keeps_to_its_segment(run: Any) -> None:
    rng = np.random.default_rng(4)
    boxes, scores = crowd(rng, 30), rng.random((30, 2), np.float32)
    offsets = np.array([0, 4, 10, 13, 30], np.int64)
    boxes[5, 2] = np.nan
    scores[11, 1] = np.inf
    kept = run(*on_device(boxes, scores, offsets), longest=10, impl="gpu")
    expected = [FINE, FINE, NOT_VALID, NOT_VALID, FINE, NOT_VALID, TOO_LONG, TOO_LONG]
    assert kept.status.tolist() == expected
    counts = kept.offsets.diff().tolist()
    assert [count > 0 for count in counts] == [status == FINE for status in expected]
    with pytest.raises(ValueError, match="segment 2 has a box that is degenerate"):
        kept.check()


@pytest.mark.parametrize(
    ("offsets", "status"),
    [
        ([1, 10], [MISPLACED]),
        ([0, 9], [MISPLACED]),
        ([0, 11], [MISPLACED]),
        ([0, 6, 4, 10], [FINE, MISPLACED, FINE]),
        ([0, -1, 10], [MISPLACED, MISPLACED]),
    ],
)
def test_offsets_that_are_wrong_touch_no_other_memory(offsets: list[int], status: list[int]) -> None:
    rng = np.random.default_rng(4)
    arguments = on_device(crowd(rng, 10), rng.random(10, np.float32), np.array(offsets))
    kept: Any = nms(*arguments, impl="gpu")
    assert kept.status.tolist() == status


def test_degenerate_boxes_are_faults() -> None:
    for box in ([0, 0, 0, 5], [0, 5, 5, 5], [5, 0, 0, 5], [-np.inf, 0, 5, 5], [0, 0, 5, np.inf]):
        arguments = on_device(np.array([box], np.float32), np.ones(1, np.float32), np.array([0, 1]))
        assert nms(*arguments, impl="gpu").status.tolist() == [NOT_VALID]


@pytest.mark.parametrize("method", ["linear", "gaussian"])
@pytest.mark.parametrize("min_score", [0.0, 0.001, 0.3])
def test_soft_nms(method: str, min_score: float) -> None:
    rng = np.random.default_rng(6)
    scores = rng.choice(np.float32([-0.5, 0.0, 0.25, 0.5, 0.75]), (50, 2))
    offsets = np.array([0, 9, 9, 50], np.int64)
    assert_soft_equal(crowd(rng, 50), scores, offsets, method=method, min_score=min_score)
    assert_soft_equal(crowd(rng, 50), scores, offsets, method=method, iou_threshold=0.0, sigma=0.1)


@pytest.mark.parametrize("configurations", ["LINEAR", "GAUSSIAN"])
def test_every_block_of_soft_nms(configurations: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    for configuration in getattr(gpu, configurations):
        monkeypatch.setattr(gpu, configurations, (configuration,))
        n = min(configuration.constexprs["BLOCK"], 70)
        assert_soft_equal(
            crowd(rng, n), rng.random(n, np.float32), np.array([0, n], np.int64), method=configurations.lower()
        )


def test_what_is_chosen_and_what_is_refused() -> None:
    assert select("auto", "cuda") == "gpu"
    assert select("auto", "cpu") == "cpu"
    boxes, scores, offsets = on_device(
        np.zeros((4000, 4), np.float32), np.zeros(4000, np.float32), np.array([0, 2000, 4000])
    )
    with pytest.raises(UsageError, match=r"up to 2048 boxes(.|\n)*longest="):
        nms(boxes, scores, offsets, impl="gpu")
    with pytest.raises(TypeError, match="boxes: wanted a torch tensor"):
        nms(np.zeros((1, 4), np.float32), scores[:1], offsets[:1], impl="gpu")
    with pytest.raises(TypeError, match="scores: wanted dtype float32"):
        nms(boxes, scores.double(), offsets, impl="gpu")
    with pytest.raises(ValueError, match=r"scores: wanted shape \[4000, any\]"):
        nms(boxes, scores[:3], offsets, impl="gpu")
    with pytest.raises(ValueError, match="offsets: wanted offsets from 0"):
        nms(boxes, scores, offsets[:1], impl="gpu")
    with pytest.raises(ValueError, match="longest"):
        nms(boxes, scores, offsets, impl="gpu", longest=-1)


def test_tensors_on_a_cpu_are_refused_where_nothing_interprets(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(UsageError, match="wants tensors on a GPU"):
        nms(torch.zeros(1, 4), torch.zeros(1), torch.tensor([0, 1]), impl="gpu")
