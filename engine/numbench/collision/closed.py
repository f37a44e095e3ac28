"""The collision model in closed form: n instances, M regions, and how many regions end up occupied.

Instances are placed one after the other. With probability lambda ("coordination") an instance takes a region that is
unused, otherwise any region, uniformly; q = 1 - lambda. When no region is unused it chooses uniformly. R is the number
of occupied regions, which is what stays visible. All functions broadcast over arrays of n, M and lambda.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def log_probability_all_distinct(n: ArrayLike, capacity: ArrayLike, coordination: ArrayLike = 0.0) -> Floats:
    """log P(R = n), which is the sum of log(1 - q i / M) over i = 0..n-1; -inf for n > M (equation 1, where q = 1).

    As long as all were distinct, the instance after i others collides with probability q i / M.
    """
    counts, regions, q = _checked(n, capacity, coordination)
    others = np.arange(int(counts.max(initial=0)))
    chance = np.where(others < counts[..., None], (q / regions)[..., None] * others, 0.0)
    with np.errstate(divide="ignore"):
        terms = np.log1p(-np.minimum(chance, 1.0))
    return np.where(counts > regions, -np.inf, terms.sum(-1))


def log_bound_all_distinct(n: ArrayLike, capacity: ArrayLike, coordination: ArrayLike = 0.0) -> Floats:
    """The logarithm of equation 1's upper bound for P(R = n), -q n(n-1) / (2M)."""
    return -leading_deficit(n, capacity, coordination)


def expected_occupied(n: ArrayLike, capacity: ArrayLike, coordination: ArrayLike = 0.0) -> Floats:
    """E[R]: equation 3 where it is exact, the exact distribution elsewhere.

    Given R_t < M, the next instance adds a region with probability lambda + q (1 - R_t / M) = 1 - q R_t / M. R_t <= t,
    so for n <= M the condition always holds, and E[R_{t+1}] = 1 + (1 - q/M) E[R_t] sums to equation 3 without error:
    it is exact for n <= M, whatever lambda is, and for every n when lambda = 0. Beyond M with lambda > 0 it counts
    unused regions that no longer exist (its limit is M/q > M); there the distribution itself is summed.
    """
    counts, regions, q = _checked(n, capacity, coordination)
    return counts - expected_deficit(counts, regions, 1.0 - q)


def visible_of_capacity(n: ArrayLike, capacity: ArrayLike) -> Floats:
    """A (1 - (1 - 1/A)^n), equation 3 as a function of A = M/q alone, for real A from 1 to infinity.

    An infinite A gives n. Raises ``ValueError`` for other values.
    """
    counts, capacities = np.broadcast_arrays(_whole(n), np.asarray(capacity, np.float64))
    if not (capacities >= 1).all():
        raise ValueError("capacity A: must be at least 1")
    return counts - _lost(counts, 1.0 / capacities)


def expected_deficit(n: ArrayLike, capacity: ArrayLike, coordination: ArrayLike = 0.0) -> Floats:
    """E[n - R], without the cancellation of n - E[R] where M is large (equations 2 and 4, left)."""
    counts, regions, q = np.broadcast_arrays(*_checked(n, capacity, coordination))
    beyond = (counts > regions) & (q < 1)
    result = _lost(np.where(beyond, 0.0, counts), q / regions)
    for some, share in {*zip(regions[beyond].tolist(), q[beyond].tolist(), strict=True)}:
        here = beyond & (regions == some) & (q == share)
        curve = expected_by_recurrence(int(counts[here].max()), int(some), 1.0 - share)
        result[here] = counts[here] - curve[counts[here].astype(np.int64)]
    return result


def leading_deficit(n: ArrayLike, capacity: ArrayLike, coordination: ArrayLike = 0.0) -> Floats:
    """q n(n-1) / (2M), the leading term of E[n - R] (equation 4; equation 2 where lambda = 0).

    The expansion goes on with -q^2 C(n, 3) / M^2, so the term errs by O(n^3 / M^2).
    """
    counts, regions, q = _checked(n, capacity, coordination)
    return np.asarray(q * (counts * (counts - 1) / 2) / regions)


def distribution(counts: int, capacity: int, coordination: float = 0.0) -> Floats:
    """P(R_n = r) for n = 0..counts and r = 0..min(counts, M), float64 [counts + 1, min(counts, M) + 1].

    By the recurrence over placements, which needs neither equation 3 nor n <= M.
    """
    return np.array([*_placements(counts, capacity, coordination)])


def expected_by_recurrence(counts: int, capacity: int, coordination: float = 0.0) -> Floats:
    """E[R_n] for n = 0..counts from the exact distribution, float64 [counts + 1]."""
    occupied = np.arange(min(counts, capacity) + 1, dtype=np.float64)
    return np.array([chances @ occupied for chances in _placements(counts, capacity, coordination)])


def _placements(counts: int, capacity: int, coordination: float) -> Iterator[Floats]:
    """The distribution of R after 0, 1, ... ``counts`` instances."""
    _checked(counts, capacity, coordination)
    occupied = np.arange(min(counts, capacity) + 1)
    collides = np.where(occupied < capacity, (1.0 - coordination) * occupied / capacity, 1.0)
    chances = np.zeros(len(occupied))
    chances[0] = 1.0
    yield chances
    for _ in range(counts):
        stay, leave = chances * collides, chances * (1.0 - collides)
        stay[1:] += leave[:-1]
        chances = stay
        yield chances


def _lost(n: Floats, chance: Floats) -> Floats:
    """n - (1 - (1-u)^n) / u for u in [0, 1]: the sum of 1 - (1-u)^i over i = 0..n-1.

    Terms of one sign, so that it is accurate for the smallest u; where u is not small the closed form is.
    """
    small = chance * n < 0.5
    order = np.arange(int(n[small].max(initial=0)))
    terms = -np.expm1(order * np.log1p(-np.where(n > 0, chance, 0.0)[small])[:, None])
    result = np.zeros(n.shape)
    result[small] = np.where(order < n[small][:, None], terms, 0.0).sum(-1)
    with np.errstate(divide="ignore"):
        emptied = -np.expm1(n[~small] * np.log1p(-chance[~small]))
    result[~small] = n[~small] - emptied / chance[~small]
    return result


def _checked(n: ArrayLike, capacity: ArrayLike, coordination: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """n, M and q as float64 arrays. Raises ``ValueError`` for what the model does not know."""
    counts, regions, share = _whole(n), np.asarray(capacity, np.float64), np.asarray(coordination, np.float64)
    if not ((regions >= 1) & (regions == np.floor(regions)) & np.isfinite(regions)).all():
        raise ValueError("capacity M: must be whole numbers of at least 1")
    if not ((share >= 0) & (share <= 1)).all():
        raise ValueError("coordination lambda: must lie in 0..1")
    return counts, regions, 1.0 - share


def _whole(n: ArrayLike) -> Floats:
    counts = np.asarray(n, np.float64)
    if not ((counts >= 0) & (counts == np.floor(counts)) & np.isfinite(counts)).all():
        raise ValueError("n: must be whole numbers of at least 0")
    return counts
