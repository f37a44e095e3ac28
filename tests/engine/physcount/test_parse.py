"""From responses to counts: the strict rule, the looser one, and arrays of a whole group."""

from __future__ import annotations

import pytest

from tallymill.engine.physcount.parse import Parsed, json_integer, parse_answer, parse_joint, parse_prediction


def valid(value: int) -> Parsed:
    return Parsed("valid", value)


MISSING, MALFORMED, NEGATIVE, EXTREME = (Parsed(status) for status in ("missing", "malformed", "negative", "extreme"))

# The response, what it is strictly, and by its last integer.
ANSWERS = [
    ("12", valid(12), valid(12)),
    (" 12\n", valid(12), valid(12)),
    ("+7", valid(7), valid(7)),
    ("-0", valid(0), valid(0)),
    ("-3", NEGATIVE, NEGATIVE),
    ("007", valid(7), valid(7)),
    (None, MISSING, MISSING),
    ([{"type": "text", "text": "1"}, {"type": "text", "text": "2"}], valid(12), valid(12)),
    ([{"type": "image_url"}], MISSING, MISSING),
    ([], MISSING, MISSING),
    ([{"type": "text", "text": None}, {"type": "reasoning", "text": "3?"}], MISSING, MISSING),
    ([{"type": "text", "text": 3}], MALFORMED, MALFORMED),
    ([3], MALFORMED, MALFORMED),
    ({"text": "3"}, MALFORMED, MALFORMED),
    (13, MALFORMED, MALFORMED),
    (3.5, MALFORMED, MALFORMED),
    (True, MALFORMED, MALFORMED),
    (json_integer("9" * 5_000), MALFORMED, MALFORMED),
    ("", MALFORMED, MALFORMED),
    ("<think>3 or 4</think>5", valid(5), valid(5)),
    ("a<think>1</think>b<think>2</think> 6 ", valid(6), valid(6)),
    ("<think>3 or 4", MALFORMED, MALFORMED),
    ("<think>1</think>2<think>3", MALFORMED, MALFORMED),
    ("</think>8", valid(8), valid(8)),
    ("**12**", MALFORMED, valid(12)),
    ("\\boxed{7}", MALFORMED, valid(7)),
    ("1,234", MALFORMED, valid(1234)),
    ("1 234", MALFORMED, valid(234)),
    ("21.0", MALFORMED, MALFORMED),
    ("There are 3 of them.", MALFORMED, valid(3)),
    ("3 or 4", MALFORMED, valid(4)),
    ("x12", MALFORMED, MALFORMED),
    ("２１", valid(21), valid(21)),
    ("＋２", valid(2), valid(2)),
    ("٣", MALFORMED, valid(3)),
    ("²", MALFORMED, MALFORMED),
    ("twelve", MALFORMED, MALFORMED),
    ("1" * 5_000, EXTREME, EXTREME),
    ("-" + "1" * 30, EXTREME, EXTREME),
    ("0" * 19 + "5", valid(5), valid(5)),
    ("1000000", valid(1_000_000), valid(1_000_000)),
    ("1000001", EXTREME, EXTREME),
    ("5\u2028", valid(5), valid(5)),
]


@pytest.mark.parametrize(("response", "strict", "last"), ANSWERS)
def test_answers(response, strict, last):
    assert parse_answer(response) == strict
    assert parse_answer(response, rule="last-integer") == last


@pytest.mark.parametrize("rule", ["strict", "last-integer"])
def test_an_answer_that_was_cut_is_malformed(rule):
    assert parse_answer("12", finish_reason="stop", rule=rule) == valid(12)
    assert parse_answer("12", finish_reason="length", rule=rule) == MALFORMED
    assert parse_joint("[1]", 1, finish_reason="length", rule=rule) == [MALFORMED]


