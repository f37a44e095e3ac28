"""Matching: totals against SciPy and brute force, the same pairs on every path, and what is refused."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import linear_sum_assignment

from tallymill.errors import UsageError
from tallymill.kernels import paths
from tallymill.kernels.match import assign, match, reference, select

PATHS = [path for path in paths.PATHS if path in paths.supported()]
ALL = [*PATHS, "reference"]
INF, NAN = np.inf, np.nan


def f64(*rows: Any) -> np.ndarray:
    return np.array(rows, np.float64)


def boxes(*rows: Any) -> np.ndarray:
    return np.array(rows, np.float32).reshape(-1, 4)


def ends(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def pairs_of(column: np.ndarray) -> list[tuple[int, int]]:
    return [(row, int(j)) for row, j in enumerate(column) if j >= 0]


def brute(cost: np.ndarray) -> tuple[int, float]:
    """The most pairs of finite cost, and the least total of so many, by trying all."""
    rows, columns = cost.shape
    for pairs in range(min(rows, columns), 0, -1):
        totals = [
            sum(float(cost[i, j]) for i, j in zip(chosen, order, strict=True))
            for chosen in itertools.combinations(range(rows), pairs)
            for order in itertools.permutations(range(columns), pairs)
        ]
        if min(totals, default=INF) < INF:
            return pairs, min(totals)
    return 0, 0.0


def scipy_best(cost: np.ndarray) -> tuple[int, float]:
    """The same by SciPy, with a cost for forbidden pairs that only what cannot be avoided is worth."""
    finite = np.isfinite(cost)
    if not finite.any():
        return 0, 0.0
    scale = max(np.abs(cost[finite]).max(), 1e-30)
    rows, columns = linear_sum_assignment(np.where(finite, cost, 4 * scale * (min(cost.shape) + 1)))
    used = finite[rows, columns]
    return int(used.sum()), float(cost[rows[used], columns[used]].sum())


def check_valid(cost: np.ndarray, column: np.ndarray) -> None:
    used = column[column >= 0]
    assert len(np.unique(used)) == len(used), "a column was given twice"
    assert used.size == 0 or used.max() < cost.shape[1]
    assert np.isfinite(cost[column >= 0, used]).all(), "a forbidden pair"


# --- Small cases that broke other tools ------------------------------------------------------------------------------


@pytest.mark.parametrize("impl", ALL)
def test_forbidden_pairs_leave_a_row_unmatched(impl):
    found = assign(f64([INF, 1, INF], [INF, 3, INF], [2, INF, 3]), impl=impl)
    assert pairs_of(found.column) == [(0, 1), (2, 0)]
    assert (found.total, found.complete, found.undefined) == (3.0, False, 0)


@pytest.mark.parametrize("impl", ALL)
def test_all_nan_gives_no_pairs_and_says_so(impl):
    found = assign(np.full((3, 2), NAN), impl=impl)
    assert pairs_of(found.column) == []
    assert (found.total, found.complete, found.undefined) == (0.0, False, 6)


@pytest.mark.parametrize("impl", ALL)
def test_one_nan_is_a_forbidden_pair(impl):
    found = assign(f64([NAN, 5], [1, 2]), impl=impl)
    assert pairs_of(found.column) == [(0, 1), (1, 0)]
    assert (found.total, found.complete, found.undefined) == (6.0, True, 1)


@pytest.mark.parametrize("impl", ALL)
def test_a_degenerate_box_matches_nothing_not_even_itself(impl):
    flat = boxes([1, 1, 1, 5], [5, 5, 4, 9], [0, 0, 0, 0])
    found = match(flat, ends(0, 3), flat, ends(0, 3), impl=impl)
    assert found.partner.tolist() == [-1] * 3
    assert found.iou.tolist() == [0.0] * 3


@pytest.mark.parametrize("impl", ALL)
def test_the_most_similar_overall_not_one_by_one(impl):
    # The first pair is the most similar one, but taking it leaves the other two without a partner.
    a = boxes([0, 0, 10, 10], [0, 0, 8, 10])
    b = boxes([0, 0, 9.5, 10], [2, 0, 12, 10])
    found = match(a, ends(0, 2), b, ends(0, 2), impl=impl)
    assert found.partner.tolist() == [1, 0]
    np.testing.assert_allclose(found.iou, [80 / 120, 80 / 95], rtol=1e-6)


@pytest.mark.parametrize("impl", ALL)
def test_the_gate_acts_before_the_optimum(impl):
    # Without a gate two weak pairs beat one strong pair; with it they are worth nothing.
    a = boxes([0, 0, 10, 10], [6, 0, 16, 10])
    b = boxes([4, 0, 14, 10], [-5, 0, 5, 10])
    free = match(a, ends(0, 2), b, ends(0, 2), impl=impl)
    assert free.partner.tolist() == [1, 0]
    gated = match(a, ends(0, 2), b, ends(0, 2), gate=0.4, impl=impl)
    assert gated.partner.tolist() == [-1, 0]
    exact = float(gated.iou[1])
    assert match(a, ends(0, 2), b, ends(0, 2), gate=exact, impl=impl).partner[1] == 0
    assert match(a, ends(0, 2), b, ends(0, 2), gate=np.nextafter(exact, 1), impl=impl).partner[1] == -1


# --- Totals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("impl", ALL)
def test_against_all_assignments(impl):
    rng = np.random.default_rng(1)
    for _ in range(200):
        cost = rng.integers(-3, 4, rng.integers(0, 6, 2)).astype(np.float64)
        cost[rng.random(cost.shape) < rng.choice([0, 0.4, 0.8])] = INF
        found = assign(cost, impl=impl)
        check_valid(cost, found.column)
        assert (int((found.column >= 0).sum()), float(found.total)) == brute(cost)
        assert found.complete == (brute(cost)[0] == min(cost.shape))


def random_cost(rng: np.random.Generator) -> np.ndarray:
    rows, columns = rng.integers(0, 41, 2) if rng.random() < 0.2 else rng.integers(0, 15, 2)
    kind = rng.integers(0, 6)
    cost = rng.random((rows, columns))
    if kind == 1:
        cost = np.floor(cost * 4)
    elif kind == 2:
        cost = (cost - 0.5) * 1000
    elif kind == 3:
        cost = 1 - np.where(rng.random(cost.shape) < 0.15, cost, 0)
    elif kind == 4:
        cost[rng.random(cost.shape) < rng.random()] = INF
    elif kind == 5:
        cost = np.round(cost, 1) + rng.integers(0, 3, (rows, 1))
    return cost


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_totals_equal_scipy_on_a_hundred_thousand_matrices(dtype):
    rng = np.random.default_rng(2)
    problems = [random_cost(rng).astype(dtype) for _ in range(51_000)]
    rows, columns = (ends(*(p.shape[axis] for p in problems)) for axis in (0, 1))
    flat = np.concatenate([p.reshape(-1) for p in problems])
    found = [assign(flat, rows=rows, columns=columns, impl=path) for path in PATHS]
    for other in found[1:]:
        for ours, theirs in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    expected = [scipy_best(p.astype(np.float64)) for p in problems]
    pairs, totals = np.array([e[0] for e in expected]), np.array([e[1] for e in expected])
    starts = np.cumsum(rows)[:-1]
    assert [int((c >= 0).sum()) for c in np.split(found[0].column, starts)] == pairs.tolist()
    np.testing.assert_allclose(found[0].total, totals, rtol=1e-6, atol=1e-12)
    np.testing.assert_array_equal(found[0].complete, pairs == np.minimum(rows, columns))
    for problem, column in zip(problems, np.split(found[0].column, starts), strict=True):
        check_valid(problem, column)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [*((n, n) for n in range(1, 36)), (64, 65), (65, 64), (70, 257), (300, 300), (1, 90)])
def test_sizes_past_the_edge_of_a_vector(path, shape):
    cost = np.random.default_rng(sum(shape)).random(shape)
    found = assign(cost, impl=path)
    check_valid(cost, found.column)
    assert found.total == pytest.approx(scipy_best(cost)[1], rel=1e-12)
    assert found.complete


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "cost",
    [
        np.random.default_rng(0).random((9, 9)) * 1e300,
        np.random.default_rng(0).random((9, 9)) * 1.7e308,
        np.random.default_rng(0).random((9, 9)) * 1e-300,
        np.random.default_rng(0).integers(0, 9, (9, 9)) + 1e15,
        np.zeros((9, 9)),
        np.full((9, 12), -7.25),
        np.where(np.eye(20) > 0, 1e300, INF),
    ],
)
def test_costs_of_every_magnitude(path, cost):
    found = assign(cost.astype(np.float64), impl=path)
    pairs, total = brute_or_scipy(cost)
    assert (found.column >= 0).sum() == pairs
    with np.errstate(over="ignore"):
        assert found.total == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("path", PATHS)
def test_costs_of_mixed_magnitudes(path):
    """What decides may be 600 orders of magnitude under what is avoided."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        shape = rng.integers(1, 6, 2)
        cost = rng.random(shape) * 10.0 ** rng.integers(-300, 301, shape)
        assert assign(cost, impl=path).total == pytest.approx(brute(cost)[1], rel=1e-6, abs=0)


