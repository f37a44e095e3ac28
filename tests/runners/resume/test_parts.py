"""Parts that are lacking, damaged or of another RUN are made again, and no others."""

import shutil

import numpy as np
import pytest
from PIL import Image

import tallymill
from tallymill.errors import RunError

ITEMS = 120  # of the RUN ``plain``


def test_a_complete_run_run_again_does_no_work(go_on, plain, times, copy):
    before = times(copy)
    summary = go_on(plain[0], copy, workers=2)
    assert times(copy) == before
    assert (summary.complete, summary.done) == (True, ITEMS)


@pytest.mark.parametrize("part", ["scores/part-00007.parquet", "proposals/synthetic-b/part-00007.parquet"])
@pytest.mark.parametrize("left", [0, 3, 200, -1])
def test_a_part_that_was_cut_short_is_rewritten(go_on, part, left, plain, contents, times, copy):
    data = (copy / part).read_bytes()
    (copy / part).write_bytes(data[:left])
    if part.startswith("proposals"):  # the scores of that shard are not to be had without it
        (copy / "scores" / "part-00007.parquet").unlink()
    before = times(copy)
    assert go_on(plain[0], copy).complete
    assert contents(copy) == contents(plain[1])
    changed = {name for name, when in times(copy).items() if before.get(name) != when}
    assert changed == {part, "scores/part-00007.parquet"}


def test_a_part_that_rotted_is_told_and_rewritten(go_on, plain, contents, copy, tmp_path):
    part = copy / "proposals" / "synthetic-b" / "part-00007.parquet"
    data = bytearray(part.read_bytes())
    data[60:200] = bytes(140)  # the footer is as it was
    part.write_bytes(data)
    with pytest.raises(RunError, match=r"synthetic-b/part-00007\.parquet is damaged") as caught:
        tallymill.rescore(copy, tmp_path / "AGAIN")
    assert "scores" in caught.value.hint
    (copy / "scores" / "part-00007.parquet").unlink()
    go_on(plain[0], copy)
    assert contents(copy) == contents(plain[1])


def test_scores_that_rotted_are_named(go_on, plain, contents, copy):
    part = copy / "scores" / "part-00004.parquet"
    data = bytearray(part.read_bytes())
    footer = 8 + int.from_bytes(data[-8:-4], "little")
    data[4:-footer] = bytes(len(data) - footer - 4)
    part.write_bytes(data)
    for look in (lambda: tallymill.load(copy).scores, lambda: go_on(plain[0], copy)):
        with pytest.raises(RunError, match=r"RUN/scores/part-00004\.parquet is damaged") as caught:
            look()
        assert "remove it" in caught.value.hint
    part.unlink()
    go_on(plain[0], copy)
    assert contents(copy) == contents(plain[1])


def test_scores_that_are_gone_are_made_from_the_proposals(go_on, plain, contents, times, copy):
    shutil.rmtree(copy / "scores")
    before = {name: when for name, when in times(copy).items() if name.startswith("proposals/")}
    go_on(plain[0], copy)
    assert contents(copy) == contents(plain[1])
    assert {name: when for name, when in times(copy).items() if name.startswith("proposals/")} == before


def test_parts_of_another_run_are_not_taken_over(go_on, plain, contents, tmp_path, copy, manifest_file):
    other = manifest_file(tmp_path / "other.jsonl", ITEMS, start=5)
    go_on(other, tmp_path / "OTHER")
    for part in ("scores/part-00002.parquet", "proposals/synthetic-a/part-00003.parquet"):
        shutil.copy(tmp_path / "OTHER" / part, copy / part)
    (copy / "scores" / "part-00003.parquet").unlink()
    go_on(plain[0], copy)
    assert contents(copy) == contents(plain[1])


def test_scores_alone_are_made_again_without_decoding(tmp_path, image_folder, image_ensemble_file, contents):
    images, run = image_folder(tmp_path / "images", 20), tmp_path / "RUN"
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x")
    tallymill.sweep(images, run, ensemble=ensemble, workers=0)
    before = contents(run)
    shutil.rmtree(run / "scores")
    summary = tallymill.sweep(images, run, ensemble=ensemble, workers=0)
    assert contents(run) == before
    assert summary.stage_seconds.get("model", 0.0) == 0.0


def test_scores_made_again_carry_the_hash_of_the_image_that_was_seen(
    tmp_path, image_folder, image_ensemble_file, contents
):
    images, run = image_folder(tmp_path / "images", 20), tmp_path / "RUN"
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x", "y")
    tallymill.sweep(images, run, ensemble=ensemble, workers=0)
    before = contents(run)
    Image.fromarray(np.full((30, 40, 3), 77, np.uint8)).save(images / "5.png")
    (images / "6.png").unlink()
    shutil.rmtree(run / "scores")
    summary = tallymill.sweep(images, run, ensemble=ensemble, workers=0)
    assert summary.scored == 20
    assert contents(run) == before
    assert all(row["image_hash"] for row in tallymill.load(run).scores.to_pylist())


@pytest.mark.parametrize("workers", [0, 1])
def test_only_shards_with_errors_are_tried_again_and_only_when_asked(
    workers, tmp_path, image_folder, image_ensemble_file, contents, times
):
    images, run = image_folder(tmp_path / "images", 10), tmp_path / "RUN"
    options = {"ensemble": image_ensemble_file(tmp_path / "e.toml", "x", "y"), "workers": 0, "shard_items": 2}
    tallymill.sweep(images, tmp_path / "FRESH", **options)
    (images / "5.png").rename(tmp_path / "5.png")
    assert tallymill.sweep(images, run, **options).reasons == [("image: not found", 1, "5.png")]
    (tmp_path / "5.png").rename(images / "5.png")
    before = times(run)
    assert tallymill.sweep(images, run, **options).error == 1
    assert tallymill.sweep(images, run, **options, part=(1, 2), retry_errors=True).error == 0
    assert contents(run) == contents(tmp_path / "FRESH")
    changed = {name for name, when in times(run).items() if before[name] != when}
    parts = [f"{folder}/part-00002.parquet" for folder in ("scores", "proposals/x", "proposals/y")]
    assert changed == set(parts)
    after = times(run)
    assert tallymill.sweep(images, run, **{**options, "workers": workers}, retry_errors=True).error == 0
    assert times(run) == after
