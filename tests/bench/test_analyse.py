from collections import Counter

import pytest

import tallymill
from tallymill.bench import analyse
from tallymill.errors import TallymillError


@pytest.mark.parametrize("rows", [70, 5000])
def test_the_run_that_is_made_is_one(rows, tmp_path):
    analyse.make_scored_run(tmp_path / "RUN", rows)
    found = tallymill.analyse(tmp_path / "RUN", resamples=0)
    assert sum(row.scored for row in found.systems) == rows
    assert not any("count_range" in note or "several compositions" in note for note in found.notes)
    # What is written as scores is what the proposals give.
    again = tallymill.rescore(tmp_path / "RUN")
    whole = sum(cell.cw_nps.value * cell.scored for cell in found.overall) / rows
    assert whole == pytest.approx(again.cw_nps, rel=1e-12)


def test_a_run_of_which_most_has_no_score(tmp_path):
    analyse.make_scored_run(tmp_path / "RUN", 400, lossy=True)
    found = tallymill.analyse(tmp_path / "RUN", resamples=0)
    rows = found.systems
    assert [sum(getattr(row, name) for row in rows) for name in ("scored", "error", "uncovered")] == [36, 4, 360]
    assert sorted((f.items, f.reason) for f in found.failures) == [
        (1, f"image: fault {k}") for k in (190, 290, 390, 90)
    ]
    table = tallymill.load(tmp_path / "RUN").scores.to_pylist()
    bare = [(row["system"], t["category"]) for row in table if row["status"] == "uncovered" for t in row["targets"]]
    assert {(u.system, u.category): u.items for u in found.uncovered} == dict(Counter(bare))


def test_the_result_and_its_table():
    result = analyse.run(rows=200, repeats=1)
    assert set(result["analyses"]) == {"without intervals", "2,000 resamples", "most without a score"}
    assert "200 images of 4 systems" in analyse.table(result)


def test_a_run_that_is_not_scored_whole_is_not_timed(tmp_path):
    analyse.make_scored_run(tmp_path / "RUN", 10)
    with pytest.raises(TallymillError, match="10 images were scored and not 11: not timed"):
        analyse._measure(tmp_path / "RUN", 1, 0, 11)
