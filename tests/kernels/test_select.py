"""Selection: cpu against the reference, bit for bit, and both against cases worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tallymill.errors import UsageError
from tallymill.kernels import select as kernel
from tallymill.kernels.select import NonFiniteError, Selected, choose, cpu, reference, select, select_peaks

Floats = NDArray[np.float32]
BOTH = pytest.mark.parametrize("impl", ["cpu", "reference"])
# Around the block of 64 entries that the native pass looks at together.
LENGTHS = [0, 1, 2, 63, 64, 65, 127, 128, 129, 300]


def f32(*rows: Any) -> Floats:
    return np.array(rows, np.float32)


def i64(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def assert_equal(one: Selected, other: Selected) -> None:
    for a, b, dtype in zip(one, other, (np.int64, np.int64, np.float32), strict=True):
        assert a.dtype == b.dtype == dtype
        np.testing.assert_array_equal(a, b)
        assert a.tobytes() == b.tobytes()  # -0 is not 0


def assert_same_as_reference(scores: Floats, classes: NDArray[np.int64], floor: float, *width: int) -> Selected:
    run = select_peaks if width else select
    found = run(scores, classes, floor, *width)
    assert_equal(found, run(scores, classes, floor, *width, impl="reference"))
    return found


# Cases worked by hand.


@BOTH
def test_classes_come_in_the_order_asked_and_cells_ascending(impl: str) -> None:
    scores = f32([0.9, 0.1, 0.6], [0.0, 0.5, 0.5], [1, 1, 1])
    found = select(scores, i64(1, 0, 1), 0.5, impl=impl)
    assert found.request.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.cell.tolist() == [1, 2, 0, 2, 1, 2]
    np.testing.assert_array_equal(found.scores, f32(0.5, 0.5, 0.9, 0.6, 0.5, 0.5))


@BOTH
@pytest.mark.parametrize("floor", [0.05, 0.1, 0.3, 0.7, 0.0, 1.0, 0.5, 1e-46, -0.5, 1e300])
def test_the_floor_is_compared_in_float64(floor: float, impl: str) -> None:
    """float32(.7) lies below .7 and float32(.3) above .3."""
    with np.errstate(over="ignore"):
        near = np.minimum(np.float32(floor), np.finfo(np.float32).max)
    row = f32(np.nextafter(near, np.float32(-1)), near, np.nextafter(near, np.float32(2)))
    found = select(row[None], i64(0), floor, impl=impl)
    assert found.cell.tolist() == [i for i in range(3) if float(row[i]) >= floor]


@BOTH
def test_a_peak_is_what_no_neighbour_exceeds(impl: str) -> None:
    heat = f32(
        [0.9, 0.5, 0.1, 0.7],
        [0.5, 0.8, 0.1, 0.1],
        [0.1, 0.1, 0.1, 0.1],
        [0.6, 0.6, 0.1, 0.4],
    )
    found = select_peaks(heat.reshape(1, -1), i64(0), 0.4, 4, impl=impl)
    assert found.cell.tolist() == [0, 3, 12, 13, 15]  # 0.8 lies beside 0.9 by its corner; the equal ones both stay


@BOTH
def test_a_map_does_not_wrap_around(impl: str) -> None:
    heat = f32([0.1, 0.1, 0.9], [0.8, 0.1, 0.1], [0.1, 0.1, 0.7])
    assert select_peaks(heat.reshape(1, -1), i64(0), 0.5, 3, impl=impl).cell.tolist() == [2, 3, 8]
    assert select_peaks(heat.reshape(1, -1), i64(0), 0.5, 9, impl=impl).cell.tolist() == [2, 8]
    assert select_peaks(heat.reshape(1, -1), i64(0), 0.5, 1, impl=impl).cell.tolist() == [2, 8]


@BOTH
@pytest.mark.parametrize(("classes", "shape"), [([], (2, 6)), ([1], (2, 0)), ([], (0, 6)), ([0, 1], (2, 6))])
def test_nothing_is_found(classes: list[int], shape: tuple[int, int], impl: str) -> None:
    scores, asked = np.zeros(shape, np.float32), i64(*classes)
    for found in (select(scores, asked, 0.5, impl=impl), select_peaks(scores, asked, 0.5, 3, impl=impl)):
        assert [part.shape for part in found] == [(0,)] * 3
        assert [part.dtype for part in found] == [np.int64, np.int64, np.float32]


# Against the reference.


@pytest.mark.parametrize("cells", LENGTHS)
@pytest.mark.parametrize("levels", [2, 1 << 20])
@pytest.mark.parametrize("floor", [0.0, 0.5, 0.97])
def test_lengths_and_ties(cells: int, levels: int, floor: float) -> None:
    rng = np.random.default_rng(cells)
    scores = rng.integers(0, levels, (5, cells)).astype(np.float32) / np.float32(levels)
    assert_same_as_reference(scores, i64(4, 0, 4), floor)
    for width in {1, 3, 5, 16, max(cells, 1)}:
        if cells % width == 0:
            assert_same_as_reference(scores, i64(4, 0, 4), floor, width)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 20), st.sampled_from([3, 10, 1 << 20]))
def test_random_maps(seed: int, width: int, height: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    scores = np.floor(rng.random((4, height * width)) * levels).astype(np.float32) / np.float32(levels)
    classes, floor = rng.integers(0, 4, rng.integers(0, 6)), float(rng.choice([0.05, 0.5, *scores.ravel()[:1]]))
    assert_same_as_reference(scores, classes, floor)
    assert_same_as_reference(scores, classes, floor, width)


@pytest.mark.parametrize("count", [cpu.ROOM - 1, cpu.ROOM, cpu.ROOM + 1, 5 * cpu.ROOM])
def test_more_than_there_is_room_for(count: int) -> None:
    scores = np.zeros((2, 2 * count), np.float32)
    scores[1, ::2] = 0.5
    assert len(assert_same_as_reference(scores, i64(1), 0.5).cell) == count
    assert len(assert_same_as_reference(scores, i64(1), 0.5, 2 * count).cell) == count


# The arrays that come in.


def packed(scores: Floats) -> Floats:
    """The same numbers five bytes apart."""
    records = np.zeros(scores.shape, np.dtype([("skipped", "u1"), ("score", "f4")]))
    records["score"] = scores
    return records["score"]


def misaligned(scores: Floats) -> Floats:
    memory = np.zeros(scores.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(scores.shape)
    memory[...] = scores
    return memory


def read_only(scores: Floats) -> Floats:
    scores = scores.copy()
    scores.setflags(write=False)
    return scores


@BOTH
@pytest.mark.parametrize(
    "laid_out",
    [
        lambda scores: np.ascontiguousarray(scores.T).T,
        lambda scores: np.ascontiguousarray(scores[::-1])[::-1],
        lambda scores: np.ascontiguousarray(scores[:, ::-1])[:, ::-1],
        lambda scores: np.repeat(np.repeat(scores, 3, axis=1), 2, axis=0)[::2, ::3],
        packed,
        misaligned,
        read_only,
    ],
)
def test_any_strides(laid_out: Any, impl: str) -> None:
    plain = np.random.default_rng(0).random((6, 130)).astype(np.float32)
    scores = laid_out(plain)
    np.testing.assert_array_equal(scores, plain)
    for classes in (i64(5, 0, 3), i64(5, 9, 0, 9, 3)[::2], read_only(i64(5, 0, 3))):
        assert_equal(select(scores, classes, 0.6, impl=impl), select(plain, i64(5, 0, 3), 0.6))
        assert_equal(select_peaks(scores, classes, 0.6, 13, impl=impl), select_peaks(plain, i64(5, 0, 3), 0.6, 13))
    np.testing.assert_array_equal(scores, plain)


@BOTH
def test_one_value_seen_everywhere(impl: str) -> None:
    scores = np.broadcast_to(f32(0.5), (3, 200))
    assert select(scores, i64(2), 0.5, impl=impl).cell.tolist() == list(range(200))
    assert select_peaks(scores, i64(2), 0.5, 20, impl=impl).cell.tolist() == list(range(200))


def test_a_transposed_view_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_copy(*_: Any) -> None:
        raise AssertionError("went through the checks that copy")

    monkeypatch.setattr(cpu, "checked", no_copy)
    monkeypatch.setattr(cpu, "checked_map", no_copy)
    scores = np.random.default_rng(0).random((130, 6)).astype(np.float32)
    select(scores.T, i64(3), 0.5)
    select_peaks(scores.T, i64(3), 0.5, 13)


# What is refused.


@BOTH
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("cell", [0, 63, 64, 129])
def test_scores_that_are_not_finite(value: float, cell: int, impl: str) -> None:
    scores = np.zeros((3, 130), np.float32)
    scores[1, cell] = value
    message = rf"scores: wanted finite numbers, got -?{abs(value)} in row 1, cell {cell}"
    for one in (scores, np.ascontiguousarray(scores.T).T):
        with pytest.raises(NonFiniteError, match=message):
            select(one, i64(0, 1), 0.5, impl=impl)
        with pytest.raises(NonFiniteError, match=message):
            select_peaks(one, i64(1), 0.5, 13, impl=impl)
        assert len(select(one, i64(0, 2), 0.5, impl=impl).cell) == 0
        assert len(select_peaks(one, i64(0, 2), 0.5, 13, impl=impl).cell) == 0


def test_a_non_finite_score_is_a_value_error() -> None:
    assert issubclass(NonFiniteError, ValueError)


@BOTH
@pytest.mark.parametrize(
    ("argument", "value", "error", "message"),
    [
        ("scores", [[0.5]], TypeError, "scores: wanted a NumPy array of float32, got list"),
        ("scores", np.zeros((3, 6)), TypeError, "scores: wanted dtype float32, got float64"),
        ("scores", np.zeros((3, 6), ">f4"), TypeError, "scores: wanted dtype float32, got >f4"),
        ("scores", np.zeros(6, np.float32), ValueError, r"scores: wanted shape \[any, any\], got \[6\]"),
        ("classes", [0], TypeError, "classes: wanted a NumPy array of int64, got list"),
        ("classes", np.zeros(1, np.int32), TypeError, "classes: wanted dtype int64, got int32"),
        ("classes", np.zeros((1, 1), np.int64), ValueError, r"classes: wanted shape \[any\], got \[1, 1\]"),
        ("classes", i64(0, 3), ValueError, r"classes: wanted values in \[0, 2\], got 3 at 1"),
        ("classes", i64(-1), ValueError, r"classes: wanted values in \[0, 2\], got -1 at 0"),
        ("classes", i64(2**62), ValueError, r"classes: wanted values in \[0, 2\], got 4611686018427387904 at 0"),
        ("floor", np.nan, ValueError, "floor: wanted a finite number, got nan"),
        ("floor", np.inf, ValueError, "floor: wanted a finite number, got inf"),
        ("width", 0, ValueError, "width: wanted a positive divisor of the 6 cells, got 0"),
        ("width", -3, ValueError, "width: wanted a positive divisor of the 6 cells, got -3"),
        ("width", 4, ValueError, "width: wanted a positive divisor of the 6 cells, got 4"),
        ("impl", "fast", UsageError, "select: no implementation 'fast'"),
        ("impl", "gpu", UsageError, "select: no implementation 'gpu'"),
    ],
)
def test_wrong_arguments(argument: str, value: Any, error: type[Exception], message: str, impl: str) -> None:
    right = {"scores": np.zeros((3, 6), np.float32), "classes": i64(0), "floor": 0.5, "width": 3, "impl": impl}
    with pytest.raises(error, match=message):
        select_peaks(**{**right, argument: value})
    if argument != "width":
        del right["width"]
        with pytest.raises(error, match=message):
            select(**{**right, argument: value})


# Which implementation runs.


def test_choose() -> None:
    assert choose("auto") == choose("cpu") == choose("auto", "cuda") == "cpu"
    assert choose("reference") == "reference"
    with pytest.raises(UsageError, match="select: unknown device 'tpu'"):
        choose("auto", "tpu")


def test_a_named_implementation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> None:
        raise RuntimeError("the other one ran")

    scores = f32([0.5, 0.6])
    for broken, impl in ((cpu, "reference"), (reference, "cpu")):
        with monkeypatch.context() as patch:
            patch.setattr(broken, "select", gone)
            patch.setattr(broken, "select_peaks", gone)
            assert kernel.select(scores, i64(0), 0.5, impl=impl).cell.tolist() == [0, 1]
            assert kernel.select_peaks(scores, i64(0), 0.5, 2, impl=impl).cell.tolist() == [1]
