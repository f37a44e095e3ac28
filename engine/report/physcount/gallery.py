"""What a gallery of PhysCount's groups shows: one ``Card`` a group, with its appearances, questions and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tallymill.engine.physcount.data import FAMILIES, Dataset, Group, Question
from tallymill.engine.physcount.parse import text_of
from tallymill.engine.physcount.predictions import Answer, Predictions
from tallymill.engine.physcount.results import Scores
from tallymill.engine.physcount.score import modes_name

WORST, TYPICAL, RANDOM = KINDS = ("worst", "typical", "random")


@dataclass(frozen=True, slots=True)
class Reply:
    """What one model answered to one question: ``place`` is the model's among all.

    ``said`` is the count, or what is wrong with the answer; ``response`` the raw text where it is more than that count.
    """

    place: int
    said: str
    exact: bool
    response: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """One question of a group with the replies of those who were asked it."""

    question: Question
    replies: tuple[Reply, ...]

    @property
    def exact(self) -> int:
        """How many replies are exact."""
        return sum(reply.exact for reply in self.replies)


@dataclass(frozen=True, slots=True)
class Card:
    """One group. ``kind`` is of ``KINDS``; ``score`` is the mean of its score (0 to 100) over ``models``.

    ``joint`` has the one response of each model, by place, that answered all questions together. ``thumbnail`` is a
    WebP file; None where the image could not be read, and then ``reason`` says why. ``turned`` is the orientation
    (EXIF) that turns the annotated image into the one that is shown, 1 where they are the same.
    """

    group: Group
    kind: str
    score: float
    models: int
    asked: tuple[Asked, ...]
    joint: tuple[tuple[int, str], ...]
    thumbnail: bytes | None = None
    thumbnail_size: tuple[int, int] = (0, 0)
    turned: int = 1
    reason: str | None = None

    @property
    def failed(self) -> list[str]:
        """Families of questions that not everybody answered exactly."""
        wrong = {asked.question.family for asked in self.asked if asked.exact < len(asked.replies)}
        return [family for family in FAMILIES if family in wrong]


@dataclass(frozen=True, slots=True)
class Gallery:
    """The cards with what a reader must know about them: ``models`` are the names of all sets of predictions."""

    cards: tuple[Card, ...] = ()
    models: tuple[str, ...] = field(default=())

    @property
    def gone(self) -> int:
        """How many images could not be shown."""
        return sum(card.thumbnail is None for card in self.cards)


def chosen(
    dataset: Dataset, sets: Sequence[Predictions], found: Sequence[Scores], number: int, *, seed: int = 0
) -> list[Card]:
    """The cards, without images, of ``number`` groups of each kind, none of them twice, in that order.

    Worst is what has the lowest mean score over the sets, typical what is nearest to the median. Groups are dealt in
    turn over the sets of modes that they hold, so that rare ones are seen too.
    """
    scores = _means(found)
    rng = np.random.default_rng([seed])
    shuffled = [sorted(scores)[place] for place in rng.permutation(len(scores))]
    middle = float(np.median([mean for mean, _ in scores.values()])) if scores else 0.0
    orders = {
        WORST: sorted(shuffled, key=lambda key: scores[key]),
        TYPICAL: sorted(shuffled, key=lambda key: abs(scores[key][0] - middle)),
        RANDOM: shuffled,
    }
    left = set(shuffled)
    cards = []
    for kind in KINDS:
        for key in _dealt([key for key in orders[kind] if key in left], dataset)[:number]:
            left.remove(key)
            cards.append(_card(dataset.groups[key], kind, scores[key][0], sets))
    return cards


def _means(found: Sequence[Scores]) -> dict[str, tuple[float, float]]:
    """Mean score of every group that anybody was asked, and the share of exact answers."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        for row in one.groups:
            rows.setdefault(row.group_id, []).append((row.score, row.exact / max(row.questions, 1)))
    means = {key: np.mean(own, axis=0).tolist() for key, own in rows.items()}
    return {key: (score, exact) for key, (score, exact) in means.items()}


def _dealt(keys: Sequence[str], dataset: Dataset) -> list[str]:
    """The same keys, in turn from each set of modes, in their order within it."""
    turns: dict[str, int] = {}
    ranks = {}
    for place, key in enumerate(keys):
        modes = modes_name({one.mode for one in dataset.groups[key].appearances})
        turns[modes] = turns.get(modes, -1) + 1
        ranks[key] = (turns[modes], place)
    return sorted(keys, key=lambda key: ranks[key])


def _card(group: Group, kind: str, score: float, sets: Sequence[Predictions]) -> Card:
    asked_of = [(place, one) for place, one in enumerate(sets) if group.group_id in one.dataset.groups]
    return Card(
        group=group,
        kind=kind,
        score=score,
        models=len(asked_of),
        asked=tuple(Asked(question, tuple(_replies(question, asked_of))) for question in group.questions),
        joint=tuple(_joint(group, asked_of)),
    )


def _replies(question: Question, sets: Sequence[tuple[int, Predictions]]) -> Iterator[Reply]:
    for place, one in sets:
        answer = one.answers[question.question_id]
        value = answer.parsed.value
        response = None if one.mode == "joint" else raw(answer)
        said = answer.parsed.status if value is None else f"{value:,}"
        yield Reply(place, said, value == question.answer, response)


def _joint(group: Group, sets: Sequence[tuple[int, Predictions]]) -> Iterator[tuple[int, str]]:
    for place, one in sets:
        if one.mode == "joint" and group.questions:
            response = raw(one.answers[group.questions[0].question_id], always=True)
            if response is not None:
                yield place, response


def raw(answer: Answer, *, always: bool = False) -> str | None:
    """What a model wrote, or why it wrote nothing; None where that is the bare count, unless ``always``."""
    if answer.error is not None:
        return f"no answer: {answer.error}"
    if answer.response is None:
        return None
    text = text_of(answer.response)
    written = json.dumps(answer.response, ensure_ascii=False, default=str) if text is None else text
    bare = answer.parsed.value is not None and written.strip() == str(answer.parsed.value)
    return written if always or not bare else None
