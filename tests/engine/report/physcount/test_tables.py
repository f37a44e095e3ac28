"""The tables of PhysCount: digits, and what titles say."""

from __future__ import annotations

import re

import pytest

from tallymill.engine.physcount.predictions import read_predictions
from tallymill.engine.physcount.score import compare, score
from tallymill.engine.report.physcount.tables import (
    comparison_table,
    families_table,
    headline_table,
    leaderboard,
    parts_table,
)


@pytest.fixture
def sets(tmp_path, physcount_example):
    dataset = physcount_example.worked_dataset(tmp_path / "set")
    other = physcount_example.write_predictions(tmp_path / "other.jsonl", {"a1": "5", "e1": "2", "a4": "3"})
    return [read_predictions(path, dataset) for path in (physcount_example.worked_predictions(tmp_path / "p"), other)]


def column(table, name):
    return [row[table.columns.index(name)] for row in table.rows]


def digits(texts):
    return {len(found) for text in texts for found in re.findall(r"[.]([0-9]+)", text)}


def test_per_cent_has_two_digits_and_counts_have_three(sets):
    found = [score(one, resamples=100) for one in sets]
    assert "[" in column(headline_table(found), "Score")[0]
    for table in (leaderboard(found), headline_table(found), parts_table(found)):
        assert digits(text for name in ("Score", "Group-Acc", "Phys-Gnd") for text in column(table, name)) == {2}
    families = families_table(found)
    assert digits(column(families, "NAE") + column(families, "accuracy")) == {2}
    assert digits(column(families, "MAE")) == {3}
    rows = comparison_table(compare(*sets, resamples=100)).rows
    assert {name.endswith("-MAE"): digits(cells) for name, *cells in rows} == {False: {2}, True: {3}}
    assert next(cells for name, *cells in rows if name == "Score")[2].startswith("+")


def test_a_title_tells_of_intervals_where_there_are_some(sets):
    titles = [headline_table([score(sets[0], resamples=resamples)]).title for resamples in (0, 100)]
    assert titles == ["Score", "Score, with 95 % intervals over images"]
    notes = [comparison_table(compare(*sets, resamples=resamples)).note for resamples in (0, 100)]
    assert ["interval" in note for note in notes] == [False, True]
    assert notes[0].startswith("Over 4 groups of 2 images. Of Score")
