"""The metrics of PhysCount (paper, Metrics) with intervals, breakdowns, and paired comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.estimates import Estimate, Estimates
from tallymill.engine.physcount.data import FAMILIES, MODES, Dataset
from tallymill.engine.physcount.parse import MAX_COUNT, STATUSES, Rule
from tallymill.engine.physcount.predictions import Predictions, cut
from tallymill.engine.physcount.results import (
    Comparison,
    CountRow,
    Difference,
    FamilyScores,
    GroupScore,
    Headline,
    Part,
    Scores,
    Statuses,
)
from tallymill.engine.physcount.tallies import (
    Grouped,
    Judged,
    grouped_of,
    image_sums,
    judged_of,
    metrics_of,
)
from tallymill.engine.resampling import resampled_sums
from tallymill.engine.words import counted, listed
from tallymill.errors import UsageError

RESAMPLES, MOST_RESAMPLES = 2_000, 100_000
# How often each resample takes each image is held in memory: numbers of 8 bytes.
_MOST_HELD = 1 << 29
SCORE, GROUP_ACC, PHYS_GND = "score", "group_acc", "phys_gnd"
# As ``image_sums`` has them; MAE alone is in counts and not in per cent.
METRICS = (
    SCORE,
    GROUP_ACC,
    PHYS_GND,
    *(f"nae.{family}" for family in FAMILIES),
    *(f"mae.{family}" for family in FAMILIES),
)
_UNITS = np.array([1.0 if name.startswith("mae.") else 100.0 for name in METRICS])
# True answers are told apart by these least counts.
_LEAST = (0, 1, 2, 4, 6, 11, 21)


def score(
    predictions: Predictions, *, resamples: int = RESAMPLES, rule: Rule = "strict", max_count: int = MAX_COUNT
) -> Scores:
    """Every metric of one set of predictions; intervals are 95 % percentile bootstraps over images.

    ``rule`` and ``max_count`` are those that the predictions were read with, and are recorded.
    """
    settings = _settings(rule, max_count, resamples, predictions.dataset)
    judged = judged_of(predictions)
    grouped = grouped_of(predictions.dataset, judged)
    headline, families = _part(grouped, None, resamples)
    return Scores(
        name=predictions.name,
        path=predictions.path,
        mode=predictions.mode,
        settings=settings,
        notes=[*_notes(predictions, rule)],
        statuses=_statuses(predictions),
        headline=headline,
        families=families,
        parts=[*_parts(grouped, resamples)],
        counts=[*_counts(judged)],
        groups=[*_groups(grouped)],
        missing=predictions.missing,
        unknown=predictions.unknown,
        duplicates=predictions.duplicates,
        failed=predictions.failed,
        refused=predictions.refused,
        unasked=predictions.unasked,
        whole=predictions.whole or predictions.dataset.size,
        record=predictions.record,
    )


def compare(
    a: Predictions,
    b: Predictions,
    *,
    resamples: int = RESAMPLES,
    rule: Rule = "strict",
    max_count: int = MAX_COUNT,
) -> Comparison:
    """``a`` minus ``b`` in every metric, over the groups that both were asked, with intervals from the same resamples
    of images. The groups that count for Phys-Gnd, and the answers that count for MAE, are each one's own; ``rule`` and
    ``max_count`` are as in ``score``.
    """
    settings = _settings(rule, max_count, resamples, a.dataset)
    both = [key for key in a.dataset.groups if key in b.dataset.groups]
    if not both:
        raise UsageError(f"{a.name} and {b.name} were asked about no group in common")
    dataset = cut(a.dataset, both)
    rows = _differences(dataset, [judged_of(replace(given, dataset=dataset)) for given in (a, b)], resamples)
    left_out = [
        f"{counted(len(given.dataset.groups) - len(both), 'group')} of {given.name} left out: not asked of both."
        for given in (a, b)
        if len(given.dataset.groups) > len(both)
    ]
    notes = [*_notes_of_both(a, b, rule)]
    shared = {question.question_id for question in dataset.questions}
    failed, refused = (
        sum(key in shared for ids in of_both for key in ids)
        for of_both in ((a.failed, b.failed), (a.refused, b.refused))
    )
    images = len(dataset.image_ids)
    return Comparison(a.name, b.name, len(both), images, settings, rows, notes, left_out, failed, refused)


def _differences(dataset: Dataset, judged: Sequence[Judged], resamples: int) -> list[Difference]:
    """The first minus the second in every metric."""
    grouped = [grouped_of(dataset, one) for one in judged]
    sums = [image_sums(one) for one in grouped]
    points = [metrics_of(one.sum(axis=0)) * _UNITS for one in sums]
    groups = [one.sum(axis=0)[len(METRICS) :].astype(int).tolist() for one in sums]
    drawn = [metrics_of(resampled_sums(one, resamples)) * _UNITS for one in sums] if resamples else []
    found = Estimates(
        {"difference": (points[0] - points[1])[None]}, {"difference": drawn[0] - drawn[1]} if drawn else {}
    )
    first, second = judged
    grounded = [np.isnan(one.phys_gnd) for one in grouped]
    differ = {f"mae.{FAMILIES[place]}" for place in first.family[first.valid != second.valid]}
    differ |= {PHYS_GND} if (grounded[0] != grounded[1]).any() else set()
    return [
        Difference(
            metric=name,
            a=_number(points[0][place]),
            b=_number(points[1][place]),
            difference=found("difference", place),
            a_groups=groups[0][place],
            b_groups=groups[1][place],
            like=name not in differ,
        )
        for place, name in enumerate(METRICS)
    ]


def _settings(rule: Rule, max_count: int, resamples: int, dataset: Dataset) -> dict[str, Any]:
    """What shapes the numbers, checked."""
    if resamples < 0:
        raise UsageError(f"resamples {resamples}: must be 0 or more")
    images = len(dataset.image_ids)
    most = min(MOST_RESAMPLES, _MOST_HELD // max(images, 1))
    if resamples > most:
        raise UsageError(f"resamples {resamples:,}: must be {most:,} or fewer with {counted(images, 'image')}")
    return {"parse": rule, "max_count": max_count, "resamples": resamples}


def _part(grouped: Grouped, chosen: NDArray[np.bool_] | None, resamples: int) -> tuple[Headline, list[FamilyScores]]:
    """The metrics over all groups, or over some."""
    of = np.ones(len(grouped.groups), np.bool_) if chosen is None else chosen
    sums = image_sums(grouped, chosen)
    point = metrics_of(sums.sum(axis=0)) * _UNITS
    # Images none of whose groups is among the chosen are not drawn.
    drawn = metrics_of(resampled_sums(sums[np.unique(grouped.image[of])], resamples)) * _UNITS if resamples else None
    nae = slice(METRICS.index(f"nae.{FAMILIES[0]}"), METRICS.index(f"nae.{FAMILIES[-1]}") + 1)
    estimates = Estimates(
        {"metric": point[None], "accuracy": (100.0 - point[nae])[None]},
        {} if drawn is None else {"metric": drawn, "accuracy": 100.0 - drawn[:, nae]},
    )

    def metric(name: str) -> Estimate:
        return estimates("metric", METRICS.index(name))

    asked, valid, exact = (values[of] for values in (grouped.asked, grouped.valid, grouped.exact))
    families = [
        FamilyScores(
            family=family,
            groups=int((asked[:, place] > 0).sum()),
            questions=int(asked[:, place].sum()),
            valid=int(valid[:, place].sum()),
            exact=int(exact[:, place].sum()),
            mae_groups=int((valid[:, place] > 0).sum()),
            mae=metric(f"mae.{family}"),
            nae=metric(f"nae.{family}"),
            accuracy=estimates("accuracy", place),
        )
        for place, family in enumerate(FAMILIES)
    ]
    headline = Headline(
        groups=int(of.sum()),
        questions=int(asked.sum()),
        grounded=int((~np.isnan(grouped.phys_gnd[of])).sum()),
        score=metric(SCORE),
        group_acc=metric(GROUP_ACC),
        phys_gnd=metric(PHYS_GND),
    )
    return headline, families


def _parts(grouped: Grouped, resamples: int) -> Iterator[Part]:
    """Groups told apart by the set of modes among their appearances."""
    named = np.array([modes_name({one.mode for one in group.appearances}) for group in grouped.groups], object)
    for name in sorted(set(named.tolist()), key=lambda name: (name.count("+"), name)):
        yield Part("image formation", name, *_part(grouped, named == name, resamples))


def modes_name(modes: set[str]) -> str:
    """``direct + reflection``; "none" for a group without appearances."""
    return " + ".join(mode.replace("_", " ") for mode in MODES if mode in modes) or "none"


def _counts(judged: Judged) -> Iterator[CountRow]:
    edges = [*pairwise(_LEAST), (_LEAST[-1], None)]
    for place, family in [*enumerate(FAMILIES), (None, "all")]:
        of_family = np.ones(len(judged.true), np.bool_) if place is None else judged.family == place
        for least, above in edges:
            of = of_family & (judged.true >= least) & (judged.true < (np.inf if above is None else above))
            some = of & judged.valid
            yield CountRow(
                family=family,
                answers=f"{least}+" if above is None else str(least) if above == least + 1 else f"{least}-{above - 1}",
                questions=int(of.sum()),
                valid=int(some.sum()),
                exact=int(judged.exact[of].sum()),
                nae=float(100.0 * judged.nae[of].mean()) if of.any() else None,
                bias=float(judged.error[some].mean()) if some.any() else None,
            )


def _groups(grouped: Grouped) -> Iterator[GroupScore]:
    for place, group in enumerate(grouped.groups):
        accuracies = {
            family: float(100.0 * (1.0 - grouped.nae[place, at]))
            for at, family in enumerate(FAMILIES)
            if grouped.asked[place, at]
        }
        yield GroupScore(
            group.group_id,
            group.image_id,
            accuracies,
            float(100.0 * grouped.score[place]),
            int(grouped.exact[place].sum()),
            int(grouped.asked[place].sum()),
            _number(100.0 * grouped.phys_gnd[place]),
        )


def _statuses(predictions: Predictions) -> Statuses:
    kinds = Counter(answer.parsed.status for answer in predictions.answers.values())
    return Statuses(kinds.total(), *(kinds[name] for name in STATUSES))


def _notes(predictions: Predictions, rule: Rule) -> Iterator[str]:
    yield from predictions.notes
    if rule != "strict":
        yield "Answers are the last integer of each response: these numbers do not compare with strict ones."
    if predictions.unasked:
        left, total = len(predictions.unasked), counted(len(predictions.answers), "question")
        yield f"Unfinished: {left:,} of {total} not asked yet, and counted as wrong; the same ask command goes on."
    told = {*predictions.unasked, *predictions.refused, *predictions.failed}
    silent = [key for key in predictions.missing if key not in told]
    for ids, one, several in (
        (list(predictions.refused), "was refused, and counts as wrong", "were refused, and count as wrong"),
        (list(predictions.failed), "failed, and counts as wrong", "failed, and count as wrong"),
        (silent, "has no answer, and counts as wrong", "have no answer, and count as wrong"),
        (predictions.unknown, "of no question, left aside", "of no question, left aside"),
        (predictions.duplicates, "answered twice in the same words", "answered twice in the same words"),
    ):
        if ids:
            yield f"{counted(len(ids), 'question id')} {one if len(ids) == 1 else several}: {listed(ids, 5)}."


def _notes_of_both(a: Predictions, b: Predictions, rule: Rule) -> Iterator[str]:
    """The notes of two sets, with the name where a note is of one alone."""
    first, second = [*_notes(a, rule)], [*_notes(b, rule)]
    yield from (note for note in first if note in second)
    for given, own, other in ((a, first, second), (b, second, first)):
        yield from (f"{given.name}: {note}" for note in own if note not in other)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
