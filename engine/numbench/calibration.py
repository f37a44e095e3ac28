"""Fitting a detector's temperature to labelled proposals, and how well its confidences are calibrated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from tallymill.engine.proposals import OK
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
    nll_before: float
    nll_after: float
    ece_before: float
    ece_after: float
    brier_before: float
    brier_after: float


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """One bin (low, high] of a reliability plot: how many fell into it, their mean confidence, their share true."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Truth:
    """The objects of one image: the index of their target int64 [G] and boxes float64 [G, 4] xyxy in pixels."""

    target: NDArray[np.int64]
    boxes: NDArray[np.float64]


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
    tau = _argmin(lambda t: negative_log_likelihood(p, y, t)) if identifiable else 1.0
    rho = calibrate(p.astype(np.float32), tau)
    return Calibration(
        tau=tau,
        identifiable=identifiable,
        proposals=y.size,
        positives=positives,
        nll_before=negative_log_likelihood(p, y),
        nll_after=negative_log_likelihood(p, y, tau),
        ece_before=expected_calibration_error(p, y),
        ece_after=expected_calibration_error(rho, y),
        brier_before=brier_score(p, y),
        brier_after=brier_score(rho, y),
    )


def labelled_proposals(
    proposals: pa.Table, truth: Mapping[str, Truth]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Confidences float32 [P] and labels bool [P] of one detector's proposals over all items that went well.

    ``proposals`` is a table of a RUN (see ``engine/proposals.py``); an item that ``truth`` does not name holds nothing.
    """
    nothing = Truth(np.empty(0, np.int64), np.empty((0, 4)))
    confidences, labels = [np.empty(0, np.float32)], [np.empty(0, np.bool_)]
    for row in proposals.to_pylist():
        if row["status"] == OK:
            true = truth.get(row["item_id"], nothing)
            kept = np.array(row.get("kept") or [True] * len(row["confidence"]), np.bool_)
            confidences.append(np.array(row["confidence"], np.float32)[kept])
            boxes, target = np.reshape(row["box"], (-1, 4))[kept], np.array(row["target"], np.int64)[kept]
            labels.append(label_proposals(boxes, confidences[-1], target, true.boxes, true.target))
    return np.concatenate(confidences), np.concatenate(labels)


def label_proposals(
    boxes: ArrayLike,
    confidence: ArrayLike,
    target: ArrayLike,
    truth_boxes: ArrayLike,
    truth_target: ArrayLike,
    iou: float = 0.5,
) -> NDArray[np.bool_]:
    """Which proposals of one image and detector are true: bool [P].

    Proposals ``boxes`` [P, 4] (xyxy, pixels), ``confidence`` [P], ``target`` [P] come after NMS; truth boxes [G, 4]
    and ``truth_target`` [G] likewise. In order of confidence (ties in stored order) each proposal takes the free
    truth box of its own target with the largest IoU, if that is at least ``iou``; a truth box is taken once.
    """
    p = np.asarray(confidence, dtype=np.float64).reshape(-1)
    wanted = np.asarray(target).reshape(-1)
    true_target = np.asarray(truth_target).reshape(-1)
    overlap = _pairwise_iou(boxes, truth_boxes)
    if overlap.shape != (p.size, true_target.size) or wanted.size != p.size:
        raise UsageError(
            f"{overlap.shape[0]} boxes, {p.size} confidences and {wanted.size} targets against "
            f"{overlap.shape[1]} truth boxes and {true_target.size} truth targets: the lengths differ"
        )
    label = np.zeros(p.size, dtype=np.bool_)
    if true_target.size == 0:
        return label
    free = np.ones(true_target.size, dtype=np.bool_)
    for i in np.argsort(-p, kind="stable"):
        candidates = np.where(free & (true_target == wanted[i]), overlap[i], -1.0)
        best = int(candidates.argmax())
        if candidates[best] >= iou:
            label[i] = True
            free[best] = False
    return label


def negative_log_likelihood(confidence: ArrayLike, label: ArrayLike, tau: float = 1.0) -> float:
    """Mean negative log likelihood in nats at temperature ``tau``, p clipped to [1e-7, 1 - 1e-7]; NaN without data."""
    p, y = _checked(confidence, label)
    if p.size == 0:
        return math.nan
    p = np.clip(p, CLIP, 1.0 - CLIP)
    logit = np.log(p / (1.0 - p)) / tau
    return math.fsum(np.logaddexp(0.0, np.where(y, -logit, logit))) / p.size


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
    return math.fsum((p - y) ** 2) / p.size if p.size else math.nan


def reliability(confidence: ArrayLike, label: ArrayLike, bins: int = BINS) -> list[ReliabilityBin]:
    """The bins of a reliability plot, of equal width and closed on the right (0 falls into the first)."""
    p, y = _checked(confidence, label)
    edges = np.arange(bins + 1) / bins
    where = np.searchsorted(edges[1:-1], p, side="left")
    rows = []
    for k in range(bins):
        inside = where == k
        n = int(inside.sum())
        mean = math.fsum(p[inside]) / n if n else math.nan
        share = int(y[inside].sum()) / n if n else math.nan
        rows.append(ReliabilityBin(float(edges[k]), float(edges[k + 1]), n, mean, share))
    return rows


def _argmin(loss: Callable[[float], float]) -> float:
    try:
        from scipy.optimize import minimize_scalar
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] != "scipy":
            raise
        raise MissingExtraError.of("scipy", "demo") from None
    # The loss is convex in 1/tau, hence has one minimum in tau.
    found: Any = minimize_scalar(loss, bounds=TAU_BOUNDS, method="bounded", options={"xatol": 1e-10})
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


def _pairwise_iou(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """IoU float64 [A, B] of xyxy boxes; 0 where both are degenerate."""
    left = np.asarray(a, dtype=np.float64).reshape(-1, 1, 4)
    right = np.asarray(b, dtype=np.float64).reshape(1, -1, 4)
    low = np.maximum(left[..., :2], right[..., :2])
    high = np.minimum(left[..., 2:], right[..., 2:])
    shared = np.clip(high - low, 0.0, None).prod(axis=2)
    area_a = (left[..., 2:] - left[..., :2]).prod(axis=2)
    area_b = (right[..., 2:] - right[..., :2]).prod(axis=2)
    union = area_a + area_b - shared
    ratio: NDArray[np.float64] = np.zeros_like(shared)
    np.divide(shared, union, out=ratio, where=union > 0.0)
    return ratio
