"""What scoring finds: one dataclass a table, one instance a row. Tables, files and pages are made from these.

``None`` stands for a value that does not exist, such as a mean over nothing. NAE and the three aggregate metrics are on
a scale of 0 to 100, MAE is in counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tallymill.engine.estimates import Estimate
from tallymill.engine.physcount.data import Size


@dataclass(frozen=True, slots=True)
class FamilyScores:
    """One question family: means inside each group, then over the ``groups`` that have the family.

    ``accuracy`` is 100 - ``nae``; ``mae`` is over the ``mae_groups`` that have a valid answer in the family, and over
    those answers alone. ``exact`` counts questions that were answered exactly.
    """

    family: str
    groups: int
    questions: int
    valid: int
    exact: int
    mae_groups: int
    mae: Estimate
    nae: Estimate
    accuracy: Estimate


@dataclass(frozen=True, slots=True)
class Headline:
    """The three aggregate metrics over some groups (paper, Metrics).

    ``phys_gnd`` is over the ``grounded`` groups that have all four families and an exact appearance answer.
    """

    groups: int
    questions: int
    grounded: int
    score: Estimate
    group_acc: Estimate
    phys_gnd: Estimate


@dataclass(frozen=True, slots=True)
class Part:
    """The headline and the families over some of the groups: ``by`` says what told them apart, ``name`` which."""

    by: str
    name: str
    headline: Headline
    families: list[FamilyScores]


@dataclass(frozen=True, slots=True)
class CountRow:
    """Questions whose true answer lies in one range of counts. ``nae`` and ``bias`` are means over questions.

    ``bias`` is predicted minus true, over valid answers.
    """

    family: str
    answers: str
    questions: int
    valid: int
    exact: int
    nae: float | None
    bias: float | None


@dataclass(frozen=True, slots=True)
class GroupScore:
    """One group: the accuracy (0 to 100) of each family that it has, their product, and how many answers are exact."""

    group_id: str
    image_id: str
    accuracy: dict[str, float]
    score: float
    exact: int
    questions: int
    phys_gnd: float | None


@dataclass(frozen=True, slots=True)
class Statuses:
    """Questions by what became of their answers."""

    questions: int
    valid: int
    missing: int
    malformed: int
    negative: int
    extreme: int


@dataclass(frozen=True, slots=True)
class Scores:
    """Everything that one set of predictions came to. ``settings``: parse rule, largest count, resamples.

    ``path`` and ``mode`` say what the predictions are, ``missing`` and what follows it which questions have no answer
    and why (see ``Predictions``); ``notes`` are what a reader must know before the numbers. ``parts`` tell groups apart
    by the image-formation modes among their appearances.
    """

    name: str
    path: str
    mode: str
    settings: dict[str, Any]
    notes: list[str]
    statuses: Statuses
    headline: Headline
    families: list[FamilyScores]
    parts: list[Part]
    counts: list[CountRow]
    groups: list[GroupScore]
    missing: list[str]
    unknown: list[str]
    duplicates: list[str]
    failed: dict[str, str]
    refused: dict[str, str]
    unasked: list[str]
    whole: Size
    record: dict[str, Any] | None = None

    @property
    def part(self) -> bool:
        """Whether only a part of the set was asked about."""
        return self.headline.groups < self.whole.groups


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of two sets of predictions over the groups that both were asked: ``a`` - ``b``, paired by image.

    ``a_groups`` and ``b_groups`` have a value of it. It is of ``like`` with like where these are the same groups, and
    in them the same answers count.
    """

    metric: str
    a: float | None
    b: float | None
    difference: Estimate
    a_groups: int
    b_groups: int
    like: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sets of predictions beside each other, over ``groups`` groups of ``images`` images.

    ``settings`` and ``notes`` are as those of ``Scores``, the notes of both sets; ``left_out`` tells of groups that one
    alone was asked; ``failed`` and ``refused`` count questions of both over the groups that are compared.
    """

    a: str
    b: str
    groups: int
    images: int
    settings: dict[str, Any]
    rows: list[Difference]
    notes: list[str]
    left_out: list[str]
    failed: int
    refused: int
