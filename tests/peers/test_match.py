"""Matching beside the libraries that people trust with it."""

import numpy as np
import pytest
from pycocotools import mask as coco
from scipy.optimize import linear_sum_assignment

from tallymill.bench.kernels import match as bench
from tallymill.errors import TallymillError
from tallymill.kernels import paths
from tallymill.kernels.match import assign, match


@pytest.mark.parametrize("path", paths.supported())
@pytest.mark.parametrize(("rows", "columns"), [(20, 20), (30, 50), (50, 30), (100, 100)])
def test_boxes_against_pycocotools_and_scipy(path, rows, columns):
    a, b = bench.crowds(40, rows, columns)
    ends_a, ends_b = np.arange(41) * rows, np.arange(41) * columns
    found = match(a.reshape(-1, 4), ends_a, b.reshape(-1, 4), ends_b, impl=path)
    for problem in range(40):
        one, other = (boxes[problem].astype(np.float64) for boxes in (a, b))
        for boxes in (one, other):
            boxes[:, 2:] -= boxes[:, :2]
        iou = coco.iou(one, other, [0] * columns)
        best = iou[linear_sum_assignment(iou, maximize=True)].sum()
        assert found.iou[ends_a[problem] : ends_a[problem + 1]].sum() == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("kind", bench.KINDS)
@pytest.mark.parametrize(("rows", "columns"), [(20, 20), (30, 50), (70, 70)])
def test_every_library_finds_the_same_total(kind, rows, columns):
    costs = bench.KINDS[kind](np.random.default_rng(7), (5, rows, columns))
    for cost in costs:
        ours = assign(cost).total
        for name, solver in bench.solvers(rows, columns).items():
            assert solver.total(cost) == pytest.approx(ours, rel=1e-6), name
    assert bench.batch_solver(rows, columns).total(costs) == pytest.approx(assign(costs).total.sum(), rel=1e-6)


def test_another_total_is_not_timed(monkeypatch):
    worse = bench.Solver(np.shape, lambda shape: (np.arange(shape[0]), np.arange(shape[0])))
    monkeypatch.setattr(bench, "solvers", lambda *_: {"worse": worse})
    monkeypatch.setattr(bench, "PAIRINGS", ((20, 20),))
    with pytest.raises(TallymillError, match="worse finds a total of"):
        bench.run(rounds=1)