def brute_or_scipy(cost: np.ndarray) -> tuple[int, float]:
    scale = np.abs(cost[np.isfinite(cost)]).max() or 1.0
    pairs, total = scipy_best(cost / scale)
    with np.errstate(over="ignore"):
        return pairs, total * scale


@settings(max_examples=200, deadline=None)
@given(
    hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=7),
        elements=st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6), st.just(INF), st.just(NAN)),
    )
)
def test_any_matrix(cost):
    expected = reference.cheapest(np.where(np.isnan(cost), INF, cost))
    total = sum(float(cost[i, j]) for i, j in pairs_of(expected))
    for path in PATHS:
        found = assign(cost, impl=path)
        check_valid(np.where(np.isnan(cost), INF, cost), found.column)
        assert (found.column >= 0).sum() == (expected >= 0).sum()
        assert found.total == pytest.approx(total, rel=1e-9, abs=1e-6 * 1e-3)
        assert found.undefined == np.isnan(cost).sum()


@pytest.mark.parametrize("impl", ALL)
def test_maximize_is_the_other_sign(impl):
    rng = np.random.default_rng(3)
    gain = rng.integers(0, 50, (8, 11)).astype(np.float64)
    gain[0, :9] = -INF
    best, least = assign(gain, maximize=True, impl=impl), assign(-gain, impl=impl)
    assert best.total == -least.total
    assert best.complete


