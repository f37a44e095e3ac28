import pytest

from tallymill import physcount
from tallymill.bench import physcount_score
from tallymill.errors import TallymillError


def test_the_drawn_set_has_the_published_totals_and_is_scored(tmp_path):
    answers = physcount_score.make_dataset(tmp_path / "set")
    found = physcount.check(tmp_path / "set")
    totals = {total.name: total for total in found.totals}
    assert (found.full, found.faults, found.notes) == (True, [], [])
    assert all(
        total.holds for name, total in totals.items() if not name.endswith("appearances") or name == "appearances"
    )
    paths = [physcount_score.make_predictions(tmp_path / f"{k}.jsonl", answers, k) for k in (0, 20)]
    best, other = physcount.score(tmp_path / "set", paths, resamples=0)
    assert (best.headline.score.value, best.headline.group_acc.value) == (100.0, 100.0)
    assert 0 < other.headline.score.value < 60
    assert 50 < other.statuses.malformed < 150


def test_the_result_and_its_table(monkeypatch):
    monkeypatch.setattr(physcount_score, "RESAMPLES", 20)
    result = physcount_score.run(models=2, repeats=1)
    assert {*result["scorings"]} == {"without intervals", "20 resamples", "20 resamples, and files"}
    assert "2 models x 4,595 answers" in physcount_score.table(result)


def test_wrong_scores_are_not_timed(tmp_path):
    answers = physcount_score.make_dataset(tmp_path / "set")
    path = physcount_score.make_predictions(tmp_path / "p.jsonl", answers, 30)
    with pytest.raises(TallymillError, match="not timed"):
        physcount_score._measure(tmp_path / "set", [path], "", 0)
