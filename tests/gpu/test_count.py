"""The Triton kernels of count: equal to the reference to the bit, interpreted or on a card."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tallymill.kernels import count as operation
from tallymill.kernels.count import gpu, reference
from tallymill.kernels.count.device import FAULTY
from tallymill.kernels.nms.device import FINE, MISPLACED, NOT_VALID, TOO_LONG

count: Any = operation  # tensors have no types here
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs hold nonsense until they are written."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(77))


def on_device(*arrays: NDArray[Any]) -> Any:
    return [torch.from_numpy(array).to(DEVICE) for array in arrays]


def to_numpy(*tensors: Any) -> list[NDArray[Any]]:
    return [tensor.cpu().numpy() for tensor in tensors]


def confidences(rng: np.random.Generator, n: int) -> NDArray[np.float32]:
    p = rng.uniform(0.05, 1, n).astype(np.float32)
    p[: n // 8] = rng.choice(np.float32([0.0, 0.05, 0.3, 0.5, 0.7, 1.0]), n // 8)
    return rng.permutation(p)


# One operation after another.


@pytest.mark.parametrize("tau", [0.93, 1.0, 1.15, 1.42, 20.0])
def test_calibrate(tau: float) -> None:
    p = confidences(np.random.default_rng(0), 5000)
    rho: Any = count.calibrate(*on_device(p), tau, impl="gpu")
    np.testing.assert_array_equal(rho.cpu().numpy(), reference.calibrate(p, tau))


def test_what_is_no_confidence_is_nan() -> None:
    p = np.array([-0.1, 1.1, np.nan, np.inf, 0.5], np.float32)
    rho: Any = count.calibrate(*on_device(p), 1.0, impl="gpu")
    assert rho.isnan().tolist() == [True] * 4 + [False]


def test_threshold() -> None:
    requested = np.arange(1, 2**16).astype(np.uint16)
    np.testing.assert_array_equal(gpu.threshold(*on_device(requested)).cpu().numpy(), reference.threshold(requested))
    assert gpu.threshold(*on_device(np.zeros(1, np.uint16))).isnan().all()


class Items:
    """Items with 0 to 60 boxes and 0 to 3 targets each."""

    def __init__(self, seed: int, items: int) -> None:
        rng = np.random.default_rng(seed)
        targets = rng.integers(0, 4, items)
        boxes = np.where(targets > 0, rng.integers(0, 61, items), 0)
        self.target_offsets = np.concatenate([[0], np.cumsum(targets)])
        self.item_offsets = np.concatenate([[0], np.cumsum(boxes)])
        self.confidence = confidences(rng, int(boxes.sum()))
        self.target = (rng.integers(0, 12, len(self.confidence)) % np.repeat(targets, boxes)).astype(np.uint8)
        self.requested = rng.integers(1, 101, int(targets.sum())).astype(np.uint16)
        self.thresholds = reference.threshold(self.requested)
        self.soft = rng.random(len(self.requested))
        self.hard = rng.integers(0, 9, len(self.requested))
        self.covering = rng.integers(0, 4, len(self.requested)).astype(np.uint8)

    def ragged(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        return self.confidence, self.target, self.item_offsets, self.target_offsets


@pytest.mark.parametrize(("soft", "hard"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("items", [1, 5, 128, 131])
def test_accumulate(items: int, soft: bool, hard: bool) -> None:
    case = Items(items, items)
    sums, counts = on_device(case.soft.copy(), case.hard.copy())
    outputs: Any = (sums if soft else None, counts if hard else None)
    limits: Any = on_device(case.thresholds)[0] if soft else None
    count.accumulate(*on_device(*case.ragged()), limits, 1.42, *outputs, impl="gpu")
    wanted_sums, wanted_counts = case.soft.copy(), case.hard.copy()
    reference.accumulate(*case.ragged(), case.thresholds, 1.42, wanted_sums, wanted_counts)
    np.testing.assert_array_equal(sums.cpu().numpy(), wanted_sums if soft else case.soft)
    np.testing.assert_array_equal(counts.cpu().numpy(), wanted_counts if hard else case.hard)


def test_sums_are_in_stored_order() -> None:
    p = np.array([1.0, *[2.0**-30] * 40, 0.7, 2.0**-25], np.float32)
    arguments = (p, np.zeros(len(p), np.uint8), np.array([0, len(p)]), np.array([0, 1]))
    sums, counts = on_device(np.full(1, 2.0**24 / 3), np.zeros(1, np.int64))
    count.accumulate(*on_device(*arguments, np.zeros(1)), 1.0, sums, counts, impl="gpu")
    wanted = np.full(1, 2.0**24 / 3), np.zeros(1, np.int64)
    reference.accumulate(*arguments, np.zeros(1), 1.0, *wanted)
    assert sums.tolist() == wanted[0].tolist()


def test_no_items() -> None:
    none = np.zeros(0, np.float32), np.zeros(0, np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64)
    sums, counts = on_device(np.zeros(0), np.zeros(0, np.int64))
    count.accumulate(*on_device(*none, np.zeros(0)), 1.0, sums, counts, impl="gpu")
    empty = on_device(np.zeros(0, np.uint8), np.zeros(0, np.uint16), np.zeros(1, np.int64))
    assert [len(values) for values in count.score(sums, counts, *empty, impl="gpu")] == [0] * 4


@pytest.mark.parametrize("fault", ["nan", "above", "target", "boxes fall", "targets fall", "threshold"])
def test_a_fault_keeps_to_its_item(fault: str) -> None:
    confidence, target = np.full(9, 0.75, np.float32), np.zeros(9, np.uint8)
    item_offsets, target_offsets = np.array([0, 3, 6, 9]), np.array([0, 2, 4, 6])
    thresholds = np.full(6, 0.3)
    if fault in ("nan", "above"):
        confidence[4] = np.nan if fault == "nan" else 1.5
    elif fault == "target":
        target[5] = 2
    elif fault == "boxes fall":
        item_offsets[1:3] = 6, 3
    elif fault == "targets fall":
        target_offsets[1:3] = 4, 2
    else:
        thresholds[2] = np.nan
    sums, counts = on_device(np.zeros(6), np.zeros(6, np.int64))
    arguments = on_device(confidence, target, item_offsets, target_offsets, thresholds)
    for _ in range(2):
        count.accumulate(*arguments, 1.0, sums, counts, impl="gpu")
    if fault == "threshold":
        assert sums.isnan().tolist() == [False, False, True, False, False, False]
        return
    if "fall" not in fault:
        assert sums.isnan().tolist() == [False, False, True, True, False, False]
        assert (counts < 0).tolist() == sums.isnan().tolist()
        assert sums[0] == 4.5
    rest = on_device(np.ones(6, np.uint8), np.ones(6, np.uint16))
    scores = to_numpy(*count.score(sums, counts, *rest, arguments[3], impl="gpu"))
    assert np.isnan(scores[2][1])
    assert np.isnan(scores[3][1])


@pytest.mark.parametrize("items", [1, 128, 300])
def test_score(items: int) -> None:
    case = Items(items + 7, items)
    arguments = case.soft * 90, case.hard, case.covering, case.requested, case.target_offsets
    found = to_numpy(*count.score(*on_device(*arguments), impl="gpu"))
    for one, other in zip(found, reference.score(*arguments), strict=True):
        np.testing.assert_array_equal(one, other)


def test_three_cats_and_two_dogs_asked_five_cats_seen() -> None:
    arguments = on_device(
        np.array([5.0, 0.0]), np.array([5, 0]), np.ones(2, np.uint8), np.array([3, 2], np.uint16), np.array([0, 2])
    )
    assert count.score(*arguments, impl="gpu").cw_nps.tolist() == [0.16666666666666674]


# Suppression and counting in one.


def proposals(seed: int, n: int, categories: int = 2) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    corner, size = rng.random((n, 2)) * 60, rng.random((n, 2)) * 30 + 5
    boxes = np.concatenate([corner, corner + size], axis=1).astype(np.float32)
    return boxes, confidences(rng, n * categories).reshape(n, categories)


def assert_tally_equal(
    boxes: Any, scores: Any, offsets: Any, requested: Any, thresholds: Any = None, tau: float = 1.42, **settings: Any
) -> None:
    limits = reference.threshold(requested.ravel()) if thresholds is None else thresholds.ravel()
    wanted = reference.tally(
        boxes, scores, offsets, limits, tau, settings.get("iou_threshold", 0.5), settings.get("floor", 0.05), 1
    )
    given = dict(zip(("requested", "thresholds"), (requested, thresholds), strict=True))
    tensors = {name: None if value is None else on_device(value)[0] for name, value in given.items()}
    found: Any = count.tally(*on_device(boxes, scores, offsets), **tensors, tau=tau, impl="gpu", **settings)
    found.check()
    np.testing.assert_array_equal(found.soft.cpu().numpy().ravel(), wanted[0])
    np.testing.assert_array_equal(found.hard.cpu().numpy().ravel(), wanted[1])


@pytest.mark.parametrize("tau", [0.93, 1.42, 2.0**21])
@pytest.mark.parametrize("floor", [0.0, 0.05, 0.6])
def test_tally(tau: float, floor: float) -> None:
    requested = np.array([[1, 5], [7, 12], [3, 100]], np.uint16)
    offsets = np.array([0, 20, 20, 60])
    assert_tally_equal(*proposals(1, 60), offsets, requested, tau=tau, floor=floor)
    assert_tally_equal(*proposals(2, 60), offsets, requested, tau=tau, floor=floor, iou_threshold=0.0)


@pytest.mark.parametrize("by_request", [True, False])
def test_every_block_of_tally(by_request: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for configuration in gpu.TALLY[by_request]:
        monkeypatch.setitem(gpu.TALLY, by_request, (configuration,))
        requested = np.array([[9]], np.uint16)
        thresholds = None if by_request else np.array([[0.45]])
        offsets = np.array([0, 40])
        assert_tally_equal(*proposals(3, 40, 1), offsets, requested if by_request else None, thresholds)


def test_thresholds_below_what_sums_exactly() -> None:
    boxes = np.array([[i * 10, 0, i * 10 + 5, 5] for i in range(40)], np.float32)
    scores = np.geomspace(1, 1e-7, 40).astype(np.float32).reshape(-1, 1)
    assert_tally_equal(boxes, scores, np.array([0, 40]), None, np.zeros((1, 1)), tau=1.0, floor=0.0)


def test_tally_of_nothing() -> None:
    boxes, scores = np.empty((0, 4), np.float32), np.empty((0, 2), np.float32)
    assert_tally_equal(boxes, scores, np.array([0, 0]), np.ones((1, 2), np.uint16))
    assert_tally_equal(boxes, scores, np.array([0]), np.ones((0, 2), np.uint16))


def test_tally_tells_its_faults() -> None:
    boxes, scores = proposals(4, 30)
    boxes[1, 2] = boxes[1, 0]
    scores[5, 0] = 1.5
    requested = np.array([[1, 2], [3, 4], [5, 6], [7, 0]], np.uint16)
    arguments = on_device(boxes, scores, np.array([0, 4, 8, 22, 30]), requested)
    found: Any = count.tally(*arguments, longest=8, impl="gpu")
    assert found.status.tolist() == [
        [NOT_VALID, NOT_VALID], [NOT_VALID, FINE], [TOO_LONG, TOO_LONG], [FINE, NOT_VALID]
    ]  # fmt: skip
    assert torch.equal(found.soft.isnan(), found.status != FINE)
    assert torch.equal(found.hard == FAULTY, found.status != FINE)
    with pytest.raises(ValueError, match="tally: segment 0 has a box that is degenerate"):
        found.check()
    misplaced = on_device(boxes, scores, np.array([0, 40, 8, 22, 30]), requested)
    assert count.tally(*misplaced, longest=8, impl="gpu").status[:2].tolist() == [[MISPLACED] * 2] * 2


def test_what_is_chosen_and_what_is_refused() -> None:
    assert count.select("auto", "cuda") == "gpu"
    sums, counts = on_device(np.zeros(2), np.zeros(2, np.int64))
    case = Items(0, 1)
    with pytest.raises(TypeError, match="soft, hard: wanted at least one"):
        count.accumulate(*on_device(*case.ragged()), None, 1.0, None, None, impl="gpu")
    ragged = on_device(np.zeros(1, np.float32), np.zeros(1, np.uint8), np.array([0, 1]), np.array([0, 2]))
    with pytest.raises(TypeError, match="thresholds: wanted a torch tensor"):
        count.accumulate(*ragged, None, 1.0, sums, counts, impl="gpu")
    with pytest.raises(ValueError, match="hard: wanted shape"):
        count.accumulate(*ragged, sums, 1.0, sums, counts[:1], impl="gpu")
    strided = on_device(np.zeros(4))[0][::2]
    with pytest.raises(ValueError, match="soft: wanted a contiguous"):
        count.accumulate(*ragged, sums, 1.0, strided, counts, impl="gpu")
    with pytest.raises(ValueError, match="tau"):
        count.calibrate(*on_device(np.zeros(1, np.float32)), 0.0, impl="gpu")
