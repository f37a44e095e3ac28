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


def test_the_result_and_its_table():
    result = analyse.run(rows=200, repeats=1)
    assert set(result["analyses"]) == {"without intervals", "2,000 resamples"}
    assert "200 images of 4 systems" in analyse.table(result)


def test_a_run_that_is_not_scored_whole_is_not_timed(tmp_path):
    analyse.make_scored_run(tmp_path / "RUN", 10)
    with pytest.raises(TallymillError, match="only 10 of 11 images were scored: not timed"):
        analyse._measure(tmp_path / "RUN", 1, 0, 11)
