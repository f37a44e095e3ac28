"""A RUN goes on only with what it was begun with; what differs is named."""

import json
import subprocess
import sys

import pyarrow as pa
import pytest

import tallymill
from tallymill.engine.settings import Settings
from tallymill.errors import RunError

ITEMS = 120  # of the RUN ``plain``


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"settings": Settings(floor=0.1)}, ["settings.floor: 0.05 in the RUN, 0.1 now"]),
        ({"settings": Settings(nms_iou=0.4)}, ["settings.nms_iou: 0.5 in the RUN, 0.4 now"]),
        ({"settings": Settings(slices=(2,))}, ["settings.slices: [] in the RUN, [2] now"]),
        ({"settings": Settings(window_edge=2)}, ["settings.window_edge: 1.0 in the RUN, 2.0 now"]),
        ({"settings": Settings(coverage="all")}, ['settings.coverage: "covered" in the RUN, "all" now']),
        ({"settings": Settings(floor=0.1, nms_iou=0.4)}, ["settings.floor: ", "settings.nms_iou: "]),
        ({"shard_items": 13}, ["shard_items: 12 in the RUN, 13 now"]),
        ({"keep_suppressed": True}, ["keep_suppressed: false in the RUN, true now"]),
        ({"system": "mine"}, ["manifest.sha256 (what the manifest's rows say, or the prompts given with them): "]),
    ],
)
def test_other_settings_are_refused_with_their_names(go_on, leftovers, options, named, plain, times, copy):
    record, before = (copy / "run.json").read_bytes(), times(copy)
    with pytest.raises(RunError) as caught:
        go_on(plain[0], copy, **options)
    for line in named:
        assert f"\n  {line}" in caught.value.message
    assert len(caught.value.message.splitlines()) == 1 + len(named)
    assert "rescore" in caught.value.hint
    assert (copy / "run.json").read_bytes() == record
    assert times(copy) == before
    assert not leftovers(copy)


def test_the_size_of_a_shard_need_not_be_told_again(go_on, plain, times, copy):
    before = times(copy)
    assert go_on(plain[0], copy, shard_items=None).complete
    assert times(copy) == before


def test_another_manifest_is_refused(go_on, copy, tmp_path, manifest_file):
    with pytest.raises(RunError) as caught:
        go_on(manifest_file(tmp_path / "m.jsonl", ITEMS + 1), copy)
    assert f"manifest.rows: {ITEMS} in the RUN, {ITEMS + 1} now" in caught.value.message
    assert "\n  manifest.sha256 (" in caught.value.message


def test_another_temperature_is_refused(go_on, plain, copy, ensemble_file, tmp_path):
    other = ensemble_file(tmp_path / "e.toml", "synthetic-a", "synthetic-b", "synthetic-c", taus=(1.0, 1.2, 1.0))
    with pytest.raises(RunError, match=r"synthetic-b\.tau: 1\.0 in the RUN, 1\.2 now"):
        go_on(plain[0], copy, ensemble=other)


def test_a_detector_that_was_removed_is_refused(go_on, plain, copy, ensemble_file, tmp_path):
    with pytest.raises(RunError, match=r"ensemble\.detectors: synthetic-b is in the RUN but not asked for now"):
        go_on(plain[0], copy, ensemble=ensemble_file(tmp_path / "e.toml", "synthetic-a", "synthetic-c"))


def test_another_model_under_the_same_name_is_refused(tmp_path, image_folder, image_ensemble_file, model_file):
    images, run = image_folder(tmp_path / "images", 3), tmp_path / "RUN"
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x")
    tallymill.sweep(images, run, ensemble=ensemble, workers=0)
    model_file(tmp_path / "x.onnx", seed=99)
    with pytest.raises(RunError, match=r"x\.model_sha256: "):
        tallymill.sweep(images, run, ensemble=ensemble, workers=0)


def test_a_model_that_moved_is_the_same_model(tmp_path, image_folder, image_ensemble_file, times):
    images, run = image_folder(tmp_path / "images", 3), tmp_path / "RUN"
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    tallymill.sweep(images, run, ensemble=image_ensemble_file(tmp_path / "here" / "e.toml", "x", "y"), workers=0)
    before = times(run)
    for name in ("e.toml", "x.onnx", "y.onnx"):
        (tmp_path / "here" / name).rename(tmp_path / "there" / name)
    assert tallymill.sweep(images, run, ensemble=tmp_path / "there" / "e.toml", workers=0).complete
    assert times(run) == before
    part = run / "scores" / "part-00000.parquet"
    part.unlink()
    assert tallymill.sweep(images, run, ensemble=tmp_path / "there" / "e.toml", workers=0).complete
    assert {name for name, when in times(run).items() if before[name] != when} == {"scores/part-00000.parquet"}


def test_a_folder_with_parts_but_no_record(go_on, plain, copy):
    (copy / "run.json").unlink()
    with pytest.raises(RunError, match=r"is not empty \(.*\) and is not a RUN"):
        go_on(plain[0], copy)


