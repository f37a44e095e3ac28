import math
import sys
from itertools import pairwise

import numpy as np
import pytest

from tallymill.engine.numbench.calibration import (
    brier_score,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    reliability,
)
from tallymill.errors import MissingExtraError, UsageError


def simulated(tau: float, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Confidences whose labels are true with probability sigmoid(logit(p) / tau)."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.05, 0.99, n).astype(np.float32)
    z = np.log(p.astype(np.float64) / (1 - p.astype(np.float64)))
    return p, rng.random(n) < 1 / (1 + np.exp(-z / tau))


@pytest.mark.parametrize("tau", [0.6, 1.0, 1.42, 3.0])
def test_a_known_temperature_is_recovered(tau: float) -> None:
    p, y = simulated(tau, 60_000)
    fit = fit_temperature(p, y)
    assert fit.identifiable
    assert fit.tau == pytest.approx(tau, rel=0.04)
    assert fit.tau == round(fit.tau, 4)
    assert fit.proposals == 60_000
    assert fit.positives == int(y.sum())
    assert fit.after.nll <= fit.before.nll
    if tau != 1.0:
        assert fit.after.ece < fit.before.ece
        assert fit.after.brier < fit.before.brier


def test_the_fit_is_a_minimum_to_four_decimals() -> None:
    p, y = simulated(1.42, 500, seed=3)
    tau = fit_temperature(p, y).tau
    here = negative_log_likelihood(p, y, tau)
    assert here <= negative_log_likelihood(p, y, tau - 2e-3)
    assert here <= negative_log_likelihood(p, y, tau + 2e-3)


def test_a_case_with_a_closed_form() -> None:
    # Three quarters of the proposals at .8 are true, and a quarter of those at .2: sigma(log(4)/tau) = 3/4.
    p = [0.8] * 4 + [0.2] * 4
    y = [True, True, True, False, False, False, False, True]
    assert fit_temperature(p, y).tau == round(math.log(4) / math.log(3), 4)


@pytest.mark.parametrize("label", [True, False])
def test_labels_of_one_kind_leave_tau_at_one(label: bool) -> None:
    fit = fit_temperature([0.3, 0.9], [label, label])
    assert (fit.tau, fit.identifiable, fit.positives) == (1.0, False, 2 * label)
    assert fit.before.nll == fit.after.nll


def test_no_proposals_at_all() -> None:
    fit = fit_temperature([], [])
    assert (fit.tau, fit.identifiable, fit.proposals) == (1.0, False, 0)
    assert math.isnan(fit.before.nll)
    assert math.isnan(fit.after.ece)
    assert math.isnan(fit.after.brier)


def test_confidences_of_zero_and_one_are_clipped() -> None:
    assert negative_log_likelihood([1.0], [False]) == pytest.approx(-math.log(1e-7), rel=1e-9)
    assert negative_log_likelihood([0.0], [True]) == pytest.approx(-math.log(1e-7), rel=1e-9)
    assert negative_log_likelihood([1e-9], [True]) == negative_log_likelihood([0.0], [True])
    fit = fit_temperature([1.0, 0.0, 0.9, 0.2], [False, True, True, False])
    assert math.isfinite(fit.after.nll)
    assert 0.05 <= fit.tau <= 20


def test_the_bounds_hold() -> None:
    separable = fit_temperature([0.9, 0.8, 0.2, 0.1], [True, True, False, False])
    assert separable.tau == pytest.approx(0.05, abs=1e-3)
    inverted = fit_temperature([0.9, 0.8, 0.2, 0.1], [False, False, True, True])
    assert inverted.tau == pytest.approx(20, abs=1e-3)


def test_nll_by_hand() -> None:
    expected = -(math.log(0.9) + math.log(0.75)) / 2
    assert negative_log_likelihood([0.9, 0.25], [True, False]) == pytest.approx(expected, rel=1e-12)
    rho = 1 / (1 + math.exp(-math.log(9) / 2))
    assert negative_log_likelihood([0.9], [True], tau=2.0) == pytest.approx(-math.log(rho), rel=1e-12)


def test_brier_by_hand() -> None:
    assert brier_score([0.5, 1.0, 0.0], [True, False, False]) == pytest.approx((0.25 + 1.0) / 3)


def test_ece_by_hand() -> None:
    # Four bins. (0,.25]: .125, .25 with one true -> |.1875-.5|; (.5,.75]: .75 true -> |.75-1|; (.75,1]: 1 false -> 1.
    p = [0.125, 0.25, 0.75, 1.0]
    y = [False, True, True, False]
    assert expected_calibration_error(p, y, bins=4) == pytest.approx((2 * 0.3125 + 0.25 + 1.0) / 4, rel=1e-12)


def test_a_confidence_on_an_edge_belongs_to_the_left_bin() -> None:
    counts = [row.count for row in reliability([0.0, 0.25, np.nextafter(0.25, 1), 0.5, 1.0], [False] * 5, bins=4)]
    assert counts == [2, 2, 0, 1]
    fifteen = reliability([6 / 15, np.nextafter(6 / 15, 1)], [True, True])
    assert [k for k, row in enumerate(fifteen) if row.count] == [5, 6]


def test_fifteen_bins_cover_the_unit_interval() -> None:
    rows = reliability([], [])
    assert len(rows) == 15
    assert (rows[0].low, rows[-1].high) == (0.0, 1.0)
    assert all(a.high == b.low for a, b in pairwise(rows))


def test_measures_after_are_those_of_equation_six() -> None:
    p, y = simulated(1.42, 200, seed=5)
    fit = fit_temperature(p, y)
    z = np.log(p.astype(np.float64) / (1 - p.astype(np.float64)))
    rho = (1 / (1 + np.exp(-z / fit.tau))).astype(np.float32)
    assert fit.after.ece == expected_calibration_error(rho, y)
    assert fit.after.brier == brier_score(rho, y)


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(UsageError, match="2 confidences but 1 labels"):
        fit_temperature([0.1, 0.2], [True])


@pytest.mark.parametrize("bad", [math.nan, -0.1, 1.5])
def test_confidences_outside_the_unit_interval_are_refused(bad: float) -> None:
    with pytest.raises(UsageError, match="position 1"):
        fit_temperature([0.5, bad], [True, False])


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingExtraError) as caught:
        fit_temperature([0.5, 0.6], [True, False])
    assert caught.value.hint == "pip install 'tallymill[report]'"
