import math

import pytest

from tallymill.engine.report import text


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.5534, ".553"), (1.0, "1.000"), (0.0, ".000"), (-0.25, "−.250"), (None, "–"), (math.nan, "–"), (12.5, "12.500")],
)
def test_scores_are_written_as_papers_write_them(value, words):
    assert text.score(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.1, "+.100"), (-0.1, "−.100"), (0.0, ".000"), (-0.0001, ".000"), (None, "–"), (1.5, "+1.500")],
)
def test_differences_have_a_sign(value, words):
    assert text.difference(value) == words


def test_amounts_and_shares():
    assert text.amount(1234.56) == "1,234.6"
    assert text.amount(-3.21, 2) == "−3.21"
    assert text.amount(None) == "–"
    assert text.signed(-3.21) == "−3.2"
    assert text.signed(3.21) == "+3.2"
    assert text.percent(1, 48) == "2.1 %"
    assert text.percent(12, 48) == "25 %"
    assert text.percent(0, 48) == "0 %"
    assert text.percent(0, 0) == "–"


def test_long_texts_keep_both_ends_and_say_how_long_they_were():
    cut = text.shown("a" * 5_000 + "b" * 5_000, 120)
    assert cut.startswith("aaa")
    assert "bbb … " not in cut
    assert cut.endswith("b (10,000 characters)")
    assert len(cut) < 150


def test_what_cannot_be_seen_is_made_visible():
    assert text.shown("a\0b\x1b[0m\x7f") == "a␀b␛[0m␡"
    assert text.shown("two\nlines\tand more") == "two lines and more"
