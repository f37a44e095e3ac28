import dataclasses
import json
import math
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tallymill
from tallymill.engine.ensemble import load_ensemble
from tallymill.engine.numbench.calibration import TAU_BOUNDS, fit_temperature, measure
from tallymill.engine.numbench.labelling import pair_iou
from tallymill.errors import ManifestError, MissingExtraError, RunError, UsageError
from tallymill.runners.numbench.calibrate import _refused, calibrate, require_disjoint
from tallymill.runners.numbench.calibration_files import as_dict, ensemble_text, load_calibration
from tallymill.runners.run import Run, load

ITEMS = 60


@pytest.fixture(scope="module")
def run(tmp_path_factory, manifest_file, ensemble_file) -> Run:
    """Synthetic proposals of images that were never there; shards of 16."""
    folder = tmp_path_factory.mktemp("calibrate")
    manifest = manifest_file(folder / "manifest.jsonl", ITEMS)
    ensemble = ensemble_file(folder / "ensemble.toml", "a", "b", taus=(1.0, 1.42))
    tallymill.sweep(manifest, folder / "run", ensemble=ensemble, workers=0, shard_items=16)
    return load(folder / "run")


def objects(run: Run, detector: str = "a", seed: int = 0) -> list[dict[str, Any]]:
    """True objects where a detector has boxes, more often where it is sure; every tenth image has none."""
    rng = random.Random(seed)
    categories = {row["item_id"]: [t["category"] for t in row["targets"]] for row in run.scores.to_pylist()}
    rows = []
    for k, row in enumerate(run.proposals(detector).to_pylist()):
        for p, target, box in zip(row["confidence"], row["target"], row["box"], strict=True):
            if k % 10 and rng.random() < p**2:
                rows.append({"item_id": row["item_id"], "category": categories[row["item_id"]][target], "box": box})
    return rows


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def recomputed(run: Run, detector: str, rows: list[Any]) -> tuple[list[float], list[bool]]:
    """Labels by the procedure as SPEC tells it, image by image and box by box."""
    confidence, label = [], []
    scores = {row["item_id"]: row for row in run.scores.to_pylist()}
    for found in run.proposals(detector).to_pylist():
        names = [t["category"] for t in scores[found["item_id"]]["targets"]]
        free = [row for row in rows if row["item_id"] == found["item_id"]]
        mine = {}
        for k in sorted(range(len(found["confidence"])), key=lambda k: -found["confidence"][k]):
            box = np.array([found["box"][k]])
            fits = [r for r in free if r["category"] == names[found["target"][k]]]
            ious = [float(pair_iou(box, np.array([r["box"]]))[0]) for r in fits]
            mine[k] = bool(ious) and max(ious) >= 0.5
            if mine[k]:
                free.remove(fits[ious.index(max(ious))])
        confidence += found["confidence"]
        label += [mine[k] for k in range(len(mine))]
    return confidence, label


def test_the_fit_is_that_of_labels_found_one_by_one(run: Run, tmp_path: Path) -> None:
    rows = objects(run)
    result = calibrate(run, write(tmp_path / "truth.jsonl", rows))
    for fit in result.detectors:
        p, y = recomputed(run, fit.detector, rows)
        one = fit_temperature(np.float32(p), y)
        assert (fit.tau, fit.proposals, fit.positives) == (one.tau, len(p), sum(y))
        assert (fit.before.nll, fit.after.nll, fit.after.ece) == (one.before.nll, one.after.nll, one.after.ece)
        assert (fit.items, fit.failed, fit.objects) == (ITEMS, 0, len(rows))
    a, b = result.detectors
    assert (a.tau_run, b.tau_run) == (1.0, 1.42)
    assert a.present is None
    p, y = recomputed(run, "b", rows)
    assert b.present == measure(p, y, 1.42)
    assert a.positives == len(rows)  # its own boxes, which do not overlap by a half after NMS
    assert a.after.nll < a.before.nll
    assert (result.items, result.failed, result.objects) == (ITEMS, 0, len(rows))
    named = {row["item_id"] for row in rows}
    assert result.without_objects == ITEMS - len(named)
    assert result.floor == 0.05
    assert result.lowest_threshold == pytest.approx(0.3)
    assert any("images without any): every proposal" in note for note in result.notes)


