import json
import math

import pyarrow as pa
import pytest

import tallymill
from tallymill.errors import RunError
from tallymill.runners import summary as module
from tallymill.runners.run_folder import RunFolder
from tallymill.runners.summary import MAX_REASONS, summarise


def table(n, bad):
    """``n`` items, of which ``bad(k)`` gives the count asked of item k."""
    return pa.Table.from_pylist([{"item_id": f"i{k}", "image": "x.jpg", "targets": f"cat={bad(k)}"} for k in range(n)])


def test_every_item_is_counted_once_with_its_reason(tmp_path):
    summary = tallymill.sweep(
        table(90, lambda k: 0 if k % 10 == 3 else 101 if k % 30 == 4 else 5),
        tmp_path / "RUN",
        ensemble="synthetic",
        workers=0,
    )
    assert (summary.items, summary.done, summary.scored, summary.error, summary.uncovered) == (90, 90, 78, 12, 0)
    assert summary.reasons == [
        ("targets: requested count 0 outside 1..100", 9, "i3"),
        ("targets: requested count 101 outside 1..100", 3, "i4"),
    ]
    assert summary.detectors["synthetic-a"]["items"] == 90
    assert summary.detectors["synthetic-a"]["failed"] == 12
    assert set(summary.stage_seconds) == {"model", "nms", "score"}


def test_reasons_are_the_commonest(tmp_path):
    summary = tallymill.sweep(
        table(3 * MAX_REASONS, lambda k: 101 + k // 2 if k % 3 else 0),
        tmp_path / "RUN",
        ensemble="synthetic",
        workers=0,
    )
    assert len(summary.reasons) == MAX_REASONS
    assert summary.reasons[0] == ("targets: requested count 0 outside 1..100", MAX_REASONS, "i0")
    assert summary.error == 3 * MAX_REASONS


def test_the_mean_is_rounded_once(tmp_path):
    tallymill.sweep(table(200, lambda k: k % 100 + 1), tmp_path / "A", ensemble="synthetic", workers=0)
    small = tallymill.sweep(
        table(200, lambda k: k % 100 + 1), tmp_path / "B", ensemble="synthetic", workers=0, shard_items=7
    )
    scores = tallymill.load(tmp_path / "A").scores
    assert small.cw_nps == math.fsum(scores["cw_nps"].to_pylist()) / 200
    assert small.cw_nps == tallymill.load(tmp_path / "A").summary().cw_nps


def test_nothing_scored_has_no_mean(tmp_path):
    summary = tallymill.sweep(table(3, lambda _: 0), tmp_path / "RUN", ensemble="synthetic", workers=0)
    assert (summary.cw_nps, summary.b_nps, summary.error) == (None, None, 3)
    written = json.loads((tmp_path / "RUN" / "summary.json").read_text())
    assert written["cw_nps"] is None
    assert written["reasons"] == [["targets: requested count 0 outside 1..100", 3, "i0"]]


def test_looking_at_a_run_writes_nothing(tmp_path):
    tallymill.sweep(table(3, lambda _: 1), tmp_path / "RUN", ensemble="synthetic", workers=0)
    (tmp_path / "RUN" / "summary.json").unlink()
    assert tallymill.load(tmp_path / "RUN").summary().scored == 3
    assert not (tmp_path / "RUN" / "summary.json").exists()


def test_a_run_without_a_finished_shard(tmp_path):
    summary = tallymill.sweep(table(3, lambda _: 1), tmp_path / "RUN", ensemble="synthetic", workers=0, part=(2, 2))
    assert (summary.complete, summary.done) == (False, 0)
    run = tallymill.load(tmp_path / "RUN")
    with pytest.raises(RunError, match="no shard is done yet"):
        _ = run.scores
    with pytest.raises(RunError, match="synthetic-a has not seen a shard yet"):
        run.proposals("synthetic-a")
    with pytest.raises(tallymill.errors.UsageError, match="no detector 'x'"):
        run.proposals("x")


def test_of_too_many_reasons_the_commonest_are_kept(tmp_path, monkeypatch):
    """Also where they come last; of those that are as common the first by their text."""
    monkeypatch.setattr(module, "MAX_REASONS", 3)
    counts = [*range(101, 113), 150, 150, 140, 140]
    summary = tallymill.sweep(table(16, lambda k: counts[k]), tmp_path / "RUN", ensemble="synthetic", workers=0)
    expected = [
        ("targets: requested count 140 outside 1..100", 2, "i14"),
        ("targets: requested count 150 outside 1..100", 2, "i12"),
        ("targets: requested count 101 outside 1..100", 1, "i0"),
    ]
    assert summary.reasons == expected
    assert summary.error == 16
    assert tallymill.rescore(tmp_path / "RUN").reasons == expected


def test_a_summary_put_over_a_newer_one_is_written_again(tmp_path, monkeypatch):
    """Two jobs share a RUN: while the first writes what it has read, the second finishes the rest."""
    options = {"ensemble": "synthetic", "workers": 0, "shard_items": 4}
    tallymill.sweep(table(12, lambda _: 1), tmp_path / "RUN", part=(1, 3), **options)
    write_json, waiting = module.write_json, [(2, 3), (3, 3)]

    def slow(path, value):
        if waiting:
            tallymill.sweep(table(12, lambda _: 1), tmp_path / "RUN", part=waiting.pop(), **options)
        write_json(path, value)

    monkeypatch.setattr(module, "write_json", slow)
    summary = summarise(RunFolder(tmp_path / "RUN"))
    assert not waiting
    assert (summary.complete, summary.done) == (True, 12)
    assert json.loads((tmp_path / "RUN" / "summary.json").read_text())["complete"] is True
