"""RUN folders that were moved, copied badly or damaged, and users' code and files that do not play along."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import tallymill
from tallymill.engine.settings import Settings
from tallymill.errors import ModelError, RunError, UsageError

SHARD, ITEMS = 12, 60


@pytest.fixture(scope="module")
def plain(tmp_path_factory, manifest_file):
    folder = tmp_path_factory.mktemp("plain")
    manifest = manifest_file(folder / "m.jsonl", ITEMS)
    tallymill.sweep(manifest, folder / "RUN", ensemble="synthetic", workers=0, shard_items=SHARD)
    return manifest, folder / "RUN"


@pytest.fixture
def copy(plain, tmp_path):
    shutil.copytree(plain[1], tmp_path / "RUN")
    return tmp_path / "RUN"


def again(manifest, run):
    return tallymill.sweep(manifest, run, ensemble="synthetic", workers=0)


@pytest.mark.parametrize("what", ["gone", "cut", "empty", "whole folder"])
def test_proposals_that_are_gone_are_seen_and_made_anew(what, plain, copy, contents, tmp_path):
    part = copy / "proposals" / "synthetic-b" / "part-00002.parquet"
    if what == "whole folder":
        shutil.rmtree(part.parent)
    elif what == "gone":
        part.unlink()
    else:
        part.write_bytes(part.read_bytes()[: 100 if what == "cut" else 0])
    with pytest.raises(RunError, match=r"synthetic-b/part-0000\d\.parquet is missing or damaged, though it was scored"):
        tallymill.dump(copy, tmp_path / "d.parquet")
    with pytest.raises(RunError, match="run the sweep again"):
        _ = tallymill.load(copy).proposals("synthetic-b")
    assert again(plain[0], copy).complete
    assert contents(copy) == contents(plain[1])


@pytest.mark.parametrize("folder", ["scores", "proposals/synthetic-a"])
def test_a_part_under_another_number_is_not_taken(folder, plain, copy, contents):
    shutil.copy(copy / folder / "part-00001.parquet", copy / folder / "part-00002.parquet")
    again(plain[0], copy)
    assert contents(copy) == contents(plain[1])


def test_a_rescored_run_whose_source_is_gone_says_so(copy, tmp_path):
    tallymill.rescore(copy, tmp_path / "AGAIN")
    copy.rename(tmp_path / "ELSEWHERE")
    with pytest.raises(RunError, match="put it back in its place"):
        tallymill.dump(tmp_path / "AGAIN", tmp_path / "d.parquet")
    with pytest.raises(RunError, match=r"AGAIN.*proposals.*is missing"):
        tallymill.rescore(tmp_path / "AGAIN", tmp_path / "THIRD")


@pytest.mark.parametrize("name", ["run.json", "scores/part-00000.parquet", "new.parquet"])
def test_a_dump_keeps_off_the_run(name, copy):
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="lies in the RUN"):
        tallymill.dump(copy, copy / name, form="parquet")
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_a_dump_takes_one_name_or_any_iterable(plain, tmp_path):
    of_one = tallymill.dump(plain[1], tmp_path / "a.parquet", detectors=["synthetic-a"])
    assert of_one > 0
    assert tallymill.dump(plain[1], tmp_path / "b.parquet", detectors="synthetic-a") == of_one
    assert tallymill.dump(plain[1], tmp_path / "c.parquet", detectors=(n for n in ["synthetic-a"])) == of_one


@pytest.mark.parametrize("damage", [lambda _: b"", lambda data: data[: len(data) // 2], lambda _: b"x" * 500])
def test_items_that_are_damaged_are_named_and_laid_out_anew(damage, plain, copy, contents, tmp_path):
    items = copy / "items.arrow"
    items.write_bytes(damage(items.read_bytes()))
    with pytest.raises(RunError, match=r"items\.arrow is damaged") as caught:
        tallymill.rescore(copy, tmp_path / "AGAIN")
    assert "writes it anew" in caught.value.hint
    again(plain[0], copy)
    tallymill.rescore(copy, tmp_path / "AGAIN")
    assert contents(tmp_path / "AGAIN")["scores/part-00000.parquet"] == contents(copy)["scores/part-00000.parquet"]


def test_a_model_that_cannot_be_opened_leaves_no_run_behind(image_folder, image_ensemble_file, tmp_path):
    images = image_folder(tmp_path / "images", 2)
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x")
    whole = (tmp_path / "x.onnx").read_bytes()
    (tmp_path / "x.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError):
        tallymill.sweep(images, tmp_path / "RUN", ensemble=ensemble, workers=0)
    assert not (tmp_path / "RUN").exists()
    (tmp_path / "x.onnx").write_bytes(whole)
    assert tallymill.sweep(images, tmp_path / "RUN", ensemble=ensemble, workers=0).complete


@pytest.mark.parametrize("code", ["import sys; sys.exit(0)", "def f(n):\n    raise SystemExit('bye')"])
def test_a_schedule_that_leaves_is_wrong_use(code, plain, tmp_path):
    (tmp_path / "s.py").write_text(code)
    with pytest.raises(UsageError, match="SystemExit"):
        tallymill.rescore(plain[1], tmp_path / "AGAIN", schedule=f"{tmp_path / 's.py'}:f")


@pytest.mark.parametrize("image", [None, 3, ["a.png"], (x for x in "ab")])
def test_an_image_that_is_none(image):
    with pytest.raises(UsageError, match="must be a path, a URL, bytes, or RGB uint8"):
        tallymill.score(image, {"cat": 1}, ensemble="synthetic")


@pytest.mark.parametrize("options", [{"workers": 1.5}, {"workers": True}, {"shard_items": True}, {"settings": {}}])
def test_arguments_of_another_kind(options, plain, tmp_path):
    with pytest.raises(UsageError, match=next(iter(options))):
        tallymill.sweep(plain[0], tmp_path / "RUN", **{"ensemble": "synthetic", **options})
    assert not (tmp_path / "RUN").exists()


def test_settings_of_another_kind():
    with pytest.raises(UsageError, match=r"tallymill\.Settings"):
        tallymill.score(np.zeros((8, 8, 3), np.uint8), {"cat": 1}, ensemble="synthetic", settings={"floor": 0.1})
    assert tallymill.score(np.zeros((8, 8, 3), np.uint8), {"cat": 1}, ensemble="synthetic", settings=Settings()).status


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_streams_that_are_closed_do_not_matter(closed, plain, tmp_path):
    command = f"'{sys.executable}' -c 'from tallymill.cli import main; main()' sweep {plain[0]}"
    options = f"--out {tmp_path / 'RUN'} --ensemble synthetic --workers 1"
    finished = subprocess.run(["bash", "-c", f"{command} {options} {closed}"], check=False)
    assert finished.returncode == 0
    assert tallymill.load(tmp_path / "RUN").summary().complete


@pytest.mark.parametrize("edit", ["manifest", "temperature"])
def test_parts_under_a_run_json_that_was_edited_are_told_as_that(edit, copy, tmp_path):
    record = json.loads((copy / "run.json").read_text())
    if edit == "manifest":
        record["manifest"]["sha256"] = "0" * 64
    else:
        record["ensemble"]["detectors"][0]["tau"] = 1.7
    (copy / "run.json").write_text(json.dumps(record))
    told = "was written under another run.json than the one that is there now"
    with pytest.raises(RunError, match=told) as caught:
        tallymill.analyse(copy, resamples=0)
    assert "if run.json was edited, put back" in str(caught.value.hint)
    if edit == "manifest":
        for partial in (False, True):
            with pytest.raises(RunError, match=told):
                tallymill.dump(copy, tmp_path / "d.parquet", partial=partial)
        assert not (tmp_path / "d.parquet").exists()
        with pytest.raises(RunError, match=told):
            tallymill.rescore(copy)