def test_neither_shards_nor_the_order_of_rows_change_anything(
    run: Run, tmp_path: Path, manifest_file, ensemble_file
) -> None:
    rows = objects(run)
    first = calibrate(run, write(tmp_path / "truth.jsonl", rows))
    random.Random(3).shuffle(rows)
    again = calibrate(run, write(tmp_path / "truth.jsonl", rows))
    assert again.detectors == first.detectors
    manifest = manifest_file(tmp_path / "m.jsonl", ITEMS)
    ensemble = ensemble_file(tmp_path / "e.toml", "a", "b", taus=(1.0, 1.42))
    tallymill.sweep(manifest, tmp_path / "whole", ensemble=ensemble, workers=0, shard_items=1000, keep_suppressed=True)
    assert calibrate(tmp_path / "whole", tmp_path / "truth.jsonl").detectors == first.detectors


def test_targets_by_number_are_the_same_as_by_name(run: Run, tmp_path: Path) -> None:
    rows = objects(run)
    names = {row["item_id"]: [t["category"] for t in row["targets"]] for row in run.scores.to_pylist()}
    first = calibrate(run, write(tmp_path / "truth.jsonl", rows))
    for row in rows:
        row["target"] = names[row["item_id"]].index(row["category"])
    assert calibrate(run, write(tmp_path / "both.jsonl", rows)).detectors == first.detectors
    for row in rows:
        del row["category"]
    assert calibrate(run, write(tmp_path / "numbers.jsonl", rows)).detectors == first.detectors


def test_what_is_of_no_use_is_told(run: Run, tmp_path: Path) -> None:
    rows = objects(run)
    first = calibrate(run, write(tmp_path / "truth.jsonl", rows))
    item = rows[0]["item_id"]
    more = [
        {"item_id": item, "category": "zebra", "box": [10, 10, 50, 50]},
        {"item_id": "elsewhere", "category": "dog", "box": [10, 10, 50, 50]},
        {"item_id": "elsewhere", "category": "dog", "box": [10, 10, 60, 50]},
    ]
    path = write(tmp_path / "truth.jsonl", [*more, *rows])
    result = calibrate(run, path)
    assert result.detectors == first.detectors
    told = "\n".join(result.notes)
    assert "Left aside: 1 true object of categories that their image was not asked for (zebra 1)" in told
    assert (
        "Left aside: the true objects of 1 image that the RUN lacks (first: 'elsewhere', truth.jsonl, line 2)" in told
    )
    near = [{"item_id": item, "category": rows[0]["category"], "box": [-1, 1000, 1025, 1025]}]
    assert not any("edge" in note for note in calibrate(run, write(tmp_path / "near.jsonl", [*rows, *near])).notes)
    wide = [{"item_id": item, "category": rows[0]["category"], "box": [-5, 10, 2000, 50]}]
    result = calibrate(run, write(tmp_path / "truth.jsonl", [*rows, *wide]))
    line = len(rows) + 1
    assert any(
        "1 true box beyond the image's edge by more than 1 pixel" in n and f"line {line}" in n for n in result.notes
    )
    assert result.objects == first.objects + 1


def test_faults_that_only_the_run_shows(run: Run, tmp_path: Path) -> None:
    rows = objects(run)
    single = next(row["item_id"] for row in run.scores.to_pylist() if len(row["targets"]) == 1)
    double = next(row for row in run.scores.to_pylist() if len(row["targets"]) == 2)
    other = double["targets"][1]["category"]
    bad = [
        {"item_id": single, "target": 1, "box": [0, 0, 9, 9]},
        {"item_id": double["item_id"], "target": 0, "category": other, "box": [0, 0, 9, 9]},
        {"item_id": double["item_id"], "category": other, "box": [1024, 0, 1100, 9]},
        {"item_id": double["item_id"], "category": other, "box": [-9, 0, 0, 9]},
        {"item_id": double["item_id"], "category": other, "box": [0, -9, 9, 0]},
    ]
    with pytest.raises(ManifestError) as caught:
        calibrate(run, write(tmp_path / "truth.jsonl", [*bad, *rows]))
    assert caught.value.message.startswith("truth.jsonl: 5 faults")
    for words in (
        "line 1, column target: its item has 1 target, counted from 0: 1",
        f"line 2, column category: target 0 is not: {other!r}",
        "line 3, column box: lies outside its image of 1024 x 1024 pixels: [1024.0, 0.0, 1100.0, 9.0]",
        "line 4, column box: lies outside its image",
        "line 5, column box: lies outside its image",
    ):
        assert words in caught.value.message


