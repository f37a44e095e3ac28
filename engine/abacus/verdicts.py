"""From the evidence of an edit to a verdict an instance, and to what was delivered and what was lost.

kept: matched. added, removed: confirmed, by both detectors or by the answer to a question. transformed: gone, and
something of the target category came in its place. missing: gone, of a category that was not to lose any. ambiguous:
not confirmed, with nobody to ask. rejected: the answer was no. unasked: new, of a category that was to lose some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tallymill.engine.abacus.data import EDITED, SOURCE, Edit
from tallymill.engine.abacus.instructions import ADD, CHANGE, REMOVE
from tallymill.engine.abacus.score import conservation, count_fidelity
from tallymill.kernels.match import match

KEPT, ADDED, REMOVED, TRANSFORMED = "kept", "added", "removed", "transformed"
MISSING, AMBIGUOUS, REJECTED, UNASKED = "missing", "ambiguous", "rejected", "unasked"
VERDICTS = (KEPT, ADDED, REMOVED, TRANSFORMED, MISSING, AMBIGUOUS, REJECTED, UNASKED)
UNDERSHOOT, OVERSHOOT, OVERWRITTEN, ELSEWHERE = FAILURES = ("undershoot", "overshoot", "overwritten", "elsewhere")
Instance = Mapping[str, Any]  # an element of ``instances`` of an evidence row


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an edit came to. ``verdicts`` [N], one an instance; ``delivered`` d; ``lost`` N_rem of ``originals`` N_GT;
    ``cf`` and ``oc``; ``asked``: instances not both detectors confirmed, of which ``resolved`` got a yes or a no;
    ``candidates``: all instances that had to be confirmed; ``failures`` of ``FAILURES``.
    """

    verdicts: tuple[str, ...]
    delivered: int
    lost: int
    originals: int
    cf: float
    oc: float
    candidates: int
    asked: int
    resolved: int
    failures: tuple[str, ...]


def outcome(edit: Edit, instances: Sequence[Instance], answers: Sequence[bool | None], pair_iou: float) -> Outcome:
    """Decide every instance: ``answers`` [N] are True, False, or None where nobody said yes or no."""
    verdicts = [_verdict(one, answer) for one, answer in zip(instances, answers, strict=True)]
    if edit.operation == CHANGE:
        _couple(instances, verdicts, pair_iou)
    delivered, lost, originals = _COUNTS[edit.operation](edit, instances, verdicts)
    unsure = [answer for one, answer in zip(instances, answers, strict=True) if is_question(one)]
    return Outcome(
        tuple(verdicts),
        delivered,
        lost,
        originals,
        count_fidelity(delivered, edit.count),
        conservation(lost, originals),
        sum(one["votes"] is not None for one in instances),
        len(unsure),
        sum(answer is not None for answer in unsure),
        tuple(_failures(edit, verdicts, delivered, lost)),
    )


def is_question(instance: Instance) -> bool:
    """Whether not both detectors confirmed a candidate."""
    return instance["votes"] is not None and not all(instance["votes"])


def _verdict(one: Instance, answer: bool | None) -> str:
    new = one["image"] == EDITED
    if one["partner"] >= 0:
        return KEPT
    if one["votes"] is None:
        return UNASKED if new else MISSING
    if all(one["votes"]) or answer:
        return ADDED if new else REMOVED
    return AMBIGUOUS if answer is None else REJECTED


def _couple(instances: Sequence[Instance], verdicts: list[str], least: float) -> None:
    """Of a change, what went and what came in its place: transformed, both of them."""
    gone = [k for k, verdict in enumerate(verdicts) if verdict == REMOVED]
    came = [k for k, verdict in enumerate(verdicts) if verdict == ADDED]
    boxes = [np.array([instances[k]["box"] for k in side], np.float32).reshape(-1, 4) for side in (gone, came)]
    edges = [np.array([0, len(side)], np.int64) for side in (gone, came)]
    partner = match(boxes[0], edges[0], boxes[1], edges[1], gate=least).partner
    for place, other in enumerate(partner.tolist()):
        if other >= 0:
            verdicts[gone[place]] = verdicts[came[other]] = TRANSFORMED


def _number(instances: Sequence[Instance], verdicts: Sequence[str], image: str, category: str, *wanted: str) -> int:
    """Instances of a category in an image, with one of some verdicts, or any."""
    return sum(
        one["image"] == image and one["category"] == category and (not wanted or verdict in wanted)
        for one, verdict in zip(instances, verdicts, strict=True)
    )


def _of_addition(edit: Edit, instances: Sequence[Instance], verdicts: Sequence[str]) -> tuple[int, int, int]:
    """d: confirmed new ones; lost: originals that are missing."""
    name = edit.category
    delivered = _number(instances, verdicts, EDITED, name, ADDED)
    return delivered, _number(instances, verdicts, SOURCE, name, MISSING), _number(instances, verdicts, SOURCE, name)


def _of_removal(edit: Edit, instances: Sequence[Instance], verdicts: Sequence[str]) -> tuple[int, int, int]:
    """d: confirmed missing ones; lost: new ones that were painted."""
    name = edit.category
    delivered = _number(instances, verdicts, SOURCE, name, REMOVED)
    return delivered, _number(instances, verdicts, EDITED, name, ADDED), _number(instances, verdicts, SOURCE, name)


def _of_change(edit: Edit, instances: Sequence[Instance], verdicts: Sequence[str]) -> tuple[int, int, int]:
    """d: pairs; lost: what went without something in its place, and originals of the target that are missing."""
    first, second = edit.categories
    delivered = _number(instances, verdicts, SOURCE, first, TRANSFORMED)
    lost = _number(instances, verdicts, SOURCE, first, REMOVED) + _number(instances, verdicts, SOURCE, second, MISSING)
    originals = sum(_number(instances, verdicts, SOURCE, name) for name in edit.categories)
    return delivered, lost, originals


_COUNTS = {ADD: _of_addition, REMOVE: _of_removal, CHANGE: _of_change}


def _failures(edit: Edit, verdicts: Sequence[str], delivered: int, lost: int) -> list[str]:
    found = []
    if delivered != edit.count:
        found.append(UNDERSHOOT if delivered < edit.count else OVERSHOOT)
    if edit.operation != REMOVE and MISSING in verdicts:
        found.append(OVERWRITTEN)
    painted = edit.operation == REMOVE and lost > 0
    if painted or (edit.operation == CHANGE and REMOVED in verdicts and ADDED in verdicts):
        found.append(ELSEWHERE)
    return found
