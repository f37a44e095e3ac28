"""Which groups a gallery shows, and what their cards say."""

from __future__ import annotations

import dataclasses

import pytest

from tallymill.engine.physcount.data import Appearance
from tallymill.engine.physcount.parse import Parsed
from tallymill.engine.physcount.predictions import Answer, read_predictions
from tallymill.engine.physcount.score import score
from tallymill.engine.report.physcount.gallery import Gallery, chosen, raw
from tallymill.engine.report.physcount.gallery_view import filters, marks_of, shown_cards


@pytest.fixture
def dataset(tmp_path, physcount_example):
    return physcount_example.worked_dataset(tmp_path / "set")


@pytest.fixture
def predictions(tmp_path, dataset, physcount_example):
    return read_predictions(physcount_example.worked_predictions(tmp_path / "p.jsonl"), dataset)


def test_worst_typical_and_random_groups_none_twice(dataset, predictions):
    cards = chosen(dataset, [predictions], [score(predictions, resamples=0)], 1)
    assert [card.kind for card in cards] == ["worst", "typical", "random"]
    assert len({card.group.group_id for card in cards}) == 3
    assert cards[0].score == min(row.score for row in score(predictions, resamples=0).groups)
    again = chosen(dataset, [predictions], [score(predictions, resamples=0)], 1)
    assert [card.group.group_id for card in again] == [card.group.group_id for card in cards]
    assert chosen(dataset, [predictions], [score(predictions, resamples=0)], 0) == []


def test_more_than_there_are_is_all_of_them(dataset, predictions):
    cards = chosen(dataset, [predictions], [score(predictions, resamples=0)], 50)
    assert sorted(card.group.group_id for card in cards) == ["g1", "g2", "g3", "g4"]
    assert {card.kind for card in cards} == {"worst"}
    # Dealt in turn: the first two have other sets of modes.
    modes = [{one.mode for one in card.group.appearances} for card in cards]
    assert modes[0] != modes[1] != modes[2]


def test_a_card_says_which_families_failed_and_what_was_written(dataset, predictions):
    cards = chosen(dataset, [predictions], [score(predictions, resamples=0)], 4)
    by_id = {card.it.group.group_id: card for card in shown_cards(Gallery(tuple(cards), ("p",)))}
    assert by_id["g1"].failed == "entity image_formation correspondence"
    assert by_id["g4"].failed == "none"
    assert by_id["g3"].modes == "direct through_glass"
    [told] = by_id["g3"].told
    assert (told.number, told.text, told.long) == (2, "two", False)
    second = by_id["g3"].questions[1]
    assert (second.letter, second.cells[0].said, second.cells[0].exact) == ("E", "malformed", False)
    assert {name: options for name, _, options in filters(Gallery(tuple(cards), ("p",)))}["failed"] == [
        ("appearance", "Appearance"),
        ("entity", "Entity"),
        ("image_formation", "Image formation"),
        ("correspondence", "Correspondence"),
        ("none", "no family"),
    ]


def test_many_models_are_told_by_how_often_each_answer_was_given(dataset, predictions):
    sets = [dataclasses.replace(predictions, name=f"m{k}") for k in range(6)]
    found = [score(one, resamples=0) for one in sets]
    [card] = shown_cards(Gallery(tuple(chosen(dataset, sets, found, 1)[:1]), tuple(one.name for one in sets)))
    assert card.questions[0].cells == []
    assert sum(times for _, times, _ in card.questions[0].tally) == 6
    assert [name for name, _ in card.each] == [f"m{k}" for k in range(6)]


def test_the_end_of_a_long_response_is_shown(dataset, predictions):
    answers = dict(predictions.answers)
    answers["a1"] = Answer(Parsed("malformed"), "x" * 100_000 + " the end")
    one = dataclasses.replace(predictions, answers=answers)
    cards = shown_cards(Gallery(tuple(chosen(dataset, [one], [score(one, resamples=0)], 4)), ("p",)))
    [told] = [t for card in cards if card.it.group.group_id == "g1" for t in card.told if t.number == 1]
    assert told.long
    assert len(told.text) < 2_500
    assert told.text.endswith("the end (100,008 characters)")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(Parsed("valid", 5), "5"), None),
        (Answer(Parsed("valid", 5), " 5\n"), None),
        (Answer(Parsed("valid", 5), 5), None),
        (Answer(Parsed("valid", 5), "<think>4?</think>5"), "<think>4?</think>5"),
        (Answer(Parsed("malformed"), 5.0), "5.0"),
        (Answer(Parsed("missing"), None), None),
        (Answer(Parsed("missing"), None, "503: busy"), "no answer: 503: busy"),
        (Answer(Parsed("valid", 5), [{"type": "text", "text": "5"}]), None),
        (Answer(Parsed("malformed"), [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "ab"),
    ],
)
def test_a_bare_count_is_not_repeated(answer, expected):
    assert raw(answer) == expected


@pytest.mark.parametrize(
    ("turned", "place"), [(1, (10.0, 20.0)), (5, (20.0, 10.0)), (6, (80.0, 10.0)), (7, (80.0, 90.0)), (8, (20.0, 90.0))]
)
def test_marks_are_where_the_upright_image_shows_them(dataset, turned, place):
    """A point near the left top of the stored image; orientation 6 is turned a quarter clockwise."""
    group = dataclasses.replace(dataset.groups["g1"], appearances=(Appearance("a", "e", "direct", 0.1, 0.2),))
    [mark] = marks_of(group, turned)
    assert (mark.left, mark.top, mark.number) == (*place, 1)


def test_appearances_of_one_entity_share_number_and_colour(dataset):
    rows = [Appearance(f"a{k}", entity, "direct", 0.5, 0.5) for k, entity in enumerate(("b", "a", "b"))]
    marks = marks_of(dataclasses.replace(dataset.groups["g1"], appearances=tuple(rows)))
    assert [mark.number for mark in marks] == [1, 2, 1]
    assert marks[0].colour == marks[2].colour != marks[1].colour
    assert (marks[0].ink, marks[1].ink) == ("#ffffff", "#000000")