def test_a_truth_of_other_images_is_an_error(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "truth.jsonl", [{"item_id": "x", "category": "dog", "box": [0, 0, 9, 9]}])
    with pytest.raises(
        RunError, match=r"truth.jsonl names none of the 60 images of .* \(it names 'x' first\)"
    ) as caught:
        calibrate(run, path)
    assert "item-0" in str(caught.value.hint)


def test_a_run_that_is_not_complete(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    (copy / "scores" / "part-00002.parquet").unlink()
    with pytest.raises(RunError, match=r"part-00002\.parquet is not done yet"):
        calibrate(copy, write(tmp_path / "truth.jsonl", objects(run)))


def test_a_rescored_run_is_calibrated_like_its_source(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "truth.jsonl", objects(run))
    tallymill.rescore(run, tmp_path / "again", taus={"a": 2.0})
    first, again = calibrate(run, path), calibrate(tmp_path / "again", path)
    assert [f.tau for f in again.detectors] == [f.tau for f in first.detectors]
    assert again.detectors[0].tau_run == 2.0
    assert again.detectors[0].present is not None
    tallymill.rescore(run, tmp_path / "fitted", taus={"a": first.detectors[0].tau})
    assert calibrate(tmp_path / "fitted", path).detectors[0].present is None


@pytest.fixture(scope="module")
def images(tmp_path_factory, image_folder, image_ensemble_file) -> Path:
    """A folder with the RUNs ``one`` and ``two`` over different pictures; one picture of ``one`` is no picture."""
    folder = tmp_path_factory.mktemp("images")
    ensemble = image_ensemble_file(folder / "ensemble.toml", "m")
    image_folder(folder / "one-images", 5)
    (folder / "one-images" / "3.png").write_bytes(b"no picture")
    image_folder(folder / "two-images", 8)
    for k in range(5):  # the same shades as in the other folder
        (folder / "two-images" / f"{k}.png").unlink()
    lines = (folder / "two-images" / "metadata.jsonl").read_text().splitlines(keepends=True)[5:]
    (folder / "two-images" / "metadata.jsonl").write_text("".join(lines))
    for name in ("one", "two"):
        tallymill.sweep(folder / f"{name}-images", folder / name, ensemble=ensemble, workers=0)
    write(folder / "truth.jsonl", [{"item_id": f"{k}.png", "category": "cat", "box": [0, 0, 20, 20]} for k in range(5)])
    return folder


def test_failed_images_are_counted_and_give_no_labels(images: Path) -> None:
    result = calibrate(images / "one", images / "truth.jsonl", scored=[images / "two"])
    [fit] = result.detectors
    assert (result.items, result.failed) == (5, 1)
    assert (fit.items, fit.failed, fit.objects) == (4, 1, 4)
    # Four pictures that could be read, and the file that was none.
    assert sorted(result.images.values()) == [f"{k}.png" for k in range(5)]
    assert fit.proposals == sum(len(r["confidence"]) for r in load(images / "one").proposals("m").to_pylist())


def test_images_in_common_are_refused_by_name(images: Path, tmp_path: Path) -> None:
    shutil.copytree(images / "two-images", tmp_path / "mixed")
    shutil.copy(images / "one-images" / "2.png", tmp_path / "mixed" / "copy.png")
    with (tmp_path / "mixed" / "metadata.jsonl").open("a") as file:
        file.write(json.dumps({"file_name": "copy.png", "targets": {"cat": 1}}) + "\n")
    tallymill.sweep(tmp_path / "mixed", tmp_path / "run", ensemble=images / "ensemble.toml", workers=0)
    with pytest.raises(RunError, match=r"1 image of .*run among the calibration images of .*one") as caught:
        calibrate(images / "one", images / "truth.jsonl", scored=[images / "two", tmp_path / "run"])
    assert "'copy.png' is calibration item '2.png' (image_hash " in caught.value.message
    with pytest.raises(RunError, match="5 images of"):
        calibrate(images / "one", images / "truth.jsonl", scored=[images / "one"])


def test_images_without_a_hash_cannot_be_compared_and_are_told(run: Run, images: Path, tmp_path: Path) -> None:
    assert require_disjoint({"h": "x"}, run) == ITEMS
    result = calibrate(images / "one", images / "truth.jsonl", scored=[run])
    assert sum(f"{ITEMS} images of {run.path} have no hash" in note for note in result.notes) == 1
    own = calibrate(run, write(tmp_path / "truth.jsonl", objects(run)))
    assert sum(f"{ITEMS} images of this RUN have no hash" in note for note in own.notes) == 1


def test_a_scored_run_that_lacks_parts_cannot_be_compared(images: Path, tmp_path: Path) -> None:
    shutil.copytree(images / "two", tmp_path / "two")
    next((tmp_path / "two" / "scores").rglob("*.parquet")).unlink()
    with pytest.raises(RunError, match=r"two is not complete: .* has no whole scores") as caught:
        calibrate(images / "one", images / "truth.jsonl", scored=[tmp_path / "two"])
    assert "run its sweep again" in (caught.value.hint or "")


def test_files_are_written_and_read_back(run: Run, tmp_path: Path) -> None:
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


def test_the_ensemble_is_ready_to_use(run: Run, images: Path, tmp_path: Path) -> None:
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


def test_awkward_names_in_the_toml_file(run: Run, tmp_path: Path) -> None:
    result = calibrate(run, write(tmp_path / "truth.jsonl", objects(run)))
    own = load_ensemble(run.path.parent / "ensemble.toml")
    awkward = 'a "b" \\ \x7f ü 🐈\n# x'
    (tmp_path / "e.toml").write_text(ensemble_text(result, dataclasses.replace(own, name=awkward, slices=(2, 3))))
    read = load_ensemble(tmp_path / "e.toml")
    assert (read.name, read.slices) == (awkward + "-calibrated", (2, 3))


def test_a_fit_that_cannot_be_used_leaves_the_temperature(run: Run, tmp_path: Path) -> None:
    # No image of detector a's boxes has a true object there: nothing is true.
    path = write(
        tmp_path / "truth.jsonl", [{"item_id": "item-1", "category": "thing 1", "box": [1000, 1000, 1020, 1020]}]
    )
    result = calibrate(run, path, tmp_path / "out")
    for fit in result.detectors:
        assert (fit.tau, fit.identifiable, fit.tau_used) == (1.0, False, fit.tau_run)
        assert fit.refused == "not identifiable: no proposal is true"
    assert "# The fit of 1.0 is not used. not identifiable" in (tmp_path / "out" / "ensemble.toml").read_text()
    assert load_ensemble(tmp_path / "out" / "ensemble.toml").detectors[1].tau == 1.42
    # sigmoid(logit(.05) / tau) passes .3, the lowest threshold, at tau = 3.475.
    assert _refused(run, "a", 3.47, 5, True) is None
    assert str(_refused(run, "a", 3.48, 5, True)).startswith("needs a lower floor: a: with tau = 3.48")
    for bound in TAU_BOUNDS:
        assert "ran into its bound" in str(_refused(run, "a", bound, 5, True))


def test_folders_that_are_refused(run: Run, tmp_path: Path) -> None:
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
        ('{"tallymill": "9.9"}', r"'detectors' \(tallymill 9\.9 wrote it, this is \d"),
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


def test_the_command(run: Run, images: Path, tmp_path: Path, command) -> None:
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
