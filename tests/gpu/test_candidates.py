"""The Triton kernels of candidates: equal to the reference, interpreted or on a card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tallymill.errors import UsageError
from tallymill.kernels import candidates as operation
from tallymill.kernels.candidates import gpu, reference, select

candidates: Any = operation.candidates  # tensors have no types here
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = 1e-6  # of scores
Arguments = dict[str, Any]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and what is kept between the kernels hold nonsense until they are written."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(77))


def of(logits: Any, asked: list[list[list[int]]], floor: float = 0.5) -> Arguments:
    """Arguments of one call: for every window its requests, each the columns that answer it."""
    logits = np.array(logits, np.float32)
    spans = [span for window in asked for span in window]
    rng = np.random.default_rng(0)
    return {
        "logits": logits,
        "boxes": rng.random((*logits.shape[:2], 4), np.float32),
        "columns": np.array([column for span in spans for column in span], np.int32),
        "edges": np.cumsum([0, *map(len, spans)], dtype=np.int32),
        "requests": np.cumsum([0, *map(len, asked)], dtype=np.int32),
        "scale": rng.uniform(10, 1000, (len(logits), 4)).astype(np.float32),
        "floor": floor,
    }


def drawn(rng: np.random.Generator, windows: int, length: int, width: int, asked: int, floor: float) -> Arguments:
    """Random arguments; ``asked`` is the most requests of a window."""
    spans = [
        [rng.integers(0, width, rng.integers(1, 4)).tolist() for _ in range(rng.integers(0, asked + 1))]
        for _ in range(windows)
    ]
    return of(rng.normal(0, 2, (windows, length, width)), spans, floor)


def on_device(case: Arguments, kind: Any = torch.float32) -> Arguments:
    logits, boxes = (torch.from_numpy(case[name]).to(DEVICE) for name in ("logits", "boxes"))
    return {**case, "logits": logits.to(kind), "boxes": boxes, "impl": "gpu"}


def assert_same(found: Any, wanted: Any) -> None:
    kinds = (torch.float32, torch.float32, torch.int64, torch.bool, torch.bool, torch.int64)
    for one, other, kind in zip(found, wanted, kinds, strict=True):
        assert one.dtype == kind
        assert one.device.type == DEVICE
        assert tuple(one.shape) == other.shape
    exact = {name: getattr(found, name).cpu().numpy() for name in found._fields if name != "scores"}
    for name, value in exact.items():
        np.testing.assert_array_equal(value, getattr(wanted, name))
    np.testing.assert_allclose(found.scores.cpu().numpy(), wanted.scores, rtol=0, atol=CLOSE)


def assert_right(case: Arguments, kind: Any = torch.float32, **settings: Any) -> None:
    given = on_device(case, kind)
    exact = given["logits"].float().cpu().numpy()
    assert_same(candidates(**given, **settings), candidates(**{**case, "logits": exact}, impl="reference"))


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 700])
@pytest.mark.parametrize("floor", [0.0, 0.05, 0.5, 0.99, 1.0])
def test_lengths(length: int, floor: float) -> None:
    assert_right(drawn(np.random.default_rng(length), 3, length, 5, 3, floor))


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_types_of_logits(kind: Any) -> None:
    assert_right(drawn(np.random.default_rng(0), 4, 300, 5, 3, 0.3), kind)


def test_ties_and_many_requests() -> None:
    case = drawn(np.random.default_rng(1), 3, 20, 6, 40, 0.5)
    case["logits"] = np.round(case["logits"])
    assert_right(case)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 70])
def test_more_blocks_than_are_counted_at_once(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {name: replace(one, constexprs={"BLOCK": 16}) for name, one in gpu.FIND.items()}
    monkeypatch.setattr(gpu, "FIND", small)
    monkeypatch.setattr(gpu, "WRITE", replace(gpu.WRITE, constexprs={"BLOCK": 16}))
    monkeypatch.setattr(gpu, "BLOCK", 16)
    case = drawn(np.random.default_rng(length), 3, length, 4, 12, 0.3)
    case["logits"][1] = 1  # saturated
    assert_right(case)


@pytest.mark.parametrize(
    ("shape", "asked"),
    [((0, 3, 2), []), ((2, 0, 2), [[[0]], [[1], [0]]]), ((2, 3, 0), [[], []]), ((2, 3, 2), [[], []])],
)
@pytest.mark.parametrize("capacity", [None, 0, 5])
def test_nothing_is_found(shape: tuple[int, int, int], asked: list[list[list[int]]], capacity: int | None) -> None:
    found = candidates(**on_device(of(np.ones(shape), asked)), capacity=capacity)
    assert [len(part) for part in found[:3]] == [capacity or 0] * 3
    assert found.scores.isnan().all()
    assert found.finite.tolist() == [True] * shape[0]
    assert found.saturated.tolist() == [False] * shape[0]
    assert found.offsets.tolist() == [0] * (sum(map(len, asked)) + 1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [(1, 299, 2), (2, 0, 0)])
def test_a_window_that_is_not_finite_has_no_candidates(value: float, place: tuple[int, ...]) -> None:
    case = of(np.ones((4, 300, 4)), [[[0]], [[0], [1, 2, 3], [3]], [[1], [0]], [[0]]])
    case["logits"][place] = value
    assert_right(case)
    case = of(case["logits"], [[[0]], [[0], [1, 3]], [[1]], []])
    assert candidates(**on_device(case)).finite.all()  # what is not asked is not looked at


@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_minus_infinity_is_never_chosen(floor: float) -> None:
    case = of([[[-np.inf, -np.inf], [-np.inf, 1], [2, -np.inf]], [[-np.inf, 1]] * 3], [[[0, 1]], [[0], [1]]], floor)
    assert_right(case)


def test_saturated_is_when_every_box_answers_some_request() -> None:
    logits = np.full((5, 600, 2), -3.0)
    logits[0, :300, 0] = logits[0, 300:, 1] = 1  # each box by one of two requests
    logits[1, :, 0] = logits[1, :10, 1] = 1
    logits[2, :590, 0] = logits[2, :590, 1] = 1  # more candidates than boxes, but not of all
    logits[3, :, 0] = 1
    case = of(logits, [[[0], [1]], [[0], [1]], [[0], [1]], [[0]], [[1]]])
    found = candidates(**on_device(case))
    assert found.saturated.tolist() == [True, True, False, True, False]
    assert_right(case)


def test_the_floor_is_that_of_the_reference() -> None:
    """Logits about the floor, a step of a float apart: the same are chosen, and none has a score below the floor."""
    for floor in (1e-40, 0.05, 0.3, 0.7, 0.9999999, 1.0):
        least = np.float32(gpu.least_logit(floor))
        steps = [least]
        for _ in range(40):
            steps = [np.nextafter(steps[0], np.float32(-99)), *steps, np.nextafter(steps[-1], np.float32(99))]
        scores = reference.sigmoid(np.array(steps))
        assert [float(score) >= floor for score in scores] == [step >= least for step in steps]
        case = of(np.array(steps)[None, :, None], [[[0]]], floor)
        assert_right(case)
        assert (candidates(**on_device(case)).scores.double() >= floor).all()
    assert gpu.least_logit(0.0) == np.finfo(np.float32).min


@pytest.mark.parametrize("about", [0.05, 0.7])
@pytest.mark.parametrize("reached", [True, False])
def test_a_score_reaches_a_floor_that_only_float64_tells_from_it_where_that_is_less(
    about: float, reached: bool
) -> None:
    logit = np.array([np.log(about / (1 - about))], np.float32)
    score = float(reference.sigmoid(logit)[0])
    floor = float(np.nextafter(score, 0 if reached else 1))
    assert np.float32(floor) == score
    case = of(logit[None, :, None], [[[0]]], floor)
    for impl in ("reference", "cpu"):
        found = candidates(**case, impl=impl)
        assert (found.scores.tolist(), found.saturated.tolist()) == ([score] * reached, [reached])
    assert_right(case)


@pytest.mark.parametrize("spare", [-300, -1, 0, 1, 1000])
def test_room_that_the_caller_gives(spare: int) -> None:
    case = drawn(np.random.default_rng(5), 4, 300, 5, 3, 0.4)
    wanted = candidates(**case, impl="reference")
    there = len(wanted.scores)
    found = candidates(**on_device(case), capacity=there + spare)
    kept = min(there, there + spare)
    assert len(found.boxes) == len(found.scores) == len(found.request) == there + spare
    assert found.offsets.tolist() == wanted.offsets.tolist()  # of all, so that too little room is seen
    np.testing.assert_array_equal(found.boxes.cpu().numpy()[:kept], wanted.boxes[:kept])
    np.testing.assert_array_equal(found.request.cpu().numpy()[:kept], wanted.request[:kept])
    assert found.boxes[kept:].isnan().all()
    assert found.scores[kept:].isnan().all()
    assert (found.request[kept:] == -1).all()


def test_views_that_are_not_contiguous() -> None:
    case = drawn(np.random.default_rng(6), 3, 50, 6, 3, 0.4)
    given = on_device(case)
    given["logits"] = given["logits"].repeat_interleave(2, 2)[..., ::2]
    given["boxes"] = given["boxes"].repeat_interleave(2, 1)[:, ::2]
    assert_same(candidates(**given), candidates(**case, impl="reference"))


def test_tensors_of_the_cpu_are_taken_and_given() -> None:
    case = drawn(np.random.default_rng(7), 3, 50, 6, 3, 0.4)
    given = {name: torch.from_numpy(value) for name, value in case.items() if isinstance(value, np.ndarray)}
    for impl in ("auto", "reference"):
        found = candidates(**given, floor=0.4, impl=impl)
        for one, other in zip(found, candidates(**case, impl="reference"), strict=True):
            assert isinstance(one, torch.Tensor)
            np.testing.assert_array_equal(one.numpy(), other)


def test_what_is_chosen_and_what_is_refused() -> None:
    assert select("auto", "cuda") == "gpu"
    given = on_device(of(np.zeros((2, 3, 4)), [[[0]], [[1, 2]]]))
    for argument, value, error, message in (
        ("logits", given["logits"].double(), TypeError, "logits: wanted dtype float32, got float64"),
        ("logits", np.zeros((2, 3, 4), np.float32), TypeError, "logits: wanted a torch tensor"),
        ("boxes", given["boxes"][:, :2], ValueError, r"boxes: wanted shape \[2, 3, 4\]"),
        ("columns", np.array([0, 4, 1], np.int32), ValueError, r"columns: wanted values in \[0, 3\], got 4"),
        ("edges", np.array([0, 0, 3], np.int32), ValueError, "edges: request 0 has no column"),
        ("capacity", -1, ValueError, "capacity: wanted a number of candidates, got -1"),
    ):
        with pytest.raises(error, match=message):
            candidates(**{**given, argument: value})
    many = on_device(of(np.zeros((1, 2**15, 1)), [[[0]] * 2**16]))
    with pytest.raises(UsageError, match="65536 requests of 32768 boxes are more than"):
        candidates(**many)
    bfloat16 = torch.zeros((2, 3, 4), dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="logits: wanted a type that NumPy has"):
        candidates(**{**given, "logits": bfloat16, "impl": "reference"})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here that torch can use")
def test_what_is_asked_is_not_read_from_a_card() -> None:
    given = on_device(of(np.zeros((2, 3, 4)), [[[0]], [[1, 2]]]))
    with pytest.raises(TypeError, match="columns: wanted an array of the host, got a tensor on cuda:0"):
        candidates(**{**given, "columns": torch.tensor([0, 1, 2], dtype=torch.int32, device="cuda")})


def test_tensors_on_a_cpu_are_refused_where_nothing_interprets(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(UsageError, match="wants tensors on a GPU"):
        candidates(**{**of(np.zeros((2, 3, 4)), [[[0]], [[1, 2]]]), "logits": torch.zeros(2, 3, 4),
                      "boxes": torch.zeros(2, 3, 4), "impl": "gpu"})  # fmt: skip
