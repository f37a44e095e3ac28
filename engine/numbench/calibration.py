"""Fitting a detector's temperature to labelled proposals, and how well its confidences are calibrated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tallymill.errors import MissingExtraError, UsageError
from tallymill.kernels.count import calibrate

TAU_BOUNDS = (0.05, 20.0)
CLIP = 1e-7
BINS = 15


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted temperature with what it changed.

    ``identifiable`` is False when the labels are all of one kind (or there are none): tau is then 1.
    NLL is in nats a proposal. Without proposals the measures are NaN.
    """

    tau: float
    identifiable: bool
    proposals: int
    positives: int
    before: Measures
    after: Measures


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """One bin (low, high] of a reliability plot: how many fell into it, their mean confidence, their share true."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Measures:
    """How well confidences are calibrated at one temperature; NaN without proposals. NLL in nats a proposal."""

    tau: float
    nll: float
    ece: float
    brier: float
    bins: tuple[ReliabilityBin, ...]


@dataclass(frozen=True, slots=True)
class DetectorCalibration:
    """One detector's fitted temperature, and how well it is calibrated at several.

    ``tau`` is the fit (1 when it is not ``identifiable``), ``tau_run`` what its RUN was scored with, ``tau_used`` what
    to score with: ``tau``, or ``tau_run`` where ``refused`` says why the fit is no use. ``items`` went well, ``failed``
    did not; ``objects`` are the true objects that were asked for in the ones that did, ``positives`` of the
    ``proposals`` found one. ``before`` is at tau = 1, ``present`` at ``tau_run`` (None where that is 1 or the fit),
    ``after`` at the fit.
    """

    detector: str
    tau: float
    tau_run: float
    tau_used: float
    refused: str | None
    identifiable: bool
    items: int
    failed: int
    objects: int
    proposals: int
    positives: int
    before: Measures
    present: Measures | None
    after: Measures


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """Temperatures fitted on the images of a RUN, and what they were fitted on.

    ``floor`` and ``lowest_threshold`` (the least T) bound the temperatures that may be used. ``images`` names the item
    of each calibration image by its ``image_hash``: images that are scored must not be among them. Of all ``items`` of
    the RUN ``failed`` failed for at least one detector; ``without_objects`` have no true object that was asked for, so
    that each of their proposals is false.
    """

    run: str
    run_created: str
    truth: str
    truth_sha256: str
    floor: float
    lowest_threshold: float
    iou: float
    items: int
    failed: int
    objects: int
    without_objects: int
    notes: tuple[str, ...]
    detectors: tuple[DetectorCalibration, ...]
    images: dict[str, str]


def fit_temperature(confidence: ArrayLike, label: ArrayLike) -> Calibration:
    """Fit tau of equation 6 by maximum likelihood.

    ``confidence`` float [P] in [0, 1] and ``label`` bool [P] describe the proposals of one detector after NMS.
    Minimises the mean negative log likelihood over tau in [0.05, 20], p clipped to [1e-7, 1 - 1e-7]; tau is rounded
    to four decimals and the measures "after" are those of the rounded tau. NLL takes the clipped confidences, ECE
    and Brier the ones that scores use (equation 6). Raises ``UsageError`` when lengths differ or a confidence lies
    outside [0, 1], ``MissingExtraError`` without scipy.
    """
    p, y = _checked(confidence, label)
    positives = int(y.sum())
    identifiable = 0 < positives < y.size
    tau = _argmin(_signed_logits(p, y)) if identifiable else 1.0
    return Calibration(tau, identifiable, y.size, positives, before=measure(p, y), after=measure(p, y, tau))


def measure(confidence: ArrayLike, label: ArrayLike, tau: float = 1.0) -> Measures:
    """NLL, ECE, Brier and the reliability bins of raw confidences at a temperature.

    At 1 they are those of the confidences as they stand, else of what equation 6 makes of them (NLL: see
    ``negative_log_likelihood``).
    """
    p, y = _checked(confidence, label)
    rho = p if tau == 1.0 else calibrate(p.astype(np.float32), tau)
    return Measures(
        tau=tau,
        nll=negative_log_likelihood(p, y, tau),
        ece=expected_calibration_error(rho, y),
        brier=brier_score(rho, y),
        bins=tuple(reliability(rho, y)),
    )


def negative_log_likelihood(confidence: ArrayLike, label: ArrayLike, tau: float = 1.0) -> float:
    """Mean negative log likelihood in nats at temperature ``tau``, p clipped to [1e-7, 1 - 1e-7]; NaN without data."""
    p, y = _checked(confidence, label)
    if p.size == 0:
        return math.nan
    return _mean_loss(_signed_logits(p, y), tau)


def _signed_logits(p: NDArray[np.float64], y: NDArray[np.bool_]) -> NDArray[np.float64]:
    """logit(p) of false proposals and -logit(p) of true ones, p clipped: the more, the worse."""
    clipped = np.clip(p, CLIP, 1.0 - CLIP)
    logit: NDArray[np.float64] = np.log(clipped / (1.0 - clipped))
    return np.where(y, -logit, logit)


def _mean_loss(signed: NDArray[np.float64], tau: float) -> float:
    return math.fsum(np.logaddexp(0.0, signed / tau).tolist()) / signed.size


def expected_calibration_error(confidence: ArrayLike, label: ArrayLike, bins: int = BINS) -> float:
    """Mean over proposals of |mean confidence - share true| of the bin they fall into; NaN without proposals."""
    rows = reliability(confidence, label, bins)
    total = sum(row.count for row in rows)
    if total == 0:
        return math.nan
    return math.fsum(row.count * abs(row.confidence - row.accuracy) for row in rows if row.count) / total


def brier_score(confidence: ArrayLike, label: ArrayLike) -> float:
    """Mean squared difference of confidence and label; NaN without proposals."""
    p, y = _checked(confidence, label)
    return math.fsum(((p - y) ** 2).tolist()) / p.size if p.size else math.nan


def reliability(confidence: ArrayLike, label: ArrayLike, bins: int = BINS) -> list[ReliabilityBin]:
    """The bins of a reliability plot, of equal width and closed on the right (0 falls into the first)."""
    p, y = _checked(confidence, label)
    edges = np.arange(bins + 1) / bins
    where = np.searchsorted(edges[1:-1], p, side="left")
    rows = []
    for k in range(bins):
        inside = where == k
        n = int(inside.sum())
        mean = math.fsum(p[inside].tolist()) / n if n else math.nan
        share = int(y[inside].sum()) / n if n else math.nan
        rows.append(ReliabilityBin(float(edges[k]), float(edges[k + 1]), n, mean, share))
    return rows


def require_scipy() -> Any:
    """Its one-dimensional minimiser; ``MissingExtraError`` without scipy."""
    with MissingExtraError.unless("scipy", extra="report"):
        from scipy.optimize import minimize_scalar
    return minimize_scalar


def _argmin(signed: NDArray[np.float64]) -> float:
    # The loss is convex in 1/tau, hence has one minimum in tau.
    options = {"xatol": 1e-10}
    found: Any = require_scipy()(
        lambda tau: _mean_loss(signed, tau), bounds=TAU_BOUNDS, method="bounded", options=options
    )
    return round(float(found.x), 4)


def _checked(confidence: ArrayLike, label: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    p = np.asarray(confidence, dtype=np.float64).reshape(-1)
    y = np.asarray(label, dtype=np.bool_).reshape(-1)
    if p.size != y.size:
        raise UsageError(f"{p.size} confidences but {y.size} labels")
    outside = ~((p >= 0.0) & (p <= 1.0))
    if outside.any():
        at = int(outside.argmax())
        raise UsageError(f"confidence {p[at]} at position {at} lies outside [0, 1]")
    return p, y
