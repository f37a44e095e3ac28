"""The Triton kernels of match and assign against SciPy: validity and total, interpreted or on a card."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from tallymill.errors import UsageError
from tallymill.kernels import match as operation
from tallymill.kernels.match import Assignment
from tallymill.kernels.match.reference import similarities

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORBIDDEN = 1e6  # what SciPy is given for infinity: far above all costs, and these stay exact beside it


def on_device(value: Any) -> Any:
    return torch.from_numpy(np.asarray(value)).to(DEVICE)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs hold nonsense until they are written."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(77))


def assign(costs: NDArray[Any], maximize: bool = False, **sizes: Any) -> Assignment:
    found: Any = operation.assign(on_device(costs), maximize=maximize, impl="gpu", **sizes)
    return Assignment(*(values.cpu().numpy() for values in found))


def best(costs: NDArray[Any], maximize: bool = False) -> tuple[int, float]:
    """How many pairs, of those that are allowed, and their total, by SciPy."""
    if not costs.size:
        return 0, 0.0
    sign = -1 if maximize else 1
    allowed = np.isfinite(costs)
    rows, columns = linear_sum_assignment(np.where(allowed, sign * costs, FORBIDDEN))
    paired = allowed[rows, columns]
    return int(paired.sum()), float(costs[rows, columns][paired].sum())


def assert_best(
    costs: NDArray[Any], column: NDArray[Any], total: float, complete: bool, maximize: bool = False
) -> None:
    rows = np.flatnonzero(column >= 0)
    chosen = column[rows]
    pairs, wanted = best(costs, maximize)
    assert len(set(chosen.tolist())) == len(chosen) == pairs
    assert np.isfinite(costs[rows, chosen]).all()
    assert float(costs[rows, chosen].sum()) == pytest.approx(wanted, rel=1e-9, abs=1e-9)
    assert total == pytest.approx(wanted, rel=1e-9, abs=1e-9)
    assert complete == (pairs == min(costs.shape))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (7, 7), (11, 6), (32, 32), (33, 30), (4, 65)])
def test_random_costs(n: int, m: int, maximize: bool, dtype: Any) -> None:
    costs = np.random.default_rng([n, m]).normal(size=(2, n, m)).astype(dtype)
    column, total, complete, undefined = assign(costs, maximize)
    for problem in range(2):
        assert_best(costs[problem].astype(float), column[problem], total[problem], complete[problem], maximize)
    assert not undefined.any()
    alone = assign(costs[1], maximize)
    assert [values.shape for values in alone] == [(n,), (), (), ()]
    np.testing.assert_array_equal(alone.column, column[1])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("maximize", [False, True])
def test_ties_and_forbidden_pairs(share: float, maximize: bool) -> None:
    rng = np.random.default_rng(int(10 * share))
    rows, columns = rng.integers(0, 10, 12), rng.integers(0, 9, 12)
    problems = [rng.integers(-2, 3, size).astype(float) for size in zip(rows, columns, strict=True)]
    for costs in problems:
        costs[rng.random(costs.shape) < share] = -np.inf if maximize else np.inf
    flat = np.concatenate([costs.ravel() for costs in problems])
    column, total, complete, undefined = assign(flat, maximize, rows=rows, columns=columns)
    first = 0
    for problem, costs in enumerate(problems):
        assert_best(costs, column[first : first + len(costs)], total[problem], complete[problem], maximize)
        first += len(costs)
    assert len(column) == first
    assert not undefined.any()


@pytest.mark.parametrize("transposed", [False, True])
def test_a_row_is_left_out_for_a_cheaper_one(transposed: bool) -> None:
    infinity = np.inf
    costs = np.array([[infinity, 1, infinity], [infinity, 3, infinity], [2, infinity, 3]])
    column, total, complete, undefined = assign(costs.T[None] if transposed else costs[None])
    assert column.tolist() == [[2, 0, -1] if transposed else [1, -1, 0]]
    assert (total.tolist(), complete.tolist(), undefined.tolist()) == ([3.0], [False], [0])


def test_the_one_let_in_first_gives_way_too() -> None:
    costs = np.array([[[np.inf, 3, np.inf], [np.inf, 1, np.inf], [2, np.inf, 3]]])
    assert assign(costs)[0].tolist() == [[-1, 1, 0]]


def test_nan_is_never_paired_and_is_told() -> None:
    costs = np.full((3, 2, 2), np.nan)
    costs[1, 0, 1] = 5.0
    costs[2] = 1.0
    column, total, complete, undefined = assign(costs)
    assert column[:2].tolist() == [[-1, -1], [1, -1]]
    assert total.tolist() == [0.0, 5.0, 2.0]
    assert complete.tolist() == [False, False, True]
    assert undefined.tolist() == [4, 3, 0]


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3), (2, 3, 0)])
def test_nothing_to_assign(shape: tuple[int, int, int]) -> None:
    column, total, complete, undefined = assign(np.ones(shape))
    assert column.shape == shape[:2]
    assert (column == -1).all()
    assert (total == 0).all()
    assert complete.all()
    assert not undefined.any()


def test_costs_in_a_view_and_out_of_line() -> None:
    costs = np.random.default_rng(0).normal(size=(2, 5, 4))
    strided: Any = operation.assign(on_device(costs).transpose(1, 2), impl="gpu")
    np.testing.assert_array_equal(strided.column.cpu().numpy(), assign(costs.swapaxes(1, 2).copy()).column)
    shifted: Any = operation.assign(on_device(costs.ravel())[1:].reshape(1, 3, 13), impl="gpu")
    np.testing.assert_array_equal(shifted.column.cpu().numpy(), assign(costs.ravel()[1:].reshape(1, 3, 13)).column)


def test_infinity_of_the_wrong_sign_is_no_pair() -> None:
    column, _, complete, undefined = assign(np.array([[[-np.inf, 1.0], [2.0, np.inf]]]))
    assert (column.tolist(), complete.tolist(), undefined.tolist()) == ([[1, 0]], [True], [1])


# Boxes to pairs.


def boxes(rng: np.random.Generator, n: int) -> NDArray[np.float32]:
    centre, half = rng.random((n, 2)) * 60, rng.random((n, 2)) * 10 + 4
    return np.concatenate([centre - half, centre + half], axis=1).astype(np.float32)


def joined(sets: list[Any]) -> tuple[Any, Any]:
    together = np.concatenate([np.asarray(one, np.float32).reshape(-1, 4) for one in sets])
    return on_device(together), on_device(np.cumsum([0, *map(len, sets)]))


def match(a: list[Any], b: list[Any], gate: float, longest: int | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
    (boxes_a, offsets_a), (boxes_b, offsets_b) = joined(a), joined(b)
    found: Any = operation.match(boxes_a, offsets_a, boxes_b, offsets_b, gate=gate, longest=longest, impl="gpu")
    partner, iou = found
    return partner.cpu().numpy(), iou.cpu().numpy()


@pytest.mark.parametrize("gate", [0.0, 0.1, 0.3, 0.5, 1.0])
def test_pairs_of_boxes(gate: float) -> None:
    rng = np.random.default_rng(3)
    sizes = [(0, 0), (0, 4), (3, 0), (1, 1), (8, 8), (5, 12), (12, 5), (20, 33), (33, 20)]
    a, b = [boxes(rng, n) for n, _ in sizes], [boxes(rng, m) for _, m in sizes]
    partner, iou = match(a, b, gate)
    first = first_b = 0
    for one, other in zip(a, b, strict=True):
        own, similarity = slice(first, first + len(one)), similarities(one, other, gate)
        rows = np.flatnonzero(partner[own] >= 0)
        chosen = partner[own][rows] - first_b
        first, first_b = first + len(one), first_b + len(other)
        assert len(set(chosen.tolist())) == len(chosen)
        np.testing.assert_array_equal(iou[own][rows], similarity[rows, chosen])
        assert (iou[own][rows] > 0).all()
        assert (iou[own][partner[own] < 0] == 0).all()
        wanted = similarity.astype(float)[linear_sum_assignment(similarity, maximize=True)].sum()
        assert iou[own].sum(dtype=float) == pytest.approx(wanted)


def test_degenerate_boxes_are_alone() -> None:
    point = [[3, 3, 3, 3]]
    partner, iou = match([point, point], [point, [[0, 0, 9, 9]]], 0.0)
    assert (partner.tolist(), iou.tolist()) == ([-1, -1], [0, 0])


def test_problems_longer_than_said_are_marked() -> None:
    rng = np.random.default_rng(5)
    a, b = [boxes(rng, 40), boxes(rng, 6)], [boxes(rng, 2), boxes(rng, 30)]
    partner, iou = match(a, b, 0.3, longest=30)
    assert np.isnan(iou[:40]).all()
    assert (partner[:40] == -1).all()
    assert np.isfinite(iou[40:]).all()


def test_the_length_must_be_told_where_it_could_be_too_long() -> None:
    many = np.tile(np.float32([[0, 0, 1, 1]]), (1025, 1))
    with pytest.raises(UsageError, match="at most 1024"):
        match([many], [many[:1]], 0.5)
    partner, _ = match([many[:32]] * 33, [many[:0]] * 32 + [many[:1]], 0.5, longest=32)
    assert np.flatnonzero(partner == 0).tolist() == [32 * 32]


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 1024"):
        operation.assign(torch.zeros(1, 2, 1025, device=DEVICE), impl="gpu")


def test_what_is_refused() -> None:
    assert operation.select("auto", "cuda") == operation.select("gpu") == "gpu"
    costs = torch.zeros(6, device=DEVICE)
    sizes = {"rows": np.array([2]), "columns": np.array([3])}
    for wrong, kind, message in [
        ({"costs": costs.half(), **sizes}, TypeError, "costs: wanted dtype float64, got float16"),
        ({"costs": np.zeros((2, 3))}, TypeError, "costs: wanted a torch tensor"),
        ({"costs": costs, **sizes, "rows": np.array([1])}, ValueError, r"costs: wanted shape \[3\], got \[6\]"),
        ({"costs": costs, "rows": np.array([1])}, ValueError, "wanted both, or neither"),
        ({"costs": costs}, ValueError, "costs: wanted shape"),
    ]:
        with pytest.raises(kind, match=message):
            operation.assign(**wrong, impl="gpu")
    boxes, offsets = torch.zeros(2, 4, device=DEVICE), torch.tensor([0, 2], device=DEVICE)
    for given, message in [
        ((boxes, offsets, boxes, offsets[:1]), r"offsets_b: wanted shape \[2\]"),
        ((boxes[:, :3], offsets, boxes, offsets), "boxes_a: wanted shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            operation.match(*given, impl="gpu")
    with pytest.raises(ValueError, match="gate"):
        operation.match(boxes, offsets, boxes, offsets, gate=1.5, impl="gpu")
