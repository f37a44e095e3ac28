"""The tables of PhysCount: digits, and what titles say."""

from __future__ import annotations

import json
import re

import pytest

from tallymill.engine.physcount.predictions import read_predictions
from tallymill.engine.physcount.published import published_rows
from tallymill.engine.physcount.score import compare, score
from tallymill.engine.report.physcount.tables import (
    comparison_table,
    families_table,
    headline_table,
    leaderboard,
    parts_table,
    statuses_table,
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


def test_what_was_not_asked_in_whole_bears_a_mark_and_published_rows_say_that_they_do_not_compare(
    sets, tmp_path, physcount_example
):
    dataset = sets[0].dataset
    run = physcount_example.write_run(tmp_path / "RUN", dataset, {"a1": "5"}, model="slow")
    part = physcount_example.write_run(tmp_path / "PART", dataset, {"a4": "3"}, model="quick")
    record = json.loads((part / "run.json").read_text())
    (part / "run.json").write_text(json.dumps({**record, "selection": {"group_ids": ["g4"]}}))
    found = [score(one, resamples=0) for one in [sets[0], *(read_predictions(path, dataset) for path in (run, part))]]
    table = leaderboard(found, published_rows()[:1])
    assert set(column(table, "model")) == {"p", "slow ‡", "quick ‡", "Gemini 3.7 Flash †"}
    assert table.note.splitlines() == [
        "† Published by the authors of PhysCount; not measured here.",
        "This is another set, of 4 groups: they do not compare.",
        "‡ Not every question was asked, so that it does not rank among the rest: "
        "slow without 10 of 11 questions, quick 1 of 4 groups.",
    ]
    assert leaderboard(found[:1]).note is None
    statuses = statuses_table(found)
    assert [column(statuses, name) for name in ("missing", "not asked")] == [["0", "10", "0"], ["0", "10", "0"]]


def test_an_estimate_without_spread_says_so(sets):
    found = score(sets[1], resamples=100)
    assert "0.00 (no spread)" in column(families_table([found]), "accuracy")
    assert "No spread: all resamples of images agree, so that there is no interval." in families_table([found]).note
    assert "no spread" not in str(families_table([score(sets[1], resamples=0)]))


def test_a_comparison_shows_groups_and_what_is_not_of_like_with_like(sets):
    table = comparison_table(compare(*sets, resamples=100))
    rows = {name: cells for name, *cells in table.rows}
    assert rows["Score"][3] == "4"
    assert rows["E-MAE"][3] == "2; 1"
    assert "Not of like with like: A-MAE, E-MAE, I-MAE, C-MAE. " in table.note
    alike = comparison_table(compare(sets[0], sets[0], resamples=0))
    assert "like with like" not in alike.note
    assert table.columns[-2:] == ["groups", "without value"]
    assert alike.columns[-1] == "groups"


def test_a_title_tells_of_intervals_where_there_are_some(sets):
    titles = [headline_table([score(sets[0], resamples=resamples)]).title for resamples in (0, 100)]
    assert titles == ["Score", "Score, with 95 % intervals over images"]
    notes = [comparison_table(compare(*sets, resamples=resamples)).note for resamples in (0, 100)]
    assert ["interval" in note for note in notes] == [False, True]
    assert notes[0].startswith("Over 4 groups of 2 images. Of Score")