@pytest.mark.parametrize("nothing", [None, [], [{"type": "image_url"}]])
def test_nothing_is_missing_and_malformed_where_it_was_cut(nothing):
    assert (parse_answer(nothing), parse_joint(nothing, 2)) == (MISSING, [MISSING] * 2)
    assert parse_answer(nothing, finish_reason="stop") == MISSING
    assert parse_answer(nothing, finish_reason="length") == MALFORMED
    assert parse_joint(nothing, 2, finish_reason="length") == [MALFORMED] * 2


def test_the_largest_count_is_a_setting():
    assert parse_answer("101", max_count=100) == EXTREME
    assert parse_answer("100", max_count=100) == valid(100)
    assert parse_answer("1" * 20, max_count=10**30) == valid(int("1" * 20))
    assert parse_answer("1" * 21, max_count=10**30) == EXTREME


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, valid(3)),
        (0, valid(0)),
        (-1, NEGATIVE),
        (10**7, EXTREME),
        (json_integer("9" * 5_000), EXTREME),
        (3.0, MALFORMED),
        (True, MALFORMED),
        ([3], MALFORMED),
        ([], MALFORMED),
        ({"count": 3}, MALFORMED),
        (None, MISSING),
        ("3", valid(3)),
        ("three", MALFORMED),
    ],
)
def test_predictions_of_files(value, expected):
    assert parse_prediction(value) == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("[1, 2, 3]", [valid(1), valid(2), valid(3)]),
        ("```json\n[1, 2, 3]\n```", [valid(1), valid(2), valid(3)]),
        ("```\n[1,\n 2, 3]\n```", [valid(1), valid(2), valid(3)]),
        ("```[1, 2, 3]```", [valid(1), valid(2), valid(3)]),
        ("```json [1, 2, 3] ```", [valid(1), valid(2), valid(3)]),
        ("```json\n[1, 2, 3]```", [valid(1), valid(2), valid(3)]),
        ("``` json\r\n[1, 2, 3]\r\n```", [valid(1), valid(2), valid(3)]),
        ("```json\n" + "\n" * 100_000 + "[1, 2, 3]", [MALFORMED] * 3),
        ("```json\n" + "\n" * 100_000 + "[1, 2, 3]" + "\n" * 100_000 + "```", [valid(1), valid(2), valid(3)]),
        ("```[1, 2, 3]", [MALFORMED] * 3),
        ("[1, 2, 3]```", [MALFORMED] * 3),
        ("`````", [MALFORMED] * 3),
        ("``````", [MALFORMED] * 3),
        ("```The counts: [1, 2, 3]```", [MALFORMED] * 3),
        ("<think>[9]</think>\n[1, 2, 3]", [valid(1), valid(2), valid(3)]),
        ('[1, "2", 3.0]', [valid(1), MALFORMED, MALFORMED]),
        ("[1, true, null]", [valid(1), MALFORMED, MALFORMED]),
        ("[-1, 2000000, 0]", [NEGATIVE, EXTREME, valid(0)]),
        (f"[{'1' * 5_000}, 2, 3]", [EXTREME, valid(2), valid(3)]),
        ("[1, 2]", [MALFORMED] * 3),
        ("[1, 2, 3, 4]", [MALFORMED] * 3),
        ("1, 2, 3", [MALFORMED] * 3),
        ("The counts are [1, 2, 3].", [MALFORMED] * 3),
        ("```\n[1, 2, 3]\n```\n```\n[1, 2, 3]\n```", [MALFORMED] * 3),
        ('{"a": 1}', [MALFORMED] * 3),
        ("[1, 2, NaN]", [MALFORMED] * 3),
        ("[" * 100_000, [MALFORMED] * 3),
        (None, [MISSING] * 3),
        ([1, 2, 3], [MALFORMED] * 3),
    ],
)
def test_arrays_of_a_group(response, expected):
    assert parse_joint(response, 3) == expected


def test_texts_in_an_array_by_the_looser_rule():
    assert parse_joint('[1, "about 2", "?"]', 3, rule="last-integer") == [valid(1), valid(2), MALFORMED]
