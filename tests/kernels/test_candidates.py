"""Candidates: every implementation against the reference, bit for bit, and all against cases worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tallymill.errors import UsageError
from tallymill.kernels import candidates as operation
from tallymill.kernels.candidates import Found, candidates, cpu, reference, select

Arguments = dict[str, Any]
EACH = pytest.mark.parametrize("impl", [one for one in operation.IMPLEMENTATIONS if one != "gpu"])
TYPES = (np.float32, np.float32, np.int64, np.bool_, np.bool_, np.int64)


def f32(values: Any) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def i32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def of(logits: Any, asked: list[list[list[int]]], floor: float = 0.5) -> Arguments:
    """Arguments of one call: for every window its requests, each the columns that answer it."""
    logits = f32(logits)
    spans = [span for window in asked for span in window]
    return {
        "logits": logits,
        "boxes": np.random.default_rng(0).random((*logits.shape[:2], 4), np.float32),
        "columns": np.array([column for span in spans for column in span], np.int32),
        "edges": np.cumsum([0, *map(len, spans)], dtype=np.int32),
        "requests": np.cumsum([0, *map(len, asked)], dtype=np.int32),
        "scale": np.tile(f32([100, 50, 100, 50]), (len(logits), 1)),
        "floor": floor,
    }


def drawn(rng: np.random.Generator, windows: int, length: int, width: int, asked: int, floor: float = 0.5) -> Arguments:
    """Random arguments; ``asked`` is the most requests of a window."""
    spans = [
        [rng.integers(0, width, rng.integers(1, 5)).tolist() for _ in range(rng.integers(0, asked + 1))]
        for _ in range(windows)
    ]
    return of(rng.normal(0, 2, (windows, length, width)), spans, floor)


def assert_equal(one: Found, other: Found) -> None:
    for a, b, dtype in zip(one, other, TYPES, strict=True):
        assert a.dtype == b.dtype == dtype
        np.testing.assert_array_equal(a, b)
        assert a.tobytes() == b.tobytes()


def assert_right(arguments: Arguments, impl: str) -> Found:
    found = candidates(**arguments, impl=impl)
    assert_equal(found, candidates(**arguments, impl="reference"))
    return found


# Cases worked by hand.


@EACH
def test_one_window(impl: str) -> None:
    logits = [[[0, 9, -1], [-1, 9, -9], [-1, -9, 2]]]
    case = of(logits, [[[0, 2], [1]]])
    case["boxes"] = f32([[[0.5, 0.5, 0.2, 0.4], [0.1, 0.2, 0.2, 0.4], [0, 0, 1, 1]]])
    found = candidates(**case, impl=impl)
    assert found.request.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(found.scores, 1 / (1 + np.exp([0.0, -2, -9, -9])), rtol=1e-6)
    corners = [[40, 15, 60, 35], [-50, -25, 50, 25], [40, 15, 60, 35], [0, 0, 20, 20]]
    np.testing.assert_allclose(found.boxes, corners, atol=1e-5)
    assert found.offsets.tolist() == [0, 2, 4]
    assert found.saturated.tolist() == [True]
    assert found.finite.tolist() == [True]


@EACH
def test_windows_have_requests_and_scales_of_their_own(impl: str) -> None:
    case = of(np.ones((3, 1, 2)), [[[1]], [], [[0], [1], [0, 1]]])
    case["boxes"][:] = [0.5, 0.5, 1, 1]
    case["scale"] = f32([[2, 4, 2, 4], [0, 0, 0, 0], [3, 5, 7, 9]])
    found = candidates(**case, impl=impl)
    assert found.boxes.tolist() == [[0, 0, 2, 4], *[[0, 0, 7, 9]] * 3]
    assert found.request.tolist() == [0, 1, 2, 3]
    assert found.offsets.tolist() == [0, 1, 2, 3, 4]
    assert found.saturated.tolist() == [True, False, True]


@EACH
def test_saturated_is_when_every_box_answers_some_request(impl: str) -> None:
    logits = [[[1, -1], [-1, 1]], [[1, -1], [-1, -1]]]
    found = candidates(**of(logits, [[[0], [1]], [[0], [1]]]), impl=impl)
    assert found.saturated.tolist() == [True, False]
    assert found.offsets.tolist() == [0, 1, 2, 3, 3]
    assert candidates(**of(logits, [[[0]], [[0]]]), impl=impl).saturated.tolist() == [False, False]


@EACH
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_a_window_that_is_not_finite_has_no_candidates(value: float, impl: str) -> None:
    logits = np.ones((3, 70, 4))
    logits[1, 69, 2] = value
    found = assert_right(of(logits, [[[0]], [[0], [1, 2, 3]], [[0]]]), impl)
    assert found.finite.tolist() == [True, False, True]
    assert found.saturated.tolist() == [True, False, True]
    assert found.offsets.tolist() == [0, 70, 70, 70, 140]
    # A column that is not asked is not looked at.
    assert candidates(**of(logits, [[[0]], [[0], [1, 3]], [[0]]]), impl=impl).finite.all()


@EACH
@pytest.mark.parametrize("floor", [0.0, 1e-45, 0.5])
def test_minus_infinity_is_never_chosen(floor: float, impl: str) -> None:
    logits = [[[-np.inf, -np.inf], [-np.inf, 1], [2, -np.inf]]]
    found = assert_right(of(logits, [[[0, 1]]], floor), impl)
    assert found.finite.tolist() == [True]
    assert found.saturated.tolist() == [False]
    assert np.round(found.scores, 2).tolist() == [f32(0.73), f32(0.88)]


@EACH
@pytest.mark.parametrize("floor", [0.0, 1e-45, 1e-40, 1e-30, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9999999, 1 - 1e-12, 1.0])
def test_the_floor_is_compared_in_float64(floor: float, impl: str) -> None:
    """Logits about the floor, a step of a float apart."""
    with np.errstate(divide="ignore"):
        start = f32(np.clip(np.log(floor) - np.log1p(-floor), -200, 200))
    steps = [start]
    for _ in range(300):
        steps = [np.nextafter(steps[0], f32(-np.inf)), *steps, np.nextafter(steps[-1], f32(np.inf))]
    logits = np.concatenate([steps, f32([-200, -100, -50, 0, 50, 200])])
    found = assert_right(of(logits[None, :, None], [[[0]]], floor), impl)
    scores = reference.sigmoid(logits)
    assert found.scores.tolist() == [score for score in scores.tolist() if score >= floor]


@EACH
@pytest.mark.parametrize(
    ("shape", "asked"),
    [
        ((0, 3, 2), []),
        ((2, 0, 2), [[[0]], [[1], [0]]]),
        ((2, 3, 0), [[], []]),
        ((2, 3, 2), [[], []]),
        ((0, 0, 0), []),
    ],
)
def test_nothing_is_found(shape: tuple[int, int, int], asked: list[list[list[int]]], impl: str) -> None:
    found = assert_right(of(np.ones(shape), asked), impl)
    assert [part.shape for part in found[:3]] == [(0, 4), (0,), (0,)]
    assert found.saturated.tolist() == [False] * shape[0]
    assert found.finite.tolist() == [True] * shape[0]
    assert found.offsets.tolist() == [0] * (sum(map(len, asked)) + 1)


# Against the reference.


@EACH
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129, 900])
@pytest.mark.parametrize("floor", [0.0, 0.05, 0.5, 0.99])
def test_lengths(length: int, floor: float, impl: str) -> None:
    assert_right(drawn(np.random.default_rng(length), 3, length, 7, 4, floor), impl)


@EACH
def test_ties(impl: str) -> None:
    case = drawn(np.random.default_rng(0), 4, 100, 6, 3)
    case["logits"] = np.round(case["logits"] / 2)
    assert len(assert_right(case, impl).scores)


@EACH
@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 2**32 - 1),
    windows=st.integers(0, 5),
    length=st.integers(0, 70),
    floor=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0])),
    odd=st.sampled_from([0.0, 0.001, 0.1]),
)
def test_random(seed: int, windows: int, length: int, floor: float, odd: float, impl: str) -> None:
    rng = np.random.default_rng(seed)
    case = drawn(rng, windows, length, 5, 3, floor)
    strange = rng.choice(f32([np.nan, np.inf, -np.inf, -np.inf, 0, -0.0, 1e30, -1e30]), case["logits"].shape)
    case["logits"] = np.where(rng.random(strange.shape) < odd, strange, case["logits"])
    assert_right(case, impl)


@pytest.mark.parametrize("count", [cpu.ROOM - 1, cpu.ROOM, cpu.ROOM + 1, 3 * cpu.ROOM])
def test_more_than_there_is_room_for(count: int) -> None:
    logits = np.full((2, 2 * count, 2), -9.0)
    logits[1, ::2, 0] = 1
    assert len(assert_right(of(logits, [[[1]], [[0], [1]]]), "cpu").scores) == count


def test_a_fault_is_found_after_the_room_is_full() -> None:
    logits = np.zeros((3, cpu.ROOM, 2))
    logits[1, -1, 1] = np.nan
    assert assert_right(of(logits, [[[0]], [[0], [1]], [[1]]]), "cpu").finite.tolist() == [True, False, True]


@pytest.mark.parametrize("floor", [1e-30, 2e-30, 1e-9, 0.05, 0.5, 0.9, 0.999999, 1.0])
def test_no_logit_that_reaches_the_floor_lies_below_the_first_choice(floor: float) -> None:
    """Of the native pass, which compares logits; the reference compares scores."""
    least = np.float32(cpu.logit_below(floor))
    below = np.nextafter(least, np.float32(-np.inf))
    logits = np.concatenate([np.linspace(below - 1, below, 1000, dtype=np.float32), [below]])
    assert (reference.sigmoid(logits).astype(np.float64) < floor).all()


# The arrays that come in.


def test_nothing_is_copied_that_need_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_copy(*_: Any) -> None:
        raise AssertionError("went through the checks that copy")

    monkeypatch.setattr(cpu, "checked", no_copy)
    case = drawn(np.random.default_rng(3), 3, 130, 6, 3, 0.4)
    case["logits"] = np.ascontiguousarray(case["logits"].transpose(2, 0, 1)).transpose(1, 2, 0)
    case["boxes"] = np.repeat(case["boxes"], 2, axis=1)[:, ::2]
    assert_equal(candidates(**case), candidates(**case, impl="reference"))


def misaligned(values: NDArray[Any]) -> NDArray[Any]:
    memory = np.zeros(values.nbytes + 1, np.uint8)[1:].view(values.dtype).reshape(values.shape)
    memory[...] = values
    return memory


def read_only(values: NDArray[Any]) -> NDArray[Any]:
    values = values.copy()
    values.setflags(write=False)
    return values


@EACH
@pytest.mark.parametrize(
    "laid_out",
    [
        lambda values: np.ascontiguousarray(values.T).T,
        lambda values: np.ascontiguousarray(values[::-1])[::-1],
        lambda values: np.repeat(values, 3, axis=-1)[..., ::3],
        misaligned,
        read_only,
    ],
)
def test_any_strides(laid_out: Any, impl: str) -> None:
    case = drawn(np.random.default_rng(1), 3, 130, 6, 3)
    views = {name: laid_out(value) if isinstance(value, np.ndarray) else value for name, value in case.items()}
    assert_equal(candidates(**views, impl=impl), candidates(**case, impl="reference"))


@EACH
def test_a_logit_that_is_seen_everywhere(impl: str) -> None:
    case = of(np.zeros((2, 80, 3)), [[[0]], [[1, 2]]])
    case["logits"] = np.broadcast_to(f32(0.25), (2, 80, 3))
    assert len(assert_right(case, impl).scores) == 160


@EACH
def test_nothing_is_changed(impl: str) -> None:
    case = drawn(np.random.default_rng(2), 3, 50, 6, 3)
    before = {name: np.copy(value) for name, value in case.items()}
    candidates(**case, impl=impl)
    for name, value in case.items():
        np.testing.assert_array_equal(value, before[name])


@EACH
@pytest.mark.parametrize("nonsense", [1, 77])
def test_every_output_is_written(nonsense: int, impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = drawn(np.random.default_rng(4), 5, 100, 6, 3, 0.3)
    case["logits"][3, 5] = np.nan
    wanted = candidates(**case, impl="reference")
    empty = np.empty

    def poisoned(*settings: Any, **named: Any) -> NDArray[Any]:
        array = empty(*settings, **named)
        array.fill(nonsense)
        return array

    monkeypatch.setattr(np, "empty", poisoned)
    assert_equal(candidates(**case, impl=impl), wanted)


# What is refused.


@EACH
@pytest.mark.parametrize(
    ("argument", "value", "error", "message"),
    [
        ("logits", [[[0.5]]], TypeError, "logits: wanted a NumPy array of float32, got list"),
        ("logits", np.zeros((2, 3, 4)), TypeError, "logits: wanted dtype float32, got float64"),
        ("logits", np.zeros((2, 3), np.float32), ValueError, r"logits: wanted shape \[any, any, any\]"),
        ("boxes", np.zeros((2, 3, 4)), TypeError, "boxes: wanted dtype float32"),
        ("boxes", np.zeros((2, 2, 4), np.float32), ValueError, r"boxes: wanted shape \[2, 3, 4\], got \[2, 2, 4\]"),
        ("columns", np.array([0, 1, 2]), TypeError, "columns: wanted dtype int32, got int64"),
        ("columns", i32(0, 4, 2), ValueError, r"columns: wanted values in \[0, 3\], got 4 at 1"),
        ("columns", i32(0, 1, -1), ValueError, r"columns: wanted values in \[0, 3\], got -1 at 2"),
        ("edges", np.array([0, 1, 3]), TypeError, "edges: wanted dtype int32, got int64"),
        ("edges", i32(1, 2, 3), ValueError, "edges: wanted offsets that start at 0, got 1"),
        ("edges", i32(0, 1, 2), ValueError, "edges: wanted offsets that end at the number of columns, 3, got 2"),
        ("edges", i32(0, 4, 3), ValueError, "edges: wanted offsets that never fall, got 4, 3 at 1"),
        ("edges", i32(0, 0, 3), ValueError, "edges: request 0 has no column that answers it"),
        ("edges", i32(), ValueError, "edges: wanted offsets that start at 0, got no entries"),
        ("requests", np.array([0, 1, 2]), TypeError, "requests: wanted dtype int32, got int64"),
        ("requests", i32(0, 2), ValueError, r"requests: wanted shape \[3\], got \[2\]"),
        ("requests", i32(0, 1, 1), ValueError, "requests: wanted offsets that end at the number of requests, 2"),
        ("requests", i32(0, 3, 2), ValueError, "requests: wanted offsets that never fall"),
        ("requests", i32(-1, 1, 2), ValueError, "requests: wanted offsets that start at 0"),
        ("scale", np.zeros((2, 2), np.float32), ValueError, r"scale: wanted shape \[2, 4\]"),
        ("scale", np.zeros((2, 4)), TypeError, "scale: wanted dtype float32"),
        ("scale", np.full((2, 4), np.inf, np.float32), ValueError, "scale: wanted finite numbers"),
        ("floor", np.nan, ValueError, r"floor: wanted a number in \[0, 1\], got nan"),
        ("floor", 1.5, ValueError, r"floor: wanted a number in \[0, 1\], got 1.5"),
        ("floor", "0.5", TypeError, "floor: wanted a number, got str"),
        ("impl", "fast", UsageError, "candidates: no implementation 'fast'"),
    ],
)
def test_wrong_arguments(argument: str, value: Any, error: type[Exception], message: str, impl: str) -> None:
    case = of(np.zeros((2, 3, 4)), [[[0]], [[1, 2]]]) | {"impl": impl}
    with pytest.raises(error, match=message):
        candidates(**{**case, argument: value})


def test_select() -> None:
    assert select("auto") == select("cpu") == "cpu"
    assert select("auto", "cuda") == "gpu"
    assert select("reference") == "reference"
    with pytest.raises(UsageError, match="candidates: unknown device 'tpu'"):
        select("auto", "tpu")


def test_a_named_implementation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> None:
        raise RuntimeError("the other one ran")

    case = of([[[1, 1]]], [[[0]]])
    for broken, impl in ((cpu, "reference"), (reference, "cpu")):
        with monkeypatch.context() as patch:
            patch.setattr(broken, "candidates", gone)
            assert candidates(**case, impl=impl).offsets.tolist() == [0, 1]
