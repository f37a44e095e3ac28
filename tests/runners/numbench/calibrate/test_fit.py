"""Temperatures fitted to true objects, and what is said of objects that are of no use."""

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tallymill
from tallymill.engine.ensemble import load_ensemble
from tallymill.engine.numbench.calibration import TAU_BOUNDS, fit_temperature, measure
from tallymill.engine.numbench.labelling import pair_iou
from tallymill.errors import ManifestError, RunError
from tallymill.runners.numbench.calibrate import _refused, calibrate
from tallymill.runners.run import Run

ITEMS = 60  # of the RUN ``run``


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


def test_the_fit_is_that_of_labels_found_one_by_one(objects, write, run: Run, tmp_path: Path) -> None:
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
    objects, write, run: Run, tmp_path: Path, manifest_file, ensemble_file
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


def test_targets_by_number_are_the_same_as_by_name(objects, write, run: Run, tmp_path: Path) -> None:
    rows = objects(run)
    names = {row["item_id"]: [t["category"] for t in row["targets"]] for row in run.scores.to_pylist()}
    first = calibrate(run, write(tmp_path / "truth.jsonl", rows))
    for row in rows:
        row["target"] = names[row["item_id"]].index(row["category"])
    assert calibrate(run, write(tmp_path / "both.jsonl", rows)).detectors == first.detectors
    for row in rows:
        del row["category"]
    assert calibrate(run, write(tmp_path / "numbers.jsonl", rows)).detectors == first.detectors


def test_what_is_of_no_use_is_told(objects, write, run: Run, tmp_path: Path) -> None:
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


def test_faults_that_only_the_run_shows(objects, write, run: Run, tmp_path: Path) -> None:
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


def test_a_truth_of_other_images_is_an_error(write, run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "truth.jsonl", [{"item_id": "x", "category": "dog", "box": [0, 0, 9, 9]}])
    with pytest.raises(
        RunError, match=r"truth.jsonl names none of the 60 images of .* \(it names 'x' first\)"
    ) as caught:
        calibrate(run, path)
    assert "item-0" in str(caught.value.hint)


def test_a_run_that_is_not_complete(objects, write, run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    (copy / "scores" / "part-00002.parquet").unlink()
    with pytest.raises(RunError, match=r"part-00002\.parquet is not done yet"):
        calibrate(copy, write(tmp_path / "truth.jsonl", objects(run)))


def test_a_rescored_run_is_calibrated_like_its_source(objects, write, run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "truth.jsonl", objects(run))
    tallymill.rescore(run, tmp_path / "again", taus={"a": 2.0})
    first, again = calibrate(run, path), calibrate(tmp_path / "again", path)
    assert [f.tau for f in again.detectors] == [f.tau for f in first.detectors]
    assert again.detectors[0].tau_run == 2.0
    assert again.detectors[0].present is not None
    tallymill.rescore(run, tmp_path / "fitted", taus={"a": first.detectors[0].tau})
    assert calibrate(tmp_path / "fitted", path).detectors[0].present is None


def test_a_fit_that_cannot_be_used_leaves_the_temperature(write, run: Run, tmp_path: Path) -> None:
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