# --- Batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("impl", ALL)
def test_dense_ragged_and_single_agree(impl):
    cost = np.random.default_rng(4).random((6, 5, 7))
    dense = assign(cost, impl=impl)
    ragged = assign(cost.reshape(-1), rows=ends(*[5] * 6), columns=ends(*[7] * 6), impl=impl)
    assert dense.column.shape == (6, 5)
    np.testing.assert_array_equal(dense.column.reshape(-1), ragged.column)
    for problem in range(6):
        single = assign(cost[problem], impl=impl)
        np.testing.assert_array_equal(single.column, dense.column[problem])
        assert (single.total, single.complete) == (dense.total[problem], dense.complete[problem])


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (4, 0), (0, 3, 3), (2, 0, 3), (2, 3, 0), (0, 0, 0)])
def test_empty(impl, shape):
    found = assign(np.empty(shape), impl=impl)
    assert found.column.shape == shape[:-1]
    assert (found.column == -1).all()
    assert np.all(found.complete)
    assert np.all(np.asarray(found.total) == 0)


def test_threads_and_strides_change_nothing():
    rng = np.random.default_rng(5)
    cost = rng.integers(0, 9, (40, 12, 17)).astype(np.float64)
    one = assign(cost)
    for threads in (2, 3, 7):
        for ours, theirs in zip(one, assign(cost, threads=threads), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    wide = np.repeat(cost, 2, axis=2)[:, :, ::2]
    np.testing.assert_array_equal(one.column, assign(wide).column)


# --- Boxes ------------------------------------------------------------------------------------------------------------


def crowd(rng: np.random.Generator, size: int) -> np.ndarray:
    corner = rng.integers(0, 40, (size, 2))
    extent = rng.integers(0, 12, (size, 2))
    return np.concatenate([corner, corner + extent], axis=1).astype(np.float32)


def test_boxes_against_the_reference():
    rng = np.random.default_rng(6)
    sizes_a, sizes_b = rng.integers(0, 36, (2, 300))
    a, b = crowd(rng, sizes_a.sum()), crowd(rng, sizes_b.sum())
    of_a, of_b = (np.concatenate([[0], np.cumsum(s)]) for s in (sizes_a, sizes_b))
    for gate in (0.0, 0.3):
        expected = match(a, of_a, b, of_b, gate=gate, impl="reference")
        found = [match(a, of_a, b, of_b, gate=gate, impl=path) for path in PATHS]
        found.append(match(a, of_a, b, of_b, gate=gate, threads=3))
        for other in found[1:]:
            np.testing.assert_array_equal(found[0].partner, other.partner)
            np.testing.assert_array_equal(found[0].iou, other.iou)
        for s in range(300):
            here = slice(of_a[s], of_a[s + 1])
            partner = found[0].partner[here]
            used = partner[partner >= 0]
            assert len(np.unique(used)) == len(used)
            assert ((used >= of_b[s]) & (used < of_b[s + 1])).all()
            assert (found[0].iou[here][partner >= 0] >= max(gate, 1e-9)).all()
            total, best = (float(f.iou[here].astype(np.float64).sum()) for f in (found[0], expected))
            assert total == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (17, 33), (64, 65), (65, 64), (100, 100), (1, 70), (70, 1)])