@pytest.mark.parametrize(
    ("text", "named"), [("{", "cannot be read"), ("[]", "it is no JSON object"), ("{}", "created is missing")]
)
def test_a_record_that_is_none(go_on, text, named, plain, copy):
    (copy / "run.json").write_text(text)
    with pytest.raises(RunError, match=named):
        go_on(plain[0], copy)


def test_the_record_remembers_when_it_was_made(go_on, plain, copy):
    before = json.loads((copy / "run.json").read_text())
    go_on(plain[0], copy)
    after = json.loads((copy / "run.json").read_text())
    assert after["created"] == before["created"]
    assert after["versions"] == before["versions"]
    before["versions"]["numpy"] = "1.0"
    (copy / "run.json").write_text(json.dumps(before))
    go_on(plain[0], copy)
    third = json.loads((copy / "run.json").read_text())
    assert third["versions"]["numpy"] == "1.0"
    assert third["continued"] == [after["versions"]]


def test_images_of_another_folder_are_refused(tmp_path, image_folder, image_ensemble_file, times):
    """Their manifests say the same, but the images are others."""
    run, ensemble = tmp_path / "RUN", image_ensemble_file(tmp_path / "e.toml", "x")
    for name in ("one", "other"):
        image_folder(tmp_path / name, 3)
    tallymill.sweep(tmp_path / "one", run, ensemble=ensemble, workers=0)
    before = times(run)
    with pytest.raises(RunError) as caught:
        tallymill.sweep(tmp_path / "other", run, ensemble=ensemble, workers=0)
    differences = caught.value.message.splitlines()[1:]
    assert len(differences) == 1
    assert differences[0].startswith("  manifest.image_root (the folder that image references start from): ")
    assert f'"{tmp_path / "one"}" in the RUN, "{tmp_path / "other"}" now' in differences[0]
    assert times(run) == before


def test_a_manifest_of_absolute_references_can_lie_anywhere(tmp_path, image_folder, image_ensemble_file, times):
    images, run = image_folder(tmp_path / "images", 3), tmp_path / "RUN"
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x")
    rows = [{"item_id": f"i{k}", "image": f"{images}/{k}.png", "targets": {"cat": 1}} for k in range(3)]
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tallymill.sweep(tmp_path / "here" / "m.jsonl", run, ensemble=ensemble, workers=0)
    before = times(run)
    assert tallymill.sweep(tmp_path / "there" / "m.jsonl", run, ensemble=ensemble, workers=0).scored == 3
    assert times(run) == before
    assert json.loads((run / "run.json").read_text())["manifest"]["image_root"] is None


def test_relative_references_of_a_table_start_from_the_current_folder(
    tmp_path, image_folder, image_ensemble_file, monkeypatch
):
    run, ensemble = tmp_path / "RUN", image_ensemble_file(tmp_path / "e.toml", "x")
    for name in ("one", "other"):
        image_folder(tmp_path / name, 1)
    table = pa.Table.from_pylist([{"item_id": "a", "image": "0.png", "targets": "cat=1"}])
    monkeypatch.chdir(tmp_path / "one")
    assert tallymill.sweep(table, run, ensemble=ensemble, workers=0).scored == 1
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(RunError, match=r"manifest\.image_root"):
        tallymill.sweep(table, run, ensemble=ensemble, workers=0)


# Two jobs that start the same new RUN at the same time
RUNS = 12


PREPARES = """
import sys, time
from pathlib import Path
from tallymill.engine.settings import Settings
from tallymill.errors import RunError
from tallymill.runners.sweep import prepare

folder, mine, other = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
for k in range(int(sys.argv[4])):
    (folder / f"ready-{k}-{mine}").touch()
    while not (folder / f"ready-{k}-{other}").exists():
        time.sleep(0)
    try:
        prepare(folder / "m.jsonl", folder / f"RUN-{k}", ensemble="synthetic", settings=Settings(floor=float(mine)))
        print(k, "won", flush=True)
    except RunError as exc:
        assert f"{other} in the RUN, {mine} now" in exc.message, exc.message
        print(k, "lost", flush=True)
"""


def test_of_two_that_start_a_run_with_other_settings_one_wins(tmp_path, manifest_file):
    manifest_file(tmp_path / "m.jsonl", 5)
    racers = {
        mine: subprocess.Popen(
            [sys.executable, "-c", PREPARES, str(tmp_path), mine, other, str(RUNS)], stdout=subprocess.PIPE, text=True
        )
        for mine, other in (("0.1", "0.2"), ("0.2", "0.1"))
    }
    told = {mine: racer.communicate(timeout=60)[0].split()[1::2] for mine, racer in racers.items()}
    assert [racer.returncode for racer in racers.values()] == [0, 0]
    for k, pair in enumerate(zip(*told.values(), strict=True)):
        assert sorted(pair) == ["lost", "won"]
        run = tmp_path / f"RUN-{k}"
        record = json.loads((run / "run.json").read_text())
        assert record["settings"]["floor"] == float(next(mine for mine, results in told.items() if results[k] == "won"))
        assert sorted(path.name for path in run.iterdir()) == ["items.arrow", "run.json"]
    assert len(told["0.1"]) == RUNS
