"""The Triton kernels of match and assign against SciPy: validity and total, interpreted or on a card."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from tallymill.errors import UsageError
from tallymill.kernels.match import gpu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORBIDDEN = 1e6  # what SciPy is given for infinity: far above all costs, and these stay exact beside it


def on_device(value: Any) -> Any:
    return torch.from_numpy(np.asarray(value)).to(DEVICE)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs hold nonsense until they are written."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(77))


def assign(costs: NDArray[Any], rows: Any = None, columns: Any = None, maximize: bool = False) -> list[NDArray[Any]]:
    height, width = (None if one is None else on_device(np.array(one, np.int64)) for one in (rows, columns))
    return [output.cpu().numpy() for output in gpu.assign(on_device(costs), height, width, maximize)]


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
    column, total, complete, nan = assign(costs, maximize=maximize)
    for problem in range(2):
        assert_best(costs[problem].astype(float), column[problem], total[problem], complete[problem], maximize)
    assert not nan.any()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("maximize", [False, True])
def test_ties_and_forbidden_pairs(share: float, maximize: bool) -> None:
    rng = np.random.default_rng(int(10 * share))
    n, m = 9, 8
    costs = rng.integers(-2, 3, (12, n, m)).astype(float)
    costs[rng.random(costs.shape) < share] = -np.inf if maximize else np.inf
    rows, columns = rng.integers(0, n + 1, 12), rng.integers(0, m + 1, 12)
    column, total, complete, nan = assign(costs, rows, columns, maximize)
    for problem, (height, width) in enumerate(zip(rows, columns, strict=True)):
        assert (column[problem, height:] == -1).all()
        one = costs[problem, :height, :width]
        assert_best(one, column[problem, :height], total[problem], complete[problem], maximize)
    assert not nan.any()


@pytest.mark.parametrize("transposed", [False, True])
def test_a_row_is_left_out_for_a_cheaper_one(transposed: bool) -> None:
    infinity = np.inf
    costs = np.array([[infinity, 1, infinity], [infinity, 3, infinity], [2, infinity, 3]])
    column, total, complete, nan = assign(costs.T[None] if transposed else costs[None])
    assert column.tolist() == [[2, 0, -1] if transposed else [1, -1, 0]]
    assert (total.tolist(), complete.tolist(), nan.tolist()) == ([3.0], [False], [False])


def test_the_one_let_in_first_gives_way_too() -> None:
    costs = np.array([[[np.inf, 3, np.inf], [np.inf, 1, np.inf], [2, np.inf, 3]]])
    assert assign(costs)[0].tolist() == [[-1, 1, 0]]


def test_nan_is_never_paired_and_is_told() -> None:
    costs = np.full((3, 2, 2), np.nan)
    costs[1, 0, 1] = 5.0
    costs[2] = 1.0
    column, total, complete, nan = assign(costs)
    assert column[:2].tolist() == [[-1, -1], [1, -1]]
    assert total.tolist() == [0.0, 5.0, 2.0]
    assert complete.tolist() == [False, False, True]
    assert nan.tolist() == [True, True, False]


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3), (2, 3, 0)])
def test_nothing_to_assign(shape: tuple[int, int, int]) -> None:
    column, total, complete, nan = assign(np.ones(shape))
    assert column.shape == shape[:2]
    assert (column == -1).all()
    assert (total == 0).all()
    assert complete.all()
    assert not nan.any()


def test_costs_in_a_view_and_out_of_line() -> None:
    costs = np.random.default_rng(0).normal(size=(2, 5, 4))
    column, *_ = gpu.assign(on_device(costs).transpose(1, 2), None, None, False)
    np.testing.assert_array_equal(column.cpu().numpy(), assign(costs.swapaxes(1, 2).copy())[0])


# Boxes to pairs.


def boxes(rng: np.random.Generator, n: int) -> NDArray[np.float32]:
    centre, half = rng.random((n, 2)) * 60, rng.random((n, 2)) * 10 + 4
    return np.concatenate([centre - half, centre + half], axis=1).astype(np.float32)


def ious(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    common = np.maximum(sides, np.float32(0)).prod(axis=2)
    area_a, area_b = ((one[:, 2:] - one[:, :2]).prod(axis=1) for one in (a, b))
    either = area_a[:, None] + area_b[None] - common
    return np.divide(common, either, out=np.zeros_like(common), where=common > 0)


def joined(sets: list[Any]) -> tuple[Any, Any]:
    together = np.concatenate([np.asarray(one, np.float32).reshape(-1, 4) for one in sets])
    return on_device(together), on_device(np.cumsum([0, *map(len, sets)]))


def match(a: list[Any], b: list[Any], gate: float, longest: int | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
    (boxes_a, offsets_a), (boxes_b, offsets_b) = joined(a), joined(b)
    partner, iou = gpu.match(boxes_a, offsets_a, boxes_b, offsets_b, gate, longest)
    return partner.cpu().numpy(), iou.cpu().numpy()


@pytest.mark.parametrize("gate", [0.0, 0.1, 0.3, 0.5, 1.0])
def test_pairs_of_boxes(gate: float) -> None:
    rng = np.random.default_rng(3)
    sizes = [(0, 0), (0, 4), (3, 0), (1, 1), (8, 8), (5, 12), (12, 5), (20, 33), (33, 20)]
    a, b = [boxes(rng, n) for n, _ in sizes], [boxes(rng, m) for _, m in sizes]
    partner, iou = match(a, b, gate)
    first = 0
    for one, other in zip(a, b, strict=True):
        own, similarity = slice(first, first + len(one)), ious(one, other)
        first += len(one)
        rows = np.flatnonzero(partner[own] >= 0)
        chosen = partner[own][rows]
        assert len(set(chosen.tolist())) == len(chosen)
        np.testing.assert_array_equal(iou[own][rows], similarity[rows, chosen])
        assert (iou[own][rows] >= gate).all()
        assert (iou[own][partner[own] < 0] == 0).all()
        kept = np.where(similarity >= gate, similarity, 0).astype(float)
        assert iou[own].sum(dtype=float) == pytest.approx(kept[linear_sum_assignment(kept, maximize=True)].sum())


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
        gpu.assign(torch.zeros(1, 2, 1025, device=DEVICE), None, None, False)
