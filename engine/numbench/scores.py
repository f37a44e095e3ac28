"""cw-NPS and b-NPS of a batch from stored proposals (NumBench, equations 5 to 8).

A sweep and a re-scoring both call ``score_batch``: what a sweep writes is by construction what anybody recomputes.
"""

from __future__ import annotations

import inspect
import math
import reprlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tallymill.engine.batch import ItemBatch, Targets
from tallymill.engine.numbench.user_score import UserScore
from tallymill.engine.proposals import Proposals
from tallymill.engine.settings import Coverage
from tallymill.errors import UsageError
from tallymill.kernels.count import Scores, accumulate, score, threshold

SCORED, ERROR, UNCOVERED = "scored", "error", "uncovered"
MAX_COUNT = 100
# The column of a score that the user wrote.
USER_SCORE = "user_score"
TARGET_TYPE = pa.struct(
    [
        pa.field("category", pa.string()),
        pa.field("requested", pa.uint16()),
        pa.field("soft", pa.float64()),
        pa.field("hard", pa.float64()),
        pa.field("covering", pa.uint8()),
    ]
)


@dataclass(frozen=True, slots=True)
class ScorePlan:
    """What turns proposals into scores: temperatures, the threshold schedule, the meaning of D.

    ``taus`` follow the ensemble's order. ``schedule`` holds T(1) .. T(100), equation 7 unless the user gave another.
    """

    detectors: tuple[str, ...]
    taus: tuple[float, ...]
    coverage: Coverage = "covered"
    schedule: tuple[float, ...] = tuple(threshold(np.arange(1, MAX_COUNT + 1, dtype=np.uint16)).tolist())

    def require_floor(self, floor: float, *, recorded: bool = False) -> None:
        """Refuse a floor above which proposals that count would have been thrown away.

        ``recorded`` says that the proposals are there already, so that the floor cannot be lowered.
        """
        lowest = min(self.schedule)
        at_floor = [_calibrated(floor, tau) for tau in self.taus]
        for name, tau, value in zip(self.detectors, self.taus, at_floor, strict=True):
            if value <= lowest:
                continue
            nearer = ", use a temperature nearer to 1" if tau > 1.0 else ""
            least = math.ceil(max(at_floor) * 1e4) / 1e4
            raise UsageError(
                f"{name}: with tau = {tau} a proposal at the floor {floor} is calibrated to {value:.4f}, above "
                f"the lowest threshold {lowest:g}; proposals that count would not be recorded",
                hint=f"raise T to at least {least:.4f}{nearer}, or sweep again with a lower floor"
                if recorded
                else "lower the floor (--set floor=...), or use a temperature nearer to 1",
            )


def _calibrated(confidence: float, tau: float) -> float:
    if tau == 1.0:  # without the last digit that logarithm and exponential would change
        return confidence
    odds = math.exp(math.log(confidence / (1.0 - confidence)) / tau)  # of at most 1: no overflow for a tiny tau
    return odds / (1.0 + odds)


def tabulate_schedule(schedule: Callable[[int], float]) -> tuple[float, ...]:
    """T(1) .. T(100) of a schedule written in Python.

    What it raises, or anything but a number in [0, 1], is a ``UsageError`` naming the count and the line.
    """
    _require_one_argument(schedule)
    values = []
    for count in range(1, MAX_COUNT + 1):
        try:
            given = schedule(count)
        except (Exception, SystemExit) as exc:  # the user's own code can do anything
            reason = f"{type(exc).__name__}: {exc}{_place(schedule, exc)}"
            raise UsageError(f"the schedule fails for T({count}): {reason}") from exc
        try:
            value = float(given)
        except Exception:  # likewise
            reason = f"a threshold must be a number{_place(schedule)}"
            raise UsageError(f"the schedule gives T({count}) = {reprlib.repr(given)}; {reason}") from None
        if not 0.0 <= value <= 1.0:
            reason = f"a threshold must lie in [0, 1]{_place(schedule)}"
            raise UsageError(f"the schedule gives T({count}) = {value}; {reason}")
        values.append(value)
    return tuple(values)


def _require_one_argument(schedule: Callable[[int], float]) -> None:
    try:
        signature = inspect.signature(schedule)
    except (TypeError, ValueError):  # some that are written in C do not say
        return
    try:
        signature.bind(1)
    except TypeError:
        name = getattr(schedule, "__name__", "the schedule")
        raise UsageError(
            f"{name}{signature} must take one argument{_place(schedule)}",
            hint=f"def {name}(count): the requested count, 1 to {MAX_COUNT}",
        ) from None


def _place(schedule: Callable[[int], float], exc: BaseException | None = None) -> str:
    """The line of the user's file: the innermost that raised, else that of the ``def``; nothing where there is none."""
    code = getattr(schedule, "__code__", None)
    frames = traceback.extract_tb(None if exc is None else exc.__traceback__)
    own = [f for f in frames if (f.filename != __file__ if code is None else f.filename == code.co_filename)]
    if own:
        return f" ({own[-1].filename}, line {own[-1].lineno})"
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"


@dataclass(frozen=True, slots=True)
class Counts:
    """Per target of a batch: sums over detectors and the number of detectors that cover it."""

    soft: NDArray[np.float64]
    hard: NDArray[np.int64]
    covering: NDArray[np.uint8]


