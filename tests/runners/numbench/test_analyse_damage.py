"""RUNs that lack something or hold what no sweep writes, and options that make no sense: all of it is told."""

import json
import shutil
from dataclasses import asdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tallymill
from tallymill.errors import RunError, UsageError
from tallymill.runners.plan import Shard
from tallymill.runners.run_folder import stamps_of
from tallymill.runners.sink import ScoresPart

ONLY = Shard(0, 0, 1)


def test_uncovered_images_and_sizes(cell, tmp_path, image_folder, image_ensemble_file):
    images = image_folder(tmp_path / "images", 6)
    lines = [json.loads(line) for line in (images / "metadata.jsonl").read_text().splitlines()]
    lines[1]["targets"] = {"raccoon": 2}
    lines[2]["targets"] = {"raccoon": 2, "cat": 60}
    (images / "5.png").write_bytes(b"no image")
    (images / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = tmp_path / "RUN"
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x", "y")
    tallymill.sweep(images, run, ensemble=ensemble, workers=0, keep_suppressed=True)
    analysis = tallymill.analyse(run, resamples=10)
    (row,) = analysis.systems
    assert (row.scored, row.error, row.uncovered, row.not_1024) == (3, 1, 2, 5)
    assert [asdict(u) for u in analysis.uncovered] == [{"system": "RUN", "category": "raccoon", "items": 2}]
    assert "RUN: 3 of 6 images have no score (1 failed, 2 uncovered) and are in no mean." in analysis.notes
    assert "RUN: 5 images are not 1024 x 1024." in analysis.notes
    assert cell(analysis, "double", "51-75").uncovered == 1
    assert [(failure.items, failure.first_item) for failure in analysis.failures] == [(1, "5.png")]
    # Of several shards that are read together only some have any.
    tallymill.sweep(images, tmp_path / "SHARDS" / "RUN", ensemble=ensemble, workers=0, shard_items=1)
    again = tallymill.analyse(tmp_path / "SHARDS" / "RUN", resamples=0)
    assert (again.uncovered, again.failures) == (analysis.uncovered, analysis.failures)


def test_proposals_that_are_not_there(cell, item, made, tmp_path):
    run = made(tmp_path, [item(0, {"cat": 3})])
    before = tallymill.analyse(run, resamples=0)
    shutil.rmtree(run / "proposals")
    analysis = tallymill.analyse(run, resamples=0)
    assert cell(analysis).cw_nps == cell(before).cw_nps
    assert analysis.saturation == []
    assert cell(analysis).single_cw["synthetic-a"].value is None
    assert any("its proposals are not there" in note for note in analysis.notes)


def test_a_rescored_run(cell, item, made, tmp_path):
    run = made(tmp_path, [item(k, {"cat": 3 + k}) for k in range(5)])
    tallymill.rescore(run, tmp_path / "NEW", taus={"synthetic-a": 1.3})
    analysis = tallymill.analyse(tmp_path / "NEW", resamples=0)
    assert analysis.runs[0]["rescored_from"] == str(run)
    assert cell(analysis).cw_nps.value == tallymill.load(tmp_path / "NEW").summary().cw_nps


@pytest.mark.parametrize("what", ["scores", "proposals/synthetic-b"])
def test_a_part_that_is_missing_or_damaged(item, made, what, tmp_path):
    run = made(tmp_path, [item(k, {"cat": 3}) for k in range(40)])
    part = run / what / "part-00001.parquet"
    whole = part.read_bytes()
    part.unlink()
    with pytest.raises(RunError, match=r"part-00001") as caught:
        tallymill.analyse(run, resamples=0)
    assert "run" in caught.value.hint
    part.write_bytes(whole[:100] + bytes(200) + whole[300:])
    with pytest.raises(RunError, match=r"part-00001"):
        tallymill.analyse(run, resamples=0)


def test_a_score_that_no_sweep_writes(item, made, tmp_path):
    run = made(tmp_path, [item(0, {"cat": 3}, counted=[3])])
    for wrong in (1.5, -0.1, 1e-300, float("nan")):
        table = pq.read_table(run / "scores" / "part-00000.parquet")
        table = table.set_column(table.schema.get_field_index("cw_nps"), "cw_nps", pa.array([wrong]))
        part = ScoresPart(run / "scores" / ONLY.part, stamps_of(tallymill.load(run).record).scores, ONLY)
        part.write(table.combine_chunks().to_batches()[0])
        part.close({})
        with pytest.raises(RunError, match="not a number that equation 8 can give"):
            tallymill.analyse(run, resamples=0)


def test_counts_that_no_sweep_writes(item, made, tmp_path):
    run = made(tmp_path, [item(0, {"cat": 3}, counted=[3])])
    for field, wrong in (("soft", float("inf")), ("hard", float("nan")), ("hard", -1.0), ("requested", 0)):
        table = tallymill.load(run).scores
        rows = table.to_pylist()
        rows[0]["targets"][0][field] = wrong
        copy = tmp_path / f"{field}{wrong}"
        shutil.copytree(run, copy)
        part = ScoresPart(copy / "scores" / "part-00000.parquet", stamps_of(tallymill.load(run).record).scores, ONLY)
        part.write(pa.Table.from_pylist(rows, schema=table.schema).to_batches()[0])
        part.close({})
        with pytest.raises(RunError, match=r"of a scored image is not|asks for a count outside"):
            tallymill.analyse(copy, resamples=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"range_by": "least"}, "must be one of max, mean, per-target"),
        ({"resamples": -1}, "resamples -1: must be 0 or more"),
        ({"seed": -1}, "seed -1: must be 0 or more"),
        ({"workers": -1}, "workers = -1"),
    ],
)
def test_wrong_options(item, made, options, message, tmp_path):
    run = made(tmp_path, [item(0, {"cat": 3})])
    with pytest.raises(UsageError, match=message):
        tallymill.analyse(run, **options)
    with pytest.raises(UsageError, match="no RUN to analyse"):
        tallymill.analyse([])
