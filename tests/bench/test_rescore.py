import numpy as np
import pytest

import tallymill
from tallymill.bench import rescore
from tallymill.errors import TallymillError


@pytest.mark.parametrize("rows", [1, 1500, 5000])
def test_the_run_that_is_made_is_one(rows, tmp_path):
    rescore.make_run(tmp_path / "RUN", rows)
    table = tallymill.rescore(tmp_path / "RUN")
    assert (table.items, table.scored) == (rows, rows)
    assert [counts["proposals"] for counts in table.detectors.values()] == [13 * rows] * 3
    written = tallymill.rescore(tmp_path / "RUN", tmp_path / "OUT")
    assert written.cw_nps == table.cw_nps
    rows_of = tallymill.load(tmp_path / "OUT").scores
    assert rows_of["item_id"].to_pylist() == [f"item-{k:08d}" for k in range(rows)]
    assert np.mean(rows_of["cw_nps"]) == pytest.approx(table.cw_nps)


def test_the_result_and_its_table():
    result = rescore.run(rows=100, repeats=1)
    assert set(result["scores"]) == {"built in", "and a user's"}
    assert all(one["images_per_s"] > 0 and one["peak_bytes"] > 1 << 20 for one in result["scores"].values())
    assert "100 images of 39 proposals" in rescore.table(result)


def test_a_run_that_is_not_scored_whole_is_not_timed(tmp_path):
    rescore.make_run(tmp_path / "RUN", 10)
    with pytest.raises(TallymillError, match="only 10 of 11 images were scored: not timed"):
        rescore._measure(tmp_path / "RUN", 1, "", 11)
