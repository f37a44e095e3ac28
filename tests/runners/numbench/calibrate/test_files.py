"""The files of a calibration, what they are good for, and the command."""

import dataclasses
import json
import math
import shutil
import sys
from pathlib import Path

import pytest

import tallymill
from tallymill.engine.ensemble import load_ensemble
from tallymill.errors import MissingExtraError, RunError, UsageError
from tallymill.runners.numbench.calibrate import calibrate
from tallymill.runners.numbench.calibration_files import as_dict, ensemble_text, load_calibration
from tallymill.runners.run import Run


def test_files_are_written_and_read_back(objects, write, run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "truth.jsonl", objects(run))
    result = calibrate(run, path, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "calibration.json",
        "ensemble.toml",
        "reliability.png",
        "reliability.svg",
    ]
    back = load_calibration(tmp_path / "out")
    assert json.dumps(as_dict(back)) == json.dumps(as_dict(result))
    assert load_calibration(tmp_path / "out" / "calibration.json").detectors[0].tau == result.detectors[0].tau
    assert math.isnan(back.detectors[0].before.bins[0].accuracy) == (not back.detectors[0].before.bins[0].count)
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    calibrate(run, path, tmp_path / "out")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before


def test_nothing_else_is_replaced(objects, write, run: Run, images: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "truth.jsonl", objects(run))
    with pytest.raises(UsageError, match="lies in the RUN"):
        calibrate(run, path, images / "two", scored=[images / "two"])
    assert not (images / "two" / "ensemble.toml").exists()
    (tmp_path / "proj").mkdir()
    for name in ("ensemble.toml", "calibration.json"):
        write(tmp_path / "proj" / name, ["my own"])
        with pytest.raises(UsageError, match=rf"that would be replaced: .*{name}\n  choose another folder"):
            calibrate(run, path, tmp_path / "proj")
        assert (tmp_path / "proj" / name).read_text() == '"my own"\n'
        (tmp_path / "proj" / name).unlink()
    # Beside other files there is room for it.
    shutil.copy(path, tmp_path / "proj" / "truth.jsonl")
    calibrate(run, tmp_path / "proj" / "truth.jsonl", tmp_path / "proj")
    assert (tmp_path / "proj" / "truth.jsonl").read_bytes() == path.read_bytes()


def test_the_ensemble_is_ready_to_use(objects, write, run: Run, images: Path, tmp_path: Path) -> None:
    result = calibrate(run, write(tmp_path / "truth.jsonl", objects(run)), tmp_path / "out")
    ensemble = load_ensemble(tmp_path / "out" / "ensemble.toml")
    assert [(d.name, d.tau) for d in ensemble.detectors] == [(f.detector, f.tau_used) for f in result.detectors]
    by_file = tallymill.rescore(run, ensemble=tmp_path / "out" / "ensemble.toml")
    by_hand = tallymill.rescore(run, taus={f.detector: f.tau_used for f in result.detectors})
    assert by_file.groups == by_hand.groups
    assert load_ensemble(tmp_path / "out" / "ensemble.toml").name == "ensemble-calibrated"
    # A model in a file of its own is found from anywhere.
    calibrate(images / "one", images / "truth.jsonl", tmp_path / "other")
    again = tallymill.sweep(
        images / "two-images", tmp_path / "run", ensemble=tmp_path / "other" / "ensemble.toml", workers=0
    )
    assert again.scored == 3


def test_awkward_names_in_the_toml_file(objects, write, run: Run, tmp_path: Path) -> None:
    result = calibrate(run, write(tmp_path / "truth.jsonl", objects(run)))
    own = load_ensemble(run.path.parent / "ensemble.toml")
    awkward = 'a "b" \\ \x7f ü 🐈\n# x'
    (tmp_path / "e.toml").write_text(ensemble_text(result, dataclasses.replace(own, name=awkward, slices=(2, 3))))
    read = load_ensemble(tmp_path / "e.toml")
    assert (read.name, read.slices) == (awkward + "-calibrated", (2, 3))


def test_folders_that_are_refused(objects, write, run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "truth.jsonl", objects(run))
    for out in (run.path, run.path / "deeper"):
        with pytest.raises(UsageError, match="lies in the RUN"):
            calibrate(run, path, out)
    with pytest.raises(UsageError, match="is a file"):
        calibrate(run, path, path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a calibration"),
        ("[]", "not a calibration"),
        ('{"tallymill": "9.9"}', r"run is missing \(tallymill 9\.9 wrote it, this is \d"),
        ('{"detectors": [{}]}', "not a calibration"),
    ],
)
def test_files_that_are_no_calibration(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(RunError, match=words):
        load_calibration(tmp_path)


def test_no_calibration_at_all(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such file"):
        load_calibration(tmp_path)


@pytest.mark.parametrize(("package", "module"), [("scipy", "scipy.optimize"), ("matplotlib", "matplotlib.figure")])
def test_a_missing_package_is_named_before_any_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=package) as caught:
        calibrate(run, tmp_path / "not there.jsonl", tmp_path / "out")
    assert caught.value.hint == "pip install 'tallymill[report]'"


def test_the_command(objects, write, run: Run, images: Path, tmp_path: Path, command) -> None:
    truth = write(tmp_path / "truth.jsonl", objects(run))
    shown = command("calibrate", run.path, "--truth", truth, "--out", tmp_path / "out")
    assert shown.returncode == 0, shown.stderr
    result = load_calibration(tmp_path / "out")
    for words in (
        f"{result.detectors[0].tau:.4f}",
        "as in the RUN",
        "note: ",
        f"--ensemble {tmp_path}/out/ensemble.toml",
    ):
        assert words in shown.stdout
    as_json = command("calibrate", run.path, "--truth", truth, "--json")
    assert json.loads(as_json.stdout) == json.loads((tmp_path / "out" / "calibration.json").read_text())
    failed = command("calibrate", images / "one", "--truth", images / "truth.jsonl", "--scored", images / "two")
    assert failed.returncode == 3
    assert "(1 failed)" in failed.stdout
    shared = command("calibrate", images / "one", "--truth", images / "truth.jsonl", "--scored", images / "one")
    assert shared.returncode == 1
    assert "calibration item" in shared.stderr