def test_the_sum_of_iou_is_the_greatest(path, rows, columns):
    rng = np.random.default_rng(rows * columns)
    a = crowd(rng, rows)
    b = np.concatenate([a + rng.normal(0, 1, a.shape).astype(np.float32)] * (columns // rows + 1))[:columns]
    found = match(a, ends(0, rows), b, ends(0, columns), impl=path)
    similarity = reference.similarities(a, b, 0.0).astype(np.float64)
    i, j = linear_sum_assignment(similarity, maximize=True)
    assert found.iou.astype(np.float64).sum() == pytest.approx(similarity[i, j].sum(), rel=1e-6)


@pytest.mark.parametrize("impl", ALL)
def test_small_similarities_count_exactly(impl):
    """IoU of a millionth: one minus it would have lost most of its digits."""
    a = boxes([0, 0, 1000, 1000], [2000, 0, 3000, 1000])
    b = boxes([0, 0, 1.0, 1.1], [0, 0, 1.0, 1.0], [2000, 0, 2001, 1])
    found = match(a, ends(0, 2), b, ends(0, 3), impl=impl)
    assert found.partner.tolist() == [0, 2]


@pytest.mark.parametrize("impl", ALL)
def test_huge_boxes_match_nothing_where_their_area_overflows(impl):
    a = boxes([-3e38, -3e38, 3e38, 3e38])
    assert match(a, ends(0, 1), a, ends(0, 1), impl=impl).partner.tolist() == [-1]


# --- Refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"costs": [[1.0]]}, TypeError, "costs: wanted a NumPy array of float64, got list"),
        ({"costs": np.ones((2, 2), np.int64)}, TypeError, "costs: wanted dtype float64, got int64"),
        ({"costs": np.ones(3)}, ValueError, "or a flat array with rows and columns"),
        ({"costs": np.ones(3), "rows": ends(1)}, ValueError, "or a flat array with rows and columns"),
        ({"costs": np.ones(3), "rows": ends(2), "columns": ends(2)}, ValueError, r"wanted shape \[4\], got \[3\]"),
        ({"costs": np.ones(3), "rows": ends(-1), "columns": ends(-3)}, ValueError, "rows: .* at least 0, got -1 at 0"),
        ({"costs": np.ones(3), "rows": ends(2**62), "columns": ends(4)}, ValueError, "rows: wanted sizes below 2"),
        ({"costs": f64([1, -INF])}, ValueError, "problem 0 has a cost of -inf"),
        ({"costs": f64([1, INF]), "maximize": True}, ValueError, "problem 0 has a cost of inf"),
        ({"costs": np.ones((2, 2)), "threads": 0}, ValueError, "threads: wanted 1 to 256, got 0"),
    ],
)
def test_wrong_costs(impl, arguments, error, message):
    with pytest.raises(error, match=message):
        assign(**arguments, impl=impl)


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("boxes_a", boxes([0, 0, NAN, 1]), "boxes_a: .* at 0 is not finite"),
        ("boxes_b", boxes([0, 0, 1, 1], [0, 0, INF, 1]), "boxes_b: .* at 1 is not finite"),
        ("offsets_a", ends(0, 1, 1), "offsets_b: wanted as many sets as offsets_a, 2, got 1"),
        ("offsets_b", ends(0, 1), "offsets_b: wanted offsets that end at the number of boxes, 2, got 1"),
        ("gate", 1.5, "gate: wanted a number in"),
        ("gate", NAN, "gate: wanted a number in"),
        ("threads", 257, "threads: wanted 1 to 256, got 257"),
    ],
)
def test_wrong_boxes(impl, name, value, message):
    right = {
        "boxes_a": boxes([0, 0, 1, 1]),
        "offsets_a": ends(0, 1),
        "boxes_b": boxes([0, 0, 1, 1], [2, 2, 3, 3]),
        "offsets_b": ends(0, 2),
    }
    with pytest.raises(ValueError, match=message):
        match(**(right | {name: value}), impl=impl)


def test_select():
    assert [select(name) for name in ("auto", "cpu", "avx2", "reference")] == ["cpu", "cpu", "avx2", "reference"]
    with pytest.raises(UsageError, match="match: no implementation 'hungarian'"):
        select("hungarian")


def test_a_path_that_the_machine_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(paths, "supported", lambda: ("portable",))
    with pytest.raises(UsageError, match="match: this machine cannot run 'avx2'"):
        assign(np.ones((2, 2)), impl="avx2")


def test_a_long_and_a_square_problem_need_no_room_for_one_that_is_both():
    """1 x 1,000,000 beside 1,500 x 1,500: both together would take 12 GB of addresses."""
    script = """
import numpy as np
from tallymill.kernels.match import assign
def addresses(of):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(of))
costs = np.ones(1_000_000 + 1500 * 1500)
before = addresses("VmSize:")
found = assign(costs, rows=np.array([1, 1500]), columns=np.array([1_000_000, 1500]))
assert found.complete.all()
taken = addresses("VmPeak:") - before
assert taken < 1 << 30, taken
"""
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
