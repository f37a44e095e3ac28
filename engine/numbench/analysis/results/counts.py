"""Tables of what was counted beside what was requested."""

from __future__ import annotations

from dataclasses import dataclass

from tallymill.engine.estimates import Estimate


@dataclass(frozen=True, slots=True)
class Families:
    """Scored images by failure family (Table 6), from hard errors e_i = n^_i - n_i.

    none: every |e_i| <= .5; binding: k >= 2 and |sum of e_i| <= .5; cardinality: else. The shares are of ``scored``.
    """

    system: str
    composition: str
    count_range: str
    stress_test: bool
    scored: int
    none: int
    cardinality: int
    binding: int
    none_share: Estimate
    cardinality_share: Estimate
    binding_share: Estimate


@dataclass(frozen=True, slots=True)
class SignedError:
    """Counted minus requested over the targets of scored images, in objects and as a share of the request.

    ``under``, ``exact``, ``over`` count targets by their hard error (exact: |e| <= .5); the shares are of ``targets``.
    """

    system: str
    composition: str
    count_range: str
    stress_test: bool
    targets: int
    hard: Estimate
    soft: Estimate
    hard_relative: Estimate
    soft_relative: Estimate
    under: int
    exact: int
    over: int
    under_share: Estimate
    exact_share: Estimate
    over_share: Estimate


@dataclass(frozen=True, slots=True)
class VisiblePoint:
    """Mean hard and soft counts of single-category scored images of one layout and requested count.

    Only of clean images, and of those whose appearance is not known: modifiers change what is visible by design.
    """

    system: str
    layout: str
    count: int
    scored: int
    hard: float
    soft: float
    stress_test: bool = False


@dataclass(frozen=True, slots=True)
class CollisionFit:
    """A = M/q of equation 3 fitted to the visible (hard) counts of one layout.

    ``verdict`` is "fitted"; "least" (capacity 1, the smallest that there is: no more than one object is visible);
    "infinite" (visible >= requested on average) or "no data" (no image that asks for two or more), which have
    ``capacity`` None. ``coordination`` is lambda = 1 - A_free / A_layout, "if M were equal"; None for free, and where
    no lambda in 0..1 does it: free is infinite, or the layout has less. ``rmse`` in objects, weighted by images.
    """

    system: str
    layout: str
    verdict: str
    capacity: float | None
    coordination: float | None
    rmse: float | None
    points: int
    scored: int