class Boxes(Protocol):
    """What one detector found, as far as it counts: ``offsets`` int64 [I+1] into ``target`` uint8 [P] and
    ``confidence`` float32 [P], none of them suppressed; ``covered`` bool [T].
    """

    @property
    def covered(self) -> NDArray[np.bool_]:
        """Targets whose category the detector knows."""

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each item's boxes begin, and the last end."""

    @property
    def target(self) -> NDArray[np.uint8]:
        """The target that each box answers."""

    @property
    def confidence(self) -> NDArray[np.float32]:
        """Of each box, raw."""


def count_targets(
    count: NDArray[Any], target_offsets: NDArray[np.int64], found: Sequence[Boxes], plan: ScorePlan
) -> Counts:
    """S and the hard sums over the detectors, added in ensemble order and stored order (equations 5 to 8).

    ``count`` integers [T] as requested, whatever is outside 1..100 as the nearest of these; ``target_offsets`` int64
    [I+1] into it; ``found`` stands in the order of ``plan.detectors``.
    """
    soft = np.zeros(len(count), np.float64)
    hard = np.zeros(len(count), np.int64)
    covering = np.zeros(len(count), np.uint8)
    thresholds = np.asarray(plan.schedule)[np.clip(count, 1, MAX_COUNT) - 1]
    for boxes, tau in zip(found, plan.taus, strict=True):
        accumulate(boxes.confidence, boxes.target, boxes.offsets, target_offsets, thresholds, float(tau), soft, hard)
        covering += boxes.covered
    if plan.coverage == "all":
        covering = np.where(covering > 0, len(plan.taus), 0).astype(np.uint8)
    return Counts(soft, hard, covering)


def count_batch(batch: ItemBatch, proposals: Sequence[Proposals], plan: ScorePlan) -> Counts:
    """The same for items as they come out of the detectors."""
    targets = batch.targets
    return count_targets(targets.count, targets.offsets, [found.survivors() for found in proposals], plan)


def scores_of(counts: Counts, count: NDArray[Any], target_offsets: NDArray[np.int64]) -> Scores:
    """Counts per detector and the two scores of each item; NaN where there is none."""
    requested = np.clip(count, 1, MAX_COUNT).astype(np.uint16)
    return score(counts.soft, counts.hard, counts.covering, requested, target_offsets)


def score_batch(
    batch: ItemBatch, proposals: Sequence[Proposals], plan: ScorePlan, user: UserScore | None = None
) -> pa.RecordBatch:
    """One scores row an item. ``proposals`` stand in the order of ``plan.detectors``.

    An item on which anything failed is an ``error`` row without a score; an item with a target that no detector
    covers is ``uncovered``, likewise without a score. A score of the ``user`` gets a column of its own.
    """
    targets = batch.targets
    counts = count_batch(batch, proposals, plan)
    result = scores_of(counts, targets.count, targets.offsets)
    errors = [_first(reasons) for reasons in zip(batch.errors, *(found.errors for found in proposals), strict=True)]
    failed = np.array([error is not None for error in errors], np.bool_)
    uncovered = np.zeros(len(batch), np.bool_)
    uncovered[targets.item[counts.covering == 0]] = True
    no_count = failed[targets.item] | (counts.covering == 0)
    no_score = failed | uncovered
    status = np.where(failed, ERROR, np.where(uncovered, UNCOVERED, SCORED))
    columns = {
        **_described(batch.rows),
        "image_hash": pc.coalesce(*(found.image_hash for found in proposals)),
        "targets": _target_rows(batch, result.soft_count, result.hard_count, counts.covering, no_count),
        "cw_nps": pa.array(result.cw_nps, pa.float64(), mask=no_score),
        "b_nps": pa.array(result.b_nps, pa.float64(), mask=no_score),
        **_user_column(user, result, targets, ~no_score),
        "status": pa.array(status.tolist(), pa.string()),
        "error": pa.array(errors, pa.string()),
    }
    return pa.record_batch(list(columns.values()), names=list(columns))


def _user_column(
    user: UserScore | None, result: Scores, targets: Targets, scored: NDArray[np.bool_]
) -> dict[str, pa.Array]:
    if user is None:
        return {}
    values = user(result.soft_count, result.hard_count, targets.count, targets.offsets, scored)
    return {USER_SCORE: pa.array(values, pa.float64(), mask=np.isnan(values))}


def _first(reasons: tuple[str | None, ...]) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _described(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns of the manifest that a scores row repeats: identity first, then factors."""
    names = ["item_id", "prompt_id", "system", "sample"]
    names += [name for name in rows.schema.names if name not in {*names, "image", "targets", "error"}]
    return {name: rows.column(name) for name in names}


def _target_rows(
    batch: ItemBatch,
    soft: NDArray[np.float64],
    hard: NDArray[np.float64],
    covering: NDArray[np.uint8],
    no_count: NDArray[np.bool_],
) -> pa.Array:
    targets = batch.targets
    categories = pa.DictionaryArray.from_arrays(pa.array(targets.codes), pa.array(targets.categories, pa.string()))
    outside = (targets.count < 0) | (targets.count > np.iinfo(np.uint16).max)
    values = pa.StructArray.from_arrays(
        [
            categories.cast(pa.string()),
            pa.array(targets.requested, pa.uint16(), mask=outside),
            pa.array(soft, pa.float64(), mask=no_count),
            pa.array(hard, pa.float64(), mask=no_count),
            pa.array(covering, pa.uint8()),
        ],
        fields=list(TARGET_TYPE),
    )
    return pa.ListArray.from_arrays(pa.array(targets.offsets.astype(np.int32)), values)
