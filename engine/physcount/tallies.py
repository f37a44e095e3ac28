"""Answers as arrays: errors a question, means a group, sums an image. All metrics are ratios of the last.

Groups are taken by (image, group) in the order of their ids, so that no order of lines shows in a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.physcount.data import APPEARANCE, FAMILIES, Dataset, Group
from tallymill.engine.physcount.predictions import Predictions

Floats = NDArray[np.float64]
_F = len(FAMILIES)


@dataclass(frozen=True, slots=True)
class Judged:
    """Q questions by group: ``group`` and ``family`` int64 [Q] are places, ``true`` int64 [Q] the answers.

    ``value`` int64 [Q] is what was predicted, -1 where nothing valid was.
    """

    group: NDArray[np.int64]
    family: NDArray[np.int64]
    true: NDArray[np.int64]
    value: NDArray[np.int64]

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Which have a valid answer: bool [Q]."""
        found: NDArray[np.bool_] = self.value >= 0
        return found

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Which are answered exactly: bool [Q]."""
        found: NDArray[np.bool_] = self.value == self.true
        return found

    @property
    def error(self) -> Floats:
        """Predicted minus true, NaN where nothing valid was predicted: float64 [Q]."""
        return np.where(self.valid, self.value - self.true, np.nan)

    @property
    def nae(self) -> Floats:
        """Normalised absolute error, float64 [Q]: min(1, abs(p - y) / max(y, 1)), 1 without a valid answer."""
        return np.where(self.valid, np.minimum(1.0, np.abs(self.value - self.true) / np.maximum(self.true, 1)), 1.0)


@dataclass(frozen=True, slots=True)
class Grouped:
    """G groups in order, of I images: ``image`` int64 [G] into ``images``.

    By group and family float64 [G, 4]: ``asked`` and ``valid`` count questions, ``exact`` exact ones; ``nae`` and
    ``mae`` are means (mae over valid answers), NaN where there is nothing to average. ``score``, ``perfect`` and
    ``phys_gnd`` float64 [G]; ``phys_gnd`` is NaN where a group does not qualify.
    """

    groups: Sequence[Group]
    images: Sequence[str]
    image: NDArray[np.int64]
    asked: Floats
    valid: Floats
    exact: Floats
    nae: Floats
    mae: Floats
    score: Floats
    perfect: Floats
    phys_gnd: Floats


def ordered_groups(dataset: Dataset) -> list[Group]:
    """By image, then by group."""
    return sorted(dataset.groups.values(), key=lambda group: (group.image_id, group.group_id))


def judged_of(predictions: Predictions) -> Judged:
    """Predictions beside the true answers."""
    places = {group.group_id: place for place, group in enumerate(ordered_groups(predictions.dataset))}
    families = {family: place for place, family in enumerate(FAMILIES)}
    questions = sorted(predictions.dataset.questions, key=lambda question: question.question_id)
    values = [predictions.answers[question.question_id].parsed.value for question in questions]
    rows = [
        (places[question.group_id], families[question.family], question.answer, -1 if value is None else value)
        for question, value in zip(questions, values, strict=True)
    ]
    return Judged(*np.array(rows, np.int64).reshape(-1, 4).T)


def grouped_of(dataset: Dataset, judged: Judged) -> Grouped:
    """Means inside each group and family, and what a group comes to (paper, Metrics)."""
    groups = ordered_groups(dataset)
    images = dataset.image_ids
    at = {image: place for place, image in enumerate(images)}
    cell = judged.group * _F + judged.family

    def sums(values: NDArray[np.generic]) -> Floats:
        found: Floats = np.bincount(cell, values, len(groups) * _F).astype(np.float64).reshape(len(groups), _F)
        return found

    asked, valid, exact = sums(np.ones(len(cell))), sums(judged.valid), sums(judged.exact)
    with np.errstate(invalid="ignore"):
        nae = sums(judged.nae) / asked
        mae = sums(np.where(judged.valid, np.abs(judged.value - judged.true), 0)) / valid
    perfect = (exact == asked).all(axis=1) & (asked.sum(axis=1) > 0)
    return Grouped(
        groups=groups,
        images=images,
        image=np.array([at[group.image_id] for group in groups], np.int64),
        asked=asked,
        valid=valid,
        exact=exact,
        nae=nae,
        mae=mae,
        score=np.where(np.isnan(nae), 1.0, 1.0 - nae).prod(axis=1),
        perfect=perfect.astype(np.float64),
        phys_gnd=_phys_gnd(asked, exact, nae),
    )


def _phys_gnd(asked: Floats, exact: Floats, nae: Floats) -> Floats:
    """The harmonic mean of three accuracies, 0 if any is 0, where all families are there and appearances are exact."""
    appearance = FAMILIES.index(APPEARANCE)
    qualifies = (asked > 0).all(axis=1) & (exact[:, appearance] == asked[:, appearance])
    others = 1.0 - np.delete(nae, appearance, axis=1)
    positive = qualifies & (others > 0).all(axis=1)
    harmonic = others.shape[1] / (1.0 / np.where(positive[:, None], others, 1.0)).sum(axis=1)
    return np.where(qualifies, np.where(positive, harmonic, 0.0), np.nan)


def image_sums(grouped: Grouped, chosen: NDArray[np.bool_] | None = None) -> Floats:
    """What every metric is a ratio of, by image: float64 [I, 2 M], the sums over groups and then the numbers of groups.

    The M metrics are score, group_acc, phys_gnd, then nae of each family, then mae of each. ``chosen`` bool [G] takes
    some groups only.
    """
    values = np.column_stack([grouped.score, grouped.perfect, grouped.phys_gnd, grouped.nae, grouped.mae])
    of = np.ones(len(values), np.bool_) if chosen is None else chosen
    there = ~np.isnan(values) & of[:, None]
    columns = np.concatenate([np.where(there, values, 0.0), there], axis=1)
    found = np.zeros((len(grouped.images), columns.shape[1]))
    np.add.at(found, grouped.image, columns)
    return found


def metrics_of(sums: Floats) -> Floats:
    """The metrics [..., M] from sums over images [..., 2 M]; NaN where no group has one."""
    top, number = np.split(sums, 2, axis=-1)
    found: Floats = np.divide(top, number, out=np.full(top.shape, np.nan), where=number > 0)
    return found
